// What the listeners and callers of an agent prove themselves with, kept apart so that no agent shows it.
import type { Credentials } from '../meeting/credentials.ts';

const credentials = new WeakMap<object, Credentials>();

export function keepCredentials(agent: object, own: Credentials): void {
  credentials.set(agent, own);
}

/** Of an agent that was created. */
export function credentialsOfAgent(agent: object): Credentials {
  return credentials.get(agent) as Credentials;
}
