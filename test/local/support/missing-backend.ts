// Why a backend cannot run on this machine, or undefined.
import { Agent, type BackendName } from 'weftline/agent';
import { reasonOf, skipWithout } from './requirements.js';

/** Asked once per process: later a test that runs beside the question may have taken a device down. */
const known = new Map<BackendName, Promise<string | undefined>>();

export function whyMissing(backend: BackendName): Promise<string | undefined> {
  let reason = known.get(backend);
  if (reason === undefined) known.set(backend, (reason = probe(backend)));
  return reason;
}

async function probe(backend: BackendName): Promise<string | undefined> {
  try {
    await (await Agent.create('probe', { token: 'probe', backends: [backend] })).close();
    return undefined;
  } catch (error) {
    return skipWithout(backend, reasonOf(error)) || undefined;
  }
}
