// The mutual proof that both ends hold the job's token: HMAC-SHA256 over fresh numbers of both, the token never travels.
import { createHmac, randomBytes, timingSafeEqual } from 'node:crypto';

export const PROTOCOL_NAME = 'weftline-store';
export const PROTOCOL_VERSION = 1;

/** What the two proofs cover: nothing of it can be changed on the way without breaking them. */
export interface HandshakeFacts {
  readonly serverNonce: string;
  readonly clientNonce: string;
  readonly rank: number;
  readonly size: number;
}

export function createNonce(): string {
  return randomBytes(32).toString('hex');
}

/** Shows the server that a client holds the token. */
export function clientProof(token: string, facts: HandshakeFacts): string {
  return keyedProof(token, ['client', PROTOCOL_VERSION, facts.serverNonce, facts.clientNonce, facts.rank, facts.size]);
}

/** Shows the client that the server holds the token, and that the job id is the server's. */
export function serverProof(token: string, facts: HandshakeFacts, jobId: string): string {
  return keyedProof(token, [
    'server',
    PROTOCOL_VERSION,
    facts.serverNonce,
    facts.clientNonce,
    facts.rank,
    facts.size,
    jobId,
  ]);
}

/** Compares in constant time; a value of another type or length is just different. */
export function sameProof(expected: string, received: unknown): boolean {
  if (typeof received !== 'string') return false;
  const left = Buffer.from(expected);
  const right = Buffer.from(received);
  return left.byteLength === right.byteLength && timingSafeEqual(left, right);
}

/** Shows that its maker holds the token and means these facts. */
export function keyedProof(token: string, facts: readonly (string | number)[]): string {
  return createHmac('sha256', token).update(JSON.stringify(facts)).digest('hex');
}
