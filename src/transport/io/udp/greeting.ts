// How two transports meet over TCP, once both have proven themselves: ports, path count, then probes of the datagram size.
import { MAX_PATHS, TRANSPORT_VERSION } from '../../../abi/transport-packet.ts';
import { WeftlineError } from '../../../core/errors.ts';
import { printable, quote } from '../../../core/quote.ts';
import type { Credentials } from '../../../meeting/credentials.ts';
import { protocolError } from '../../../meeting/frames.ts';
import { type Greeted, type HelloBody, type HelloOptions, receiveHello } from '../../../meeting/hello.ts';
import { type PacketKeys, splitSessionKey } from '../../authentication/packet-keys.ts';
import type { ControlChannel, ControlFrame } from '../../../meeting/control-channel.ts';
import { DatagramProbe } from './datagram-probe.ts';
import { UdpSocket } from './udp-socket.ts';

const PROTOCOL_NAME = 'weftline-transport';
/** How long a probe of the largest size may take after the peer has sent it. */
const PROBE_PATIENCE_MS = 200;
/** Probes cross within this where nothing is wrong; then whatever arrived decides. */
const MIN_SEGMENT_BYTES = 512;
const MAX_SEGMENT_BYTES = 65_472;
const MAX_NAME_LENGTH = 200;

export interface GreetingOptions {
  /** How errors of the peer call this side. */
  readonly name: string;
  /** Most paths that this side takes, 1 to 256. */
  readonly paths: number;
  /** Bytes of a packet; 0: as large as reaches the peer. */
  readonly segmentBytes: number;
  readonly bufferBytes: number;
  /** False sends every packet by itself. */
  readonly segmentationOffload: boolean;
  /** Demands that packets are authenticated; they are if one side demands it. */
  readonly authenticate: boolean;
  /** This engine's name for the connection. */
  readonly connectionId: number;
}

/** What both sides know when they have met. The caller owns the sockets. */
export interface Meeting {
  readonly sockets: readonly UdpSocket[];
  readonly peerName: string;
  readonly remoteId: number;
  /** Of every packet. It follows from the hello and has not travelled. */
  readonly secret: bigint;
  /** If packets are authenticated: keys with the same properties. */
  readonly packetKeys: PacketKeys | undefined;
  /** What the peer's application said. */
  readonly hello: unknown;
  readonly segmentBytes: number;
  /** True if the kernel cuts large sends into packets on the way to this peer. */
  readonly cutsSends: boolean;
}

/** What an application on the side that was called says to a caller, and what becomes of it. */
export interface Guest<Established> {
  /** As JSON expresses it; the caller gets it as `hello` of its connection. */
  readonly answer: unknown;
  /** Takes the connection, which no accept() then gets. */
  readonly adopt?: (connection: Established) => void;
  /** Called instead if the connection does not come about. */
  readonly abandon?: () => void;
}

/** What the side that was called does with its caller. */
export interface Reception<Established> {
  /** Called once the caller has proven itself. */
  readonly open: (hello: unknown) => Promise<{ readonly options: GreetingOptions; readonly answer?: unknown }>;
  /** Makes this side's end of the connection. Owns the sockets from then on, also if it fails. */
  readonly adopt: (meeting: Meeting) => Promise<Established>;
}

/**
 * The side that was called. The caller may use its end only after `adopt`: a thread that blocks in a wait for the caller's
 * first message no longer gets to adopt anything.
 */
export async function receiveGuest<Established>(
  channel: ControlChannel,
  credentials: Credentials,
  { open, adopt }: Reception<Established>,
): Promise<Established> {
  const meeting = await meetGuest(channel, credentials, open);
  try {
    const established = await adopt(meeting);
    channel.send({ adopted: true });
    return established;
  } catch (error) {
    channel.refuse(error);
    throw error;
  }
}

async function meetGuest(
  channel: ControlChannel,
  credentials: Credentials,
  open: Reception<unknown>['open'],
): Promise<Meeting> {
  const sockets: UdpSocket[] = [];
  let options: GreetingOptions | undefined;
  let authenticate = false;
  try {
    const { body, secrets } = await receiveHello(channel, helloOf(credentials), async (hello) => {
      const peerName = nameOf(hello);
      channel.peer = peerName;
      const opened = await open(hello['hello']);
      ({ options } = opened);
      authenticate = options.authenticate || hello['authenticate'] === true;
      openSockets(sockets, channel, Math.min(options.paths, integer(hello, 'paths', MAX_PATHS)), options);
      const ports = sockets.map(({ port }) => port);
      return { name: options.name, connection: options.connectionId, ports, authenticate, hello: opened.answer };
    });
    connectSockets(sockets, channel, await channel.receive('ports'));
    channel.send({ connected: true });
    const packetKeys = authenticate ? splitSessionKey(secrets.key('packets'), 'listener') : undefined;
    return await finish(channel, {
      body,
      secrets,
      sockets,
      packetKeys,
      options: options as unknown as GreetingOptions,
    });
  } catch (error) {
    for (const socket of sockets) socket[Symbol.dispose]();
    channel.refuse(error);
    throw error;
  }
}

/** What the side that calls says of itself. */
export function introduce({ name, connectionId, paths, authenticate }: GreetingOptions, hello: unknown): HelloBody {
  return { name, connection: connectionId, paths, authenticate, hello };
}

/** The side that calls, after the hello. */
export async function visitHost(
  channel: ControlChannel,
  { body, secrets }: Greeted,
  options: GreetingOptions,
): Promise<Meeting> {
  const sockets: UdpSocket[] = [];
  try {
    channel.peer = nameOf(body);
    openSockets(sockets, channel, portsOf(body).length, options);
    connectSockets(sockets, channel, body);
    channel.send({ ports: sockets.map(({ port }) => port) });
    await channel.receive('sign that its sockets are connected');
    const authenticate = body['authenticate'] === true;
    if (options.authenticate && !authenticate) throw protocolError('an answer that refuses to authenticate packets');
    const packetKeys = authenticate ? splitSessionKey(secrets.key('packets'), 'caller') : undefined;
    const meeting = await finish(channel, { body, secrets, sockets, packetKeys, options });
    await channel.receive('sign that it has adopted the connection');
    return meeting;
  } catch (error) {
    for (const socket of sockets) socket[Symbol.dispose]();
    channel.refuse(error);
    throw error;
  }
}

/** Sockets are connected on both sides. */
async function finish(
  channel: ControlChannel,
  {
    body,
    secrets,
    sockets,
    packetKeys,
    options,
  }: Greeted & Pick<Meeting, 'sockets' | 'packetKeys'> & { readonly options: GreetingOptions },
): Promise<Meeting> {
  const secret = Buffer.from(secrets.key('packet secret', 8)).readBigUInt64LE();
  return {
    ...(await agreeOnSegments(channel, sockets, secret, options)),
    sockets,
    peerName: nameOf(body),
    remoteId: integer(body, 'connection', 2 ** 32 - 1),
    secret,
    packetKeys,
    hello: body['hello'],
  };
}

export function helloOf(credentials: Credentials): HelloOptions {
  return { protocol: PROTOCOL_NAME, version: TRANSPORT_VERSION, credentials };
}

/** Both sides send probes on the first path, tell what arrived, and take the smaller of the two. */
async function agreeOnSegments(
  channel: ControlChannel,
  sockets: readonly UdpSocket[],
  secret: bigint,
  options: GreetingOptions,
): Promise<{ readonly segmentBytes: number; readonly cutsSends: boolean }> {
  const probe = new DatagramProbe(sockets[0] as UdpSocket, secret);
  const most = options.segmentBytes === 0 ? MAX_SEGMENT_BYTES : options.segmentBytes;
  const sent = probe.send(most);
  const cutsSends = options.segmentationOffload && probe.cutsSends();
  channel.send({ sent });
  const expected = integer(await channel.receive('probes'), 'sent', 65_535);
  const arrived = await waitForProbe(probe, expected);
  channel.send({ arrived });
  const reached = integer(await channel.receive('count of probes'), 'arrived', 65_535);
  const segmentBytes = Math.floor(Math.min(arrived, reached, most) / 8) * 8;
  if (segmentBytes >= MIN_SEGMENT_BYTES) return { segmentBytes, cutsSends };
  const socket = sockets[0] as UdpSocket;
  throw new WeftlineError(
    'WL_TIMEOUT',
    `UDP packets do not pass between this host (${socket.host} port ${socket.port}) and ${channel.peer}, though TCP does: a firewall may drop them (of ${expected} bytes at most, ${arrived} arrived here and ${reached} there)`,
    { details: { host: socket.host, port: socket.port, peer: channel.peer, arrived, reached } },
  );
}

async function waitForProbe(probe: DatagramProbe, expected: number): Promise<number> {
  const end = performance.now() + PROBE_PATIENCE_MS;
  for (;;) {
    const arrived = probe.receive();
    if (arrived >= expected || performance.now() >= end) return arrived;
    await new Promise((resolve) => setTimeout(resolve, 1));
  }
}

function openSockets(sockets: UdpSocket[], channel: ControlChannel, count: number, options: GreetingOptions): void {
  const { bufferBytes } = options;
  // One by one into the caller's list, so that those already open are closed if the next cannot be opened.
  for (let path = 0; path < count; path += 1) sockets.push(new UdpSocket({ host: channel.localAddress, bufferBytes }));
}

function connectSockets(sockets: readonly UdpSocket[], channel: ControlChannel, frame: ControlFrame): void {
  const ports = portsOf(frame);
  if (ports.length !== sockets.length) {
    throw protocolError(`${ports.length} ports for ${sockets.length} paths`);
  }
  for (const [path, socket] of sockets.entries()) {
    socket.connect({ host: channel.remoteAddress, port: ports[path]! });
  }
}

function text(frame: ControlFrame, field: string): string {
  const value = frame[field];
  if (typeof value === 'string') return value;
  throw protocolError(`a greeting without ${field}`);
}

function integer(frame: ControlFrame, field: string, most: number): number {
  const value = frame[field];
  if (typeof value === 'number' && Number.isInteger(value) && value >= 0 && value <= most) return value;
  throw protocolError(`a greeting whose ${field} is ${value === undefined ? 'missing' : quote(value, 40)}`);
}

function nameOf(frame: ControlFrame): string {
  return printable(text(frame, 'name'), MAX_NAME_LENGTH);
}

function portsOf(frame: ControlFrame): readonly number[] {
  const ports = frame['ports'];
  const areGood =
    Array.isArray(ports) &&
    ports.length >= 1 &&
    ports.length <= MAX_PATHS &&
    ports.every((port) => Number.isInteger(port) && port > 0 && port < 65_536);
  if (areGood) return ports as number[];
  throw protocolError('a greeting without ports');
}
