// How two transports meet over TCP: proof of the token both ways, ports, secret, path count, then probes of the datagram size.
import { hkdfSync, randomBytes } from 'node:crypto';
import { MAX_PATHS, TRANSPORT_VERSION } from '../../../abi/transport-packet.ts';
import { WeftlineError } from '../../../core/errors.ts';
import { protocolError } from '../../../world/frames.ts';
import { createNonce, keyedProof, sameProof } from '../../../world/handshake.ts';
import { PACKET_KEY_BYTES, type PacketKeys, splitSessionKey } from '../../authentication/packet-keys.ts';
import type { ControlChannel, ControlFrame } from './control-channel.ts';
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
  /** Shared by all who may connect; empty for none. */
  readonly token: string;
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
  readonly secret: bigint;
  /** If packets are authenticated. */
  readonly packetKeys: PacketKeys | undefined;
  readonly segmentBytes: number;
  /** True if the kernel cuts large sends into packets on the way to this peer. */
  readonly cutsSends: boolean;
}

/** The side that was called. Refuses strangers and other versions, with the reason, and throws it. */
export async function receiveGuest(channel: ControlChannel, options: GreetingOptions): Promise<Meeting> {
  const serverNonce = createNonce();
  channel.send({ protocol: PROTOCOL_NAME, version: TRANSPORT_VERSION, nonce: serverNonce });
  const sockets: UdpSocket[] = [];
  try {
    const hello = await channel.receive('greeting');
    checkVersion(hello);
    const clientNonce = text(hello, 'nonce');
    const wished = hello['authenticate'] === true;
    const facts = ['client', TRANSPORT_VERSION, serverNonce, clientNonce, Number(wished)];
    if (!sameProof(keyedProof(options.token, facts), hello['proof'])) {
      throw new WeftlineError(
        'WL_UNAUTHORIZED',
        'This transport refused the connection: the caller does not hold its token (WEFTLINE_TOKEN, or the option token, must be the same on both sides)',
      );
    }
    const peerName = nameOf(hello);
    channel.peer = peerName;
    const paths = Math.min(options.paths, integer(hello, 'paths', MAX_PATHS));
    openSockets(sockets, channel, paths, options);
    const secret = randomBytes(8).readBigUInt64LE();
    const authenticate = wished || options.authenticate;
    channel.send({
      name: options.name,
      connection: options.connectionId,
      secret: secret.toString(16),
      ports: sockets.map(({ port }) => port),
      authenticate,
      proof: keyedProof(options.token, ['server', ...facts.slice(1), Number(authenticate)]),
    });
    connectSockets(sockets, channel, await channel.receive('ports'));
    channel.send({ connected: true });
    const remoteId = integer(hello, 'connection', 2 ** 32 - 1);
    const packetKeys = authenticate ? keysOf(options.token, [serverNonce, clientNonce], 'listener') : undefined;
    const segments = await agreeOnSegments(channel, sockets, secret, options);
    return { ...segments, sockets, peerName, remoteId, secret, packetKeys };
  } catch (error) {
    for (const socket of sockets) socket[Symbol.dispose]();
    channel.refuse(error);
    throw error;
  }
}

/** The side that calls. */
export async function visitHost(channel: ControlChannel, options: GreetingOptions): Promise<Meeting> {
  const sockets: UdpSocket[] = [];
  try {
    const challenge = await channel.receive('greeting');
    checkVersion(challenge);
    const clientNonce = createNonce();
    const serverNonce = text(challenge, 'nonce');
    const facts = [TRANSPORT_VERSION, serverNonce, clientNonce, Number(options.authenticate)];
    channel.send({
      protocol: PROTOCOL_NAME,
      version: TRANSPORT_VERSION,
      nonce: clientNonce,
      proof: keyedProof(options.token, ['client', ...facts]),
      name: options.name,
      connection: options.connectionId,
      paths: options.paths,
      authenticate: options.authenticate,
    });
    const welcome = await channel.receive('answer to the greeting');
    const authenticate = welcome['authenticate'] === true;
    if (!sameProof(keyedProof(options.token, ['server', ...facts, Number(authenticate)]), welcome['proof'])) {
      throw new WeftlineError('WL_UNAUTHORIZED', `${channel.peer} does not hold the token of this transport`);
    }
    const peerName = nameOf(welcome);
    channel.peer = peerName;
    openSockets(sockets, channel, portsOf(welcome).length, options);
    connectSockets(sockets, channel, welcome);
    channel.send({ ports: sockets.map(({ port }) => port) });
    await channel.receive('sign that its sockets are connected');
    const secret = secretOf(welcome);
    const remoteId = integer(welcome, 'connection', 2 ** 32 - 1);
    if (options.authenticate && !authenticate) throw protocolError('an answer that refuses to authenticate packets');
    const packetKeys = authenticate ? keysOf(options.token, [serverNonce, clientNonce], 'caller') : undefined;
    const segments = await agreeOnSegments(channel, sockets, secret, options);
    return { ...segments, sockets, peerName, remoteId, secret, packetKeys };
  } catch (error) {
    for (const socket of sockets) socket[Symbol.dispose]();
    channel.refuse(error);
    throw error;
  }
}

/** From what only holders of the token know of this meeting. */
function keysOf(token: string, nonces: readonly string[], end: 'caller' | 'listener'): PacketKeys {
  const session = hkdfSync('sha256', token, nonces.join(' '), 'weftline transport session', PACKET_KEY_BYTES);
  return splitSessionKey(new Uint8Array(session), end);
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
    socket.connect({ host: channel.remoteAddress, port: ports[path] as number });
  }
}

function checkVersion(frame: ControlFrame): void {
  const { protocol, version } = frame;
  if (protocol !== PROTOCOL_NAME) throw protocolError('a greeting of another protocol');
  if (version === TRANSPORT_VERSION) return;
  throw protocolError(
    `version ${JSON.stringify(version)} of the transport, this side speaks ${TRANSPORT_VERSION}: use the same weftline on both sides`,
  );
}

function text(frame: ControlFrame, field: string): string {
  const value = frame[field];
  if (typeof value === 'string') return value;
  throw protocolError(`a greeting without ${field}`);
}

function integer(frame: ControlFrame, field: string, most: number): number {
  const value = frame[field];
  if (typeof value === 'number' && Number.isInteger(value) && value >= 0 && value <= most) return value;
  throw protocolError(`a greeting whose ${field} is ${JSON.stringify(value)}`);
}

function nameOf(frame: ControlFrame): string {
  return text(frame, 'name').slice(0, MAX_NAME_LENGTH);
}

function secretOf(frame: ControlFrame): bigint {
  const digits = text(frame, 'secret');
  if (/^[0-9a-f]{1,16}$/.test(digits)) return BigInt(`0x${digits}`);
  throw protocolError('a greeting whose secret is not a number of 64 bits');
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
