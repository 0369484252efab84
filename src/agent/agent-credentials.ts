// The credentials of an agent's listeners and callers, kept outside the object so that printing an agent does not show them.
import type { Credentials } from '../meeting/credentials.ts';

const credentials = new WeakMap<object, Credentials>();

export function keepCredentials(agent: object, own: Credentials): void {
  credentials.set(agent, own);
}

/** Of an agent that was created. */
export function credentialsOfAgent(agent: object): Credentials {
  return credentials.get(agent) as Credentials;
}
