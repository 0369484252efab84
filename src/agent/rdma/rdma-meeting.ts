// How two backends over RDMA meet over TCP: in their hello they tell each other their ends of a connection and mailboxes.
import { z } from '#zod';
import { RDMA_AGENT_VERSION } from './rdma-messages.ts';
import { deadlineOf } from '../../core/deadline.ts';
import { printable } from '../../core/quote.ts';
import type { ControlChannel } from '../../meeting/control-channel.ts';
import type { Credentials } from '../../meeting/credentials.ts';
import { call } from '../../meeting/dial.ts';
import { protocolError } from '../../meeting/frames.ts';
import { type HelloOptions, receiveHello } from '../../meeting/hello.ts';
import { publishedAddress, readPublished } from '../agent-address.ts';
import { type BackendPeer, type ConnectOptions, restarted } from '../backend.ts';

const MAX_NAME_LENGTH = 200;
const MAX_PORT_NAME_LENGTH = 100;
const MAX_KEY_DIGITS = 2048;
const MAX_KEY_NAME_LENGTH = 32;
/** Names of regions that a caller asks for at most: what else its broken connection carried fails as unknown. */
const MAX_ASKED = 64;

const count = (end: number): z.ZodNumber => z.number().int().nonnegative().lt(end);
const id = z.string().max(MAX_KEY_NAME_LENGTH);
const names = z.array(z.string().max(MAX_KEY_NAME_LENGTH)).max(MAX_ASKED);
const end = z.object({
  /** The address of the end, as the library of the device has it. */
  end: z.unknown(),
  /** Memory of who calls, or the inbox of who is called; the key in hexadecimal digits. */
  mailbox: z.object({
    address: count(2 ** 53),
    key: z
      .string()
      .regex(/^([0-9a-f]{2})+$/)
      .max(MAX_KEY_DIGITS),
  }),
});
const hello = z.object({
  name: z.string().min(1).max(MAX_NAME_LENGTH),
  incarnation: z.string(),
  expects: z.string(),
  end,
  /** The connection in whose place this one comes: the `guest` of its welcome. */
  after: id.optional(),
  /** Regions that it was about: which of them are not registered any more? */
  asked: names,
});
const welcome = z.object({
  name: z.string(),
  incarnation: z.string(),
  end,
  guest: id,
  gone: names,
  /** Messages of the earlier connection that have come; left out if that is not known any more. */
  arrived: count(2 ** 53).optional(),
});
const port = { name: z.string().max(MAX_PORT_NAME_LENGTH), linkLayer: z.string().max(MAX_PORT_NAME_LENGTH) };
const info = z.object({
  version: z.literal(RDMA_AGENT_VERSION),
  ...publishedAddress,
  rail: z.object(port),
});

/** An end of a connection, with the memory that belongs to it. */
export type MeetingEnd = z.infer<typeof end>;

/** What a caller says, and what it is answered. */
export type RdmaCaller = Omit<z.infer<typeof hello>, 'incarnation' | 'expects'>;
export type RdmaWelcome = Omit<z.infer<typeof welcome>, 'name' | 'incarnation'>;

/** What metadata say of the backend: where it listens, and by which port it moves data. */
type RdmaInfo = z.infer<typeof info>;

export interface RdmaSelf {
  /** The backend's protocol. */
  readonly protocol: string;
  readonly credentials: Credentials;
  readonly name: string;
  readonly incarnation: string;
}

export function encodeRdmaInfo(values: Omit<RdmaInfo, 'version'>): Uint8Array {
  return Buffer.from(JSON.stringify({ version: RDMA_AGENT_VERSION, ...values }));
}

/** Undefined if it is not understood. */
export function decodeRdmaInfo(bytes: Uint8Array): RdmaInfo | undefined {
  return readPublished(info, bytes);
}

/** Both sides have met. */
export interface MetPeer {
  readonly channel: ControlChannel;
  readonly welcome: RdmaWelcome;
}

/**
 * The side that was called. `connect` is called once the caller has proven itself, so that strangers cost nothing, and makes
 * this side's end, which must be able to receive before the caller sends.
 */
export async function acceptRdmaPeer(
  channel: ControlChannel,
  self: RdmaSelf,
  connect: (caller: RdmaCaller) => RdmaWelcome,
): Promise<void> {
  await receiveHello(channel, helloOf(self), (body) => {
    const said = hello.safeParse(body);
    if (!said.success) throw protocolError('a greeting that is not one of an agent');
    const { name, expects } = said.data;
    channel.peer = printable(name, MAX_NAME_LENGTH);
    if (expects !== self.incarnation) throw restarted(self.name, expects, self.incarnation);
    const { incarnation } = self;
    return { name: self.name, incarnation, ...connect(said.data) };
  });
}

/** The side that calls, with its end. Fails as `Backend.connect` does. */
export async function connectRdmaPeer(
  { peer, address }: { readonly peer: BackendPeer; readonly address: RdmaInfo },
  self: RdmaSelf & Omit<RdmaCaller, 'name'>,
  options: ConnectOptions,
): Promise<MetPeer> {
  const { name, incarnation } = self;
  const { channel, body } = await call(address, {
    ...options,
    deadline: deadlineOf(options, options.timeoutMs),
    hello: helloOf(self),
    body: {
      name,
      incarnation,
      expects: peer.incarnation,
      end: self.end,
      after: self.after,
      asked: self.asked.slice(0, MAX_ASKED),
    },
    who: `agent ${peer.name}`,
    retry: false,
  });
  channel.peer = peer.name;
  try {
    const said = welcome.safeParse(body);
    if (!said.success) throw protocolError('a greeting that is not one of an agent');
    if (said.data.incarnation !== peer.incarnation) throw restarted(peer.name, peer.incarnation, said.data.incarnation);
    return { channel, welcome: said.data };
  } catch (error) {
    channel.refuse(error);
    throw error;
  }
}

function helloOf({ protocol, credentials }: RdmaSelf): HelloOptions {
  return { protocol: `weftline-${protocol}`, version: RDMA_AGENT_VERSION, credentials };
}
