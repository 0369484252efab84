// Why a backend cannot run on this machine, or undefined.
import { Agent, type BackendName } from 'weftline/agent';

export async function whyMissing(backend: BackendName): Promise<string | undefined> {
  try {
    await (await Agent.create('probe', { backends: [backend] })).close();
    return undefined;
  } catch (error) {
    return (error as Error).message;
  }
}
