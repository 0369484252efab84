// What a process proves itself with when it meets another one: a token, or the secret of its user on this host.
import { hkdfSync } from 'node:crypto';
import { bootId } from './boot-id.ts';
import { readUserSecret, type UserSecret } from './user-secret.ts';

/** `user`: the peer runs as the same user on the same host. It is said aloud; it is no secret. */
export type CredentialKind = 'token' | 'user';

export interface Credential {
  readonly kind: CredentialKind;
  /** Of proofs. Never leaves the process. */
  readonly key: Uint8Array;
}

/** Read again at each meeting: the secret of a user is a file, which may be made anew. */
export interface Credentials {
  readonly kind: CredentialKind;
  read(): Credential;
}

const KEY_BYTES = 32;
const SALT = 'weftline';

/** Those of a token; if it is empty, those of the user. `scope` keeps what one user runs apart, such as jobs. */
export function credentialsOf(token: string, scope = ''): Credentials {
  if (token === '') return { kind: 'user', read: () => userCredential(readUserSecret(), scope) };
  const credential = tokenCredential(token);
  return { kind: 'token', read: () => credential };
}

export function tokenCredential(token: string): Credential {
  return { kind: 'token', key: derive(Buffer.from(token), SALT, 'token') };
}

/** The boot makes a copy of the file worthless elsewhere, also a home folder that several hosts share. */
export function userCredential(secret: UserSecret, scope = ''): Credential {
  return { kind: 'user', key: derive(secret.bytes, `${SALT} ${bootId()}`, `user ${scope}`) };
}

/** A key of its own for each purpose, from which neither the secret nor other keys can be told. */
export function derive(secret: Uint8Array, salt: string, purpose: string, bytes: number = KEY_BYTES): Uint8Array {
  return new Uint8Array(hkdfSync('sha256', secret, salt, `weftline/${purpose}`, bytes));
}
