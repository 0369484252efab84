// How two UCX backends meet over TCP: in their hello they tell each other the addresses of their workers.
import { UCX_LINK_NUMBERS, UCX_PROTOCOL_VERSION } from '../../../abi/ucx-message.ts';
import { deadlineOf } from '../../../core/deadline.ts';
import { WeftlineError } from '../../../core/errors.ts';
import { printable, quote } from '../../../core/quote.ts';
import type { ControlChannel } from '../../../meeting/control-channel.ts';
import type { Credentials } from '../../../meeting/credentials.ts';
import { call } from '../../../meeting/dial.ts';
import { protocolError } from '../../../meeting/frames.ts';
import { type HelloBody, type HelloOptions, receiveHello } from '../../../meeting/hello.ts';
import type { SessionSecrets } from '../../../meeting/proof.ts';
import type { BackendPeer, ConnectOptions } from '../../backend.ts';

const PROTOCOL_NAME = 'weftline-ucx';
const MAX_NAME_LENGTH = 200;

/** What a side says of itself. */
export interface UcxSelf {
  readonly credentials: Credentials;
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
}

/** What both sides know when they have met. */
export interface UcxMeeting {
  readonly channel: ControlChannel;
  readonly peer: string;
  readonly address: Uint8Array;
  readonly remoteLink: number;
  readonly secretLow: number;
  readonly secretHigh: number;
  /** Of the peer: see UcxSelf. */
  readonly host: string;
  readonly process: number;
  readonly started: string;
}

export interface UcxGuest {
  readonly reserve: () => Pick<UcxSelf, 'link' | 'address'>;
  readonly connect: (meeting: UcxMeeting) => Promise<void>;
}

/**
 * The side that was called. `reserve` is called once the caller has proven itself, so that strangers cost nothing; `connect`
 * makes this side's end of the link, before the caller may use its own.
 */
export async function acceptUcxPeer(
  channel: ControlChannel,
  self: Omit<UcxSelf, 'link' | 'address'>,
  { reserve, connect }: UcxGuest,
): Promise<void> {
  await receiveHello(channel, helloOf(self.credentials), async (hello, secrets) => {
    const peer = text(hello, 'name');
    channel.peer = printable(peer, MAX_NAME_LENGTH);
    const place = reserve();
    await connect({
      channel,
      peer,
      address: bytesOf(hello, 'address'),
      remoteLink: number(hello, 'link', UCX_LINK_NUMBERS),
      ...secretsOf(secrets),
      ...processOf(hello),
    });
    return describe({ ...self, ...place });
  });
}

/** The side that calls. Fails as `Backend.connect` does. */
export async function connectUcxPeer(
  { peer, address }: { readonly peer: BackendPeer; readonly address: { readonly host: string; readonly port: number } },
  self: UcxSelf,
  options: ConnectOptions,
): Promise<UcxMeeting> {
  const hello = helloOf(self.credentials);
  const { channel, body, secrets } = await call(address, {
    ...options,
    deadline: deadlineOf(options, options.timeoutMs),
    hello,
    body: describe(self),
    who: `agent ${peer.name}`,
    retry: false,
  });
  channel.peer = peer.name;
  try {
    if (text(body, 'name') !== peer.name || text(body, 'incarnation') !== peer.incarnation) {
      throw new WeftlineError(
        'WL_STALE',
        `Another agent, or ${peer.name} after a restart, answers at the address of ${peer.name}: load its metadata again`,
        { details: { peer: peer.name } },
      );
    }
    return {
      channel,
      peer: peer.name,
      address: bytesOf(body, 'address'),
      remoteLink: number(body, 'link', UCX_LINK_NUMBERS),
      ...secretsOf(secrets),
      ...processOf(body),
    };
  } catch (error) {
    channel.refuse(error);
    throw error;
  }
}

function helloOf(credentials: Credentials): HelloOptions {
  return { protocol: PROTOCOL_NAME, version: UCX_PROTOCOL_VERSION, credentials };
}

/** Derived from the hello; they never cross the network. */
function secretsOf(secrets: SessionSecrets): { readonly secretLow: number; readonly secretHigh: number } {
  const secret = Buffer.from(secrets.key('ucx link', 8));
  return { secretLow: secret.readUInt32LE(0), secretHigh: secret.readUInt32LE(4) };
}

function describe(self: UcxSelf): HelloBody {
  const { name, incarnation, host, process, started, link } = self;
  const address = Buffer.from(self.address).toString('base64');
  return { name, incarnation, host, process, started, address, link };
}

function processOf(frame: HelloBody): Pick<UcxMeeting, 'host' | 'process' | 'started'> {
  return { host: text(frame, 'host'), process: number(frame, 'process'), started: text(frame, 'started') };
}

function text(frame: HelloBody, field: string): string {
  const value = frame[field];
  if (typeof value === 'string') return value;
  throw protocolError(`a greeting without ${field}`);
}

function number(frame: HelloBody, field: string, end: number = 2 ** 32): number {
  const value = frame[field];
  if (typeof value === 'number' && Number.isInteger(value) && value >= 0 && value < end) return value;
  throw protocolError(`a greeting whose ${field} is ${value === undefined ? 'missing' : quote(value, 40)}`);
}

function bytesOf(frame: HelloBody, field: string): Uint8Array {
  return Buffer.from(text(frame, field), 'base64');
}
