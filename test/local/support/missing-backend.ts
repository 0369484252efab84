// Why a backend cannot run on this machine, or undefined.
import { Agent, type BackendName } from 'weftline/agent';
import { reasonOf, skipWithout } from './requirements.js';

export async function whyMissing(backend: BackendName): Promise<string | undefined> {
  try {
    await (await Agent.create('probe', { token: 'probe', backends: [backend] })).close();
    return undefined;
  } catch (error) {
    return skipWithout(backend, reasonOf(error)) || undefined;
  }
}
