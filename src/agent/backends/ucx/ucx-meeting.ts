// How two UCX backends meet over TCP: proof of the token both ways, then the addresses of their workers.
import { randomBytes } from 'node:crypto';
import { connect as connectTcp, type Socket } from 'node:net';
import { UCX_LINK_NUMBERS, UCX_PROTOCOL_VERSION } from '../../../abi/ucx-message.ts';
import { WeftlineError } from '../../../core/errors.ts';
import { ControlChannel, type ControlFrame } from '../../../meeting/control-channel.ts';
import { protocolError } from '../../../meeting/frames.ts';
import { createNonce, keyedProof, sameProof } from '../../../meeting/proof.ts';
import type { BackendPeer, ConnectOptions } from '../../backend.ts';

const PROTOCOL_NAME = 'weftline-ucx';

/** What a side says of itself. */
export interface UcxSelf {
  readonly token: string;
  readonly name: string;
  readonly incarnation: string;
  /** `hostIdentity()` */
  readonly host: string;
  /** `process.pid`, and when it began: the number may mean another process elsewhere. */
  readonly process: number;
  readonly started: string;
  /** Of its UCX worker. */
  readonly address: Uint8Array;
  /** The number it has reserved for the link. */
  readonly link: number;
  /** True if its UCX may use shared memory, for which it cannot tell when a peer dies. */
  readonly sharesMemory: boolean;
}

/** What both sides know when they have met. */
export interface UcxMeeting {
  readonly channel: ControlChannel;
  readonly peer: string;
  readonly address: Uint8Array;
  readonly remoteLink: number;
  readonly secretLow: number;
  readonly secretHigh: number;
  readonly mode: 'peer' | 'none';
  /** Of the peer: see UcxSelf. */
  readonly host: string;
  readonly process: number;
  readonly started: string;
}

/** The side that was called. `connect` makes its end of the link, before the caller may use its own. */
export async function receiveUcxGuest(
  socket: Socket,
  self: UcxSelf,
  { timeoutMs, connect }: { readonly timeoutMs: number; readonly connect: (meeting: UcxMeeting) => Promise<void> },
): Promise<void> {
  const channel = new ControlChannel(socket, performance.now() + timeoutMs);
  const serverNonce = createNonce();
  channel.send({ protocol: PROTOCOL_NAME, version: UCX_PROTOCOL_VERSION, nonce: serverNonce });
  try {
    const hello = await channel.receive('greeting');
    checkVersion(hello);
    const facts = [UCX_PROTOCOL_VERSION, serverNonce, text(hello, 'nonce')];
    if (!sameProof(keyedProof(self.token, ['client', ...facts]), hello['proof'])) {
      throw new WeftlineError(
        'WL_UNAUTHORIZED',
        `${self.name} refused the connection: the caller does not hold its token`,
      );
    }
    const peer = text(hello, 'name');
    channel.peer = peer;
    const secret = randomBytes(8);
    const isOneHost = text(hello, 'host') === self.host;
    const mode = isOneHost && self.sharesMemory && hello['sharesMemory'] === true ? 'none' : 'peer';
    const secrets = { secretLow: secret.readUInt32LE(0), secretHigh: secret.readUInt32LE(4) };
    await connect({
      channel,
      peer,
      address: bytesOf(hello, 'address'),
      remoteLink: number(hello, 'link', UCX_LINK_NUMBERS),
      mode,
      ...secrets,
      ...processOf(hello),
    });
    channel.send({
      ...describe(self),
      ...secrets,
      mode,
      proof: keyedProof(self.token, ['server', ...facts]),
    });
  } catch (error) {
    channel.refuse(error);
    throw error;
  }
}

/** The side that calls. Fails as `Backend.connect` does. */
export async function visitUcxPeer(
  { peer, address }: { readonly peer: BackendPeer; readonly address: { readonly host: string; readonly port: number } },
  self: UcxSelf,
  options: ConnectOptions,
): Promise<UcxMeeting> {
  const end = performance.now() + options.timeoutMs;
  const channel = new ControlChannel(await dial(peer.name, address, options), end);
  channel.peer = peer.name;
  const abort = (): void => channel.close();
  options.signal?.addEventListener('abort', abort);
  try {
    const challenge = await channel.receive('greeting');
    checkVersion(challenge);
    const nonce = createNonce();
    const facts = [UCX_PROTOCOL_VERSION, text(challenge, 'nonce'), nonce];
    const proof = keyedProof(self.token, ['client', ...facts]);
    channel.send({ protocol: PROTOCOL_NAME, version: UCX_PROTOCOL_VERSION, nonce, proof, ...describe(self) });
    const welcome = await channel.receive('answer to the greeting');
    if (!sameProof(keyedProof(self.token, ['server', ...facts]), welcome['proof'])) {
      throw new WeftlineError('WL_UNAUTHORIZED', `${peer.name} does not hold the token of this agent`);
    }
    if (text(welcome, 'name') !== peer.name || text(welcome, 'incarnation') !== peer.incarnation) {
      throw new WeftlineError(
        'WL_STALE',
        `At the address of ${peer.name} there is another agent, or another life of it: load its metadata anew`,
        { details: { peer: peer.name } },
      );
    }
    return {
      channel,
      peer: peer.name,
      address: bytesOf(welcome, 'address'),
      remoteLink: number(welcome, 'link', UCX_LINK_NUMBERS),
      secretLow: number(welcome, 'secretLow'),
      secretHigh: number(welcome, 'secretHigh'),
      mode: welcome['mode'] === 'none' ? 'none' : 'peer',
      ...processOf(welcome),
    };
  } catch (error) {
    channel.refuse(error);
    options.signal?.throwIfAborted();
    throw error;
  } finally {
    options.signal?.removeEventListener('abort', abort);
  }
}

function dial(
  peer: string,
  { host, port }: { readonly host: string; readonly port: number },
  { timeoutMs, signal }: ConnectOptions,
): Promise<Socket> {
  return new Promise((resolve, reject) => {
    const socket = connectTcp({ host, port });
    const timer = setTimeout(() => {
      const message = `${peer} did not answer at ${host} port ${port} within ${timeoutMs} ms`;
      socket.destroy(new WeftlineError('WL_TIMEOUT', message, { details: { peer, host, port, timeoutMs } }));
    }, timeoutMs);
    const abort = (): void => {
      socket.destroy(signal?.reason as Error);
    };
    const settle = (): void => {
      clearTimeout(timer);
      signal?.removeEventListener('abort', abort);
    };
    signal?.addEventListener('abort', abort);
    socket.once('error', (cause) => {
      settle();
      if (cause instanceof WeftlineError || signal?.aborted === true) reject(cause);
      else reject(lost(peer, `${host} port ${port}: ${cause.message}`, cause));
    });
    socket.once('connect', () => {
      settle();
      socket.removeAllListeners('error');
      resolve(socket);
    });
  });
}

function lost(peer: string, what: string, cause: unknown): WeftlineError {
  return new WeftlineError('WL_PEER_LOST', `${peer} is not there any more (${what})`, { details: { peer }, cause });
}

function describe(self: UcxSelf): ControlFrame {
  const { name, incarnation, host, process, started, link, sharesMemory } = self;
  const address = Buffer.from(self.address).toString('base64');
  return { name, incarnation, host, process, started, address, link, sharesMemory };
}

function processOf(frame: ControlFrame): Pick<UcxMeeting, 'host' | 'process' | 'started'> {
  return { host: text(frame, 'host'), process: number(frame, 'process'), started: text(frame, 'started') };
}

function checkVersion(frame: ControlFrame): void {
  const { protocol, version } = frame;
  if (protocol !== PROTOCOL_NAME) throw protocolError('a greeting of another protocol');
  if (version !== UCX_PROTOCOL_VERSION) {
    throw protocolError(`version ${JSON.stringify(version)} of the protocol, this side speaks ${UCX_PROTOCOL_VERSION}`);
  }
}

function text(frame: ControlFrame, field: string): string {
  const value = frame[field];
  if (typeof value === 'string') return value;
  throw protocolError(`a greeting without ${field}`);
}

function number(frame: ControlFrame, field: string, end: number = 2 ** 32): number {
  const value = frame[field];
  if (typeof value === 'number' && Number.isInteger(value) && value >= 0 && value < end) return value;
  throw protocolError(`a greeting whose ${field} is ${JSON.stringify(value)}`);
}

function bytesOf(frame: ControlFrame, field: string): Uint8Array {
  return Buffer.from(text(frame, field), 'base64');
}
