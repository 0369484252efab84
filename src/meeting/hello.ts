// The hello of every protocol: a challenge, then proofs both ways that cover what either side says of itself.
import { createHash, createHmac, randomBytes, timingSafeEqual } from 'node:crypto';
import { invalidArgument, WeftlineError } from '../core/errors.ts';
import { printable, quote } from '../core/quote.ts';
import type { ControlChannel, ControlFrame } from './control-channel.ts';
import { type CredentialKind, type Credentials, derive } from './credentials.ts';
import { protocolError } from './frames.ts';

// The mutual proof that both ends hold the same key: HMAC-SHA256 over fresh numbers of both and all that they say.

/** The version of the hello itself; protocols count their own. */
const HELLO_VERSION = 1;
const NONCE_BYTES = 32;

export function createNonce(): string {
  return randomBytes(NONCE_BYTES).toString('hex');
}

function isNonce(value: unknown): value is string {
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
class SessionSecrets {
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

/** What a side says of itself, as JSON expresses it. */
export type HelloBody = Readonly<Record<string, unknown>>;

export interface HelloOptions {
  readonly protocol: string;
  /** Both sides must have the same. */
  readonly version: number;
  readonly credentials: Credentials;
}

export interface Greeted {
  /** What the peer said, and nobody has changed on the way. */
  readonly body: HelloBody;
  readonly secrets: SessionSecrets;
}

/**
 * The side that was called. `answer` makes what it says of itself, once the peer has proven itself; what it throws is told
 * to the peer. Refuses strangers and other versions, with the reason, and throws it.
 */
export async function receiveHello(
  channel: ControlChannel,
  { protocol, version, credentials }: HelloOptions,
  answer: (body: HelloBody, secrets: SessionSecrets) => HelloBody | Promise<HelloBody>,
): Promise<Greeted> {
  try {
    const { kind } = credentials;
    const serverNonce = createNonce();
    channel.send({ protocol, version, nonce: serverNonce, credential: kind });
    const { header, parts } = await channel.receiveFrame('greeting');
    checkProtocol(header, protocol, version);
    const said = parts[0] ?? new Uint8Array(0);
    const clientKind = kindOf(header);
    const { own, other } = channel.ends;
    const ends = kind === 'user' ? ([other, own] as const) : undefined;
    const facts = { protocol, version, serverNonce, clientNonce: nonceOf(header), serverKind: kind, clientKind, ends };
    const proofs = new Proofs(readKey(channel, credentials), { ...facts, clientBody: said });
    if (!sameProof(proofs.ofClient(), header['proof'])) throw unauthorized(channel.peer, kind, clientKind);
    const body = decodeBody(said);
    channel.prove();
    const secrets = proofs.session();
    const reply = encodeBody(await answer(body, secrets));
    channel.send({ proof: proofs.ofServer(reply) }, [reply]);
    return { body, secrets };
  } catch (error) {
    channel.refuse(error);
    throw error;
  }
}

/** The side that calls. Fails with WL_UNAUTHORIZED, WL_PROTOCOL, the peer's refusal, WL_PEER_LOST, WL_TIMEOUT. */
export async function sayHello(
  channel: ControlChannel,
  { protocol, version, credentials }: HelloOptions,
  body: HelloBody,
): Promise<Greeted> {
  try {
    const challenge = await channel.receive('greeting');
    checkProtocol(challenge, protocol, version);
    const { kind, key } = credentials.read();
    const serverKind = kindOf(challenge);
    const clientNonce = createNonce();
    const { own, other } = channel.ends;
    const ends = kind === 'user' ? ([own, other] as const) : undefined;
    const said = encodeBody(body);
    const serverNonce = nonceOf(challenge);
    const facts = { protocol, version, serverNonce, clientNonce, serverKind, clientKind: kind, ends };
    const proofs = new Proofs(key, { ...facts, clientBody: said });
    // A proof would only give a peer that cannot check it something to guess the token by.
    const proof = serverKind === kind ? proofs.ofClient() : '';
    channel.send({ protocol, version, nonce: clientNonce, credential: kind, proof }, [said]);
    const { header, parts } = await receiveAnswer(channel, kind, serverKind);
    const reply = parts[0] ?? new Uint8Array(0);
    if (!sameProof(proofs.ofServer(reply), header['proof'])) throw unauthorized(channel.peer, kind, serverKind);
    channel.prove();
    return { body: decodeBody(reply), secrets: proofs.session() };
  } catch (error) {
    channel.refuse(error);
    throw error;
  }
}

/** A stranger need not know what is wrong with the credential of this side. */
function readKey(channel: ControlChannel, credentials: Credentials): Uint8Array {
  try {
    return credentials.read().key;
  } catch (error) {
    channel.refuse(
      new WeftlineError('WL_CONFIG', 'the credential of that side cannot be read; its own error says why'),
    );
    throw error;
  }
}

/** A refusal for want of the right credential is told from this side's point of view. */
async function receiveAnswer(
  channel: ControlChannel,
  own: CredentialKind,
  theirs: CredentialKind,
): ReturnType<ControlChannel['receiveFrame']> {
  try {
    return await channel.receiveFrame('answer to the greeting');
  } catch (error) {
    const isRefused = error instanceof WeftlineError && error.code === 'WL_UNAUTHORIZED';
    throw isRefused ? unauthorized(channel.peer, own, theirs) : error;
  }
}

function unauthorized(peer: string, own: CredentialKind, theirs: CredentialKind): WeftlineError {
  const give =
    'give all processes that meet the same token (openssl rand -hex 32), by WEFTLINE_TOKEN or the option token';
  const reasons: Readonly<Record<CredentialKind, Readonly<Record<CredentialKind, string>>>> = {
    token: {
      token: `it does not hold the same token (WEFTLINE_TOKEN, or the option token) as this side`,
      user: `this side proves itself with a token, and the peer has none: ${give}`,
    },
    user: {
      token: `the peer proves itself with a token, and this side has none: ${give}`,
      user: `without a token, only processes of one user on one host meet, within one job if there is one; the peer runs as another user, for another job, or sees other files, or something passes on what they say to each other: run both alike, connect directly, or ${give}`,
    },
  };
  return new WeftlineError('WL_UNAUTHORIZED', `${peer} is not trusted: ${reasons[own][theirs]}`, {
    details: { peer, credential: own, peerCredential: theirs },
  });
}

function checkProtocol(frame: ControlFrame, protocol: string, version: number): void {
  const theirs = frame['protocol'];
  if (theirs !== protocol) {
    const shown = typeof theirs === 'string' ? ` (${printable(theirs, 40)})` : '';
    throw protocolError(`a greeting of another protocol${shown}, expected ${protocol}`);
  }
  if (frame['version'] === version) return;
  const shown = frame['version'] === undefined ? 'none' : quote(frame['version'], 20);
  throw protocolError(
    `version ${shown} of ${protocol}, this side speaks ${version}: use the same weftline on both sides`,
  );
}

function kindOf(frame: ControlFrame): CredentialKind {
  const kind = frame['credential'];
  if (kind === 'token' || kind === 'user') return kind;
  throw protocolError('a greeting without the kind of its credential');
}

function nonceOf(frame: ControlFrame): string {
  const { nonce } = frame;
  if (isNonce(nonce)) return nonce;
  throw protocolError('a greeting without a nonce');
}

function encodeBody(body: HelloBody): Uint8Array {
  try {
    return Buffer.from(JSON.stringify(body));
  } catch (cause) {
    throw invalidArgument('hello', (cause as Error).message, 'what JSON can express');
  }
}

function decodeBody(bytes: Uint8Array): HelloBody {
  let body: unknown;
  try {
    body = JSON.parse(Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength).toString('utf8'));
  } catch {
    throw protocolError('a greeting that is not JSON');
  }
  if (typeof body === 'object' && body !== null && !Array.isArray(body)) return body as HelloBody;
  throw protocolError('a greeting that is not an object');
}
