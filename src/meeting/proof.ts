// The mutual proof that both ends hold the same key: HMAC-SHA256 over fresh numbers of both and all that they say.
import { createHash, createHmac, randomBytes, timingSafeEqual } from 'node:crypto';
import { type CredentialKind, derive } from './credentials.ts';

/** Of the hello itself; protocols count their own. */
const HELLO_VERSION = 1;
const NONCE_BYTES = 32;

export function createNonce(): string {
  return randomBytes(NONCE_BYTES).toString('hex');
}

export function isNonce(value: unknown): value is string {
  return typeof value === 'string' && /^[0-9a-f]{64}$/.test(value);
}

/** What both sides have said before either proof. */
export interface HelloFacts {
  readonly protocol: string;
  readonly version: number;
  readonly serverNonce: string;
  readonly clientNonce: string;
  readonly serverKind: CredentialKind;
  readonly clientKind: CredentialKind;
  readonly clientBody: Uint8Array;
  /**
   * Between processes of one user, which are on one host: both ends of the connection, client first. They tell a relay,
   * whose two connections have ends of their own. Undefined with a token: addresses may be translated on the way.
   */
  readonly ends: readonly [string, string] | undefined;
}

/** The proofs of one hello. Nothing that they cover can be changed on the way, nor used in another hello. */
export class Proofs {
  readonly #key: Uint8Array;
  readonly #facts: readonly (string | number)[];

  constructor(key: Uint8Array, facts: HelloFacts) {
    const { protocol, version, serverNonce, clientNonce, serverKind, clientKind, clientBody, ends } = facts;
    this.#key = key;
    this.#facts = [
      HELLO_VERSION,
      protocol,
      version,
      serverNonce,
      clientNonce,
      serverKind,
      clientKind,
      digest(clientBody),
      ...(ends ?? []),
    ];
  }

  ofClient(): string {
    return this.#proof(['client', ...this.#facts]);
  }

  ofServer(body: Uint8Array): string {
    return this.#proof(['server', ...this.#facts, digest(body)]);
  }

  /** Secrets that only these two ends of this connection know. */
  session(): SessionSecrets {
    return new SessionSecrets(derive(this.#key, JSON.stringify(this.#facts), 'session'));
  }

  #proof(facts: readonly (string | number)[]): string {
    return createHmac('sha256', this.#key).update(JSON.stringify(facts)).digest('hex');
  }
}

/** Keys that follow from a hello. They never travel. */
export class SessionSecrets {
  readonly #key: Uint8Array;

  constructor(key: Uint8Array) {
    this.#key = key;
  }

  /** A key of its own for each purpose. */
  key(purpose: string, bytes = 32): Uint8Array {
    return derive(this.#key, '', purpose, bytes);
  }
}

/** Compares in constant time; a value of another type or length is just different. */
export function sameProof(expected: string, received: unknown): boolean {
  if (typeof received !== 'string') return false;
  const left = Buffer.from(expected);
  const right = Buffer.from(received);
  return left.byteLength === right.byteLength && timingSafeEqual(left, right);
}

function digest(bytes: Uint8Array): string {
  return createHash('sha256').update(bytes).digest('hex');
}
