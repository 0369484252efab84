// How two verbs backends meet over TCP: in their hello they tell each other their queue pairs and mailboxes.
import { isIP } from 'node:net';
import { z } from '#zod';
import { VERBS_AGENT_VERSION } from '../../../abi/verbs-agent.ts';
import { deadlineOf } from '../../../core/deadline.ts';
import { WeftlineError } from '../../../core/errors.ts';
import { printable } from '../../../core/quote.ts';
import type { ControlChannel } from '../../../meeting/control-channel.ts';
import type { Credentials } from '../../../meeting/credentials.ts';
import { call } from '../../../meeting/dial.ts';
import { protocolError } from '../../../meeting/frames.ts';
import { type HelloOptions, receiveHello } from '../../../meeting/hello.ts';
import type { BackendPeer, ConnectOptions } from '../../backend.ts';
import type { EndAddress } from './queue-pair-end.ts';

const MAX_NAME_LENGTH = 200;
const MAX_PORT_NAME_LENGTH = 100;
const PROTOCOL_NAME = 'weftline-verbs';

const count = (end: number): z.ZodNumber => z.number().int().nonnegative().lt(end);
const port = {
  gid: z.string().regex(/^[0-9a-f]{32}$/),
  lid: count(2 ** 16),
  linkLayer: z.string().max(MAX_PORT_NAME_LENGTH),
  mtuBytes: z.union([z.literal(256), z.literal(512), z.literal(1024), z.literal(2048), z.literal(4096)]),
  name: z.string().max(MAX_PORT_NAME_LENGTH),
};
const end = z.object({
  ...port,
  queuePair: count(2 ** 24),
  firstSequence: count(2 ** 24),
  /** Of the mailbox of who calls, or the inbox of who is called. */
  mailbox: z.object({ address: count(2 ** 53), key: count(2 ** 32) }),
});
const hello = z.object({
  name: z.string().min(1).max(MAX_NAME_LENGTH),
  incarnation: z.string(),
  expects: z.string(),
  end,
});
const welcome = z.object({ name: z.string(), incarnation: z.string(), end });
const info = z.object({
  version: z.literal(VERBS_AGENT_VERSION),
  host: z.string().refine((host) => isIP(host) !== 0),
  port: z.number().int().min(1).max(65_535),
  network: z.string().max(MAX_NAME_LENGTH),
  rail: z.object({ name: port.name, linkLayer: port.linkLayer }),
});

/** An end of a connection, with the memory that belongs to it. */
export type MeetingEnd = EndAddress & { readonly mailbox: { readonly address: number; readonly key: number } };

/** What metadata say of the backend: where it listens, and by which port it moves data. */
export type VerbsInfo = z.infer<typeof info>;

export interface VerbsSelf {
  readonly credentials: Credentials;
  readonly name: string;
  readonly incarnation: string;
}

export function encodeVerbsInfo(values: Omit<VerbsInfo, 'version'>): Uint8Array {
  return Buffer.from(JSON.stringify({ version: VERBS_AGENT_VERSION, ...values }));
}

/** Undefined if it is not understood. */
export function decodeVerbsInfo(bytes: Uint8Array): VerbsInfo | undefined {
  try {
    return info.parse(JSON.parse(Buffer.from(bytes).toString('utf8')));
  } catch {
    return undefined;
  }
}

export interface VerbsCaller {
  readonly name: string;
  readonly end: MeetingEnd;
}

/**
 * The side that was called. `connect` is called once the caller has proven itself, so that strangers cost nothing, and makes
 * this side's end, which must be able to receive before the caller sends.
 */
export async function acceptVerbsPeer(
  channel: ControlChannel,
  self: VerbsSelf,
  connect: (caller: VerbsCaller) => MeetingEnd,
): Promise<void> {
  await receiveHello(channel, helloOf(self.credentials), (body) => {
    const said = hello.safeParse(body);
    if (!said.success) throw protocolError('a greeting that is not one of an agent');
    const { name, expects, end: callerEnd } = said.data;
    channel.peer = printable(name, MAX_NAME_LENGTH);
    if (expects !== self.incarnation) throw stale(self.name, expects, self.incarnation);
    const { incarnation } = self;
    return { name: self.name, incarnation, end: connect({ name, end: callerEnd }) };
  });
}

/** The side that calls, with its end. Fails as `Backend.connect` does. */
export async function connectVerbsPeer(
  { peer, address }: { readonly peer: BackendPeer; readonly address: VerbsInfo },
  self: VerbsSelf & { readonly end: MeetingEnd },
  options: ConnectOptions,
): Promise<{ readonly channel: ControlChannel; readonly end: MeetingEnd }> {
  const { name, incarnation } = self;
  const { channel, body } = await call(address, {
    ...options,
    deadline: deadlineOf(options, options.timeoutMs),
    hello: helloOf(self.credentials),
    body: { name, incarnation, expects: peer.incarnation, end: self.end },
    who: `agent ${peer.name}`,
    retry: false,
  });
  channel.peer = peer.name;
  try {
    const said = welcome.safeParse(body);
    if (!said.success) throw protocolError('a greeting that is not one of an agent');
    if (said.data.incarnation !== peer.incarnation) throw stale(peer.name, peer.incarnation, said.data.incarnation);
    return { channel, end: said.data.end };
  } catch (error) {
    channel.refuse(error);
    throw error;
  }
}

function helloOf(credentials: Credentials): HelloOptions {
  return { protocol: PROTOCOL_NAME, version: VERBS_AGENT_VERSION, credentials };
}

function stale(name: string, expected: string, now: string): WeftlineError {
  return new WeftlineError(
    'WL_STALE',
    `Agent ${name} has restarted: its metadata here is of incarnation ${expected}, it is ${now} now; load its metadata anew`,
    { details: { peer: name, expected, now } },
  );
}
