// Packets over UDP: a socket per path on each side, a probe of the largest datagram that passes on each rail, the loop over
// the sockets of an engine.
import { isIP } from 'node:net';
import { Block } from '../../../abi/layout.ts';
import { MAX_ENGINES } from '../../engine-commands.ts';
import { MAX_PATHS, PROBE_MARK, transportProbe } from '../../wire/packet-layout.ts';
import { WeftlineError } from '../../../core/errors.ts';
import type { ControlChannel, ControlFrame } from '../../../meeting/control-channel.ts';
import { protocolError } from '../../../meeting/frames.ts';
import { MessageBlock } from '../../../native/message-block.ts';
import { NativeBlock } from '../../../native/library.ts';
import { receiveMessages, sendMessages } from '../../../native/udp.ts';
import { hostInterfaces, listRails } from '../../../rails/rail-list.ts';
import { packetSpinUs } from '../../../threads/spin-time.ts';
import type { PacketIoKind, PathEndpoint, PathOptions, PathPlan, PeerPaths, RailPair } from '../packet-io-kind.ts';
import { UdpLoop } from './udp-loop.ts';
import { UdpSocket } from './udp-packet-io.ts';

// Finds the largest datagram that reaches a peer, by sending some of each candidate size before the connection is used.

/** What fits where: jumbo frames, Ethernet, common tunnels, the least that IPv6 promises. */
const COMMON_SIZES = [8972, 1472, 1372, 1232];
/** Probes of each size, so that a lost packet does not decide. */
const COPIES = 3;
/** Two segments of a probe that asks whether the kernel cuts sends for this route. */
const CUT_SEGMENT_BYTES = 512;

class DatagramProbe {
  readonly #socket: UdpSocket;
  readonly #memory: NativeBlock;
  readonly #probe: Block<keyof typeof transportProbe.offset>;
  readonly #messages = new MessageBlock({ messages: 1, iovecsPerMessage: 1 });
  readonly #secret: bigint;
  #largestArrived = 0;

  /** `socket` is connected to the peer. */
  constructor(socket: UdpSocket, secret: bigint) {
    this.#socket = socket;
    this.#secret = secret;
    this.#memory = new NativeBlock(65_536);
    this.#probe = new Block(transportProbe, this.#memory.bytes.buffer, this.#memory.bytes.byteOffset);
    this.#messages.setIovecCount(0, 1);
  }

  /** Sends probes of every size up to `most`. Returns the largest that left this host. */
  send(most: number): number {
    const largest = Math.min(most, this.#socket.largestDatagram);
    const sizes = [largest, ...COMMON_SIZES.filter((bytes) => bytes < largest)];
    let largestSent = 0;
    for (const bytes of sizes) {
      for (let copy = 0; copy < COPIES; copy += 1) {
        if (this.#sendOne(bytes, 0)) largestSent = Math.max(largestSent, bytes);
      }
    }
    return largestSent;
  }

  /** True if the kernel cuts one send into several datagrams on this route. */
  cutsSends(): boolean {
    return this.#sendOne(CUT_SEGMENT_BYTES, 2 * CUT_SEGMENT_BYTES);
  }

  /** Looks at what has arrived so far; returns the largest probe of the peer, 0 for none. */
  receive(): number {
    const { bytes } = this.#memory;
    for (;;) {
      this.#messages.setIovec(0, 0, this.#memory.address, bytes.length);
      this.#messages.expectControl(0);
      if (receiveMessages(this.#socket.fd, this.#messages.addressOf(0), 1) !== 1) return this.#largestArrived;
      const length = this.#messages.segmentBytesOf(0);
      const isOurs =
        length >= transportProbe.size &&
        this.#probe.get('mark') === PROBE_MARK &&
        this.#probe.get('secretLow') === Number(this.#secret & 0xffff_ffffn) &&
        this.#probe.get('secretHigh') === Number(this.#secret >> 32n);
      if (isOurs && this.#probe.get('bytes') === length) this.#largestArrived = Math.max(this.#largestArrived, length);
    }
  }

  #sendOne(bytes: number, total: number): boolean {
    this.#memory.bytes.fill(0, 0, Math.max(bytes, total));
    this.#probe.set('mark', PROBE_MARK);
    this.#probe.set('bytes', bytes);
    this.#probe.set('secretLow', Number(this.#secret & 0xffff_ffffn));
    this.#probe.set('secretHigh', Number(this.#secret >> 32n));
    this.#messages.setIovec(0, 0, this.#memory.address, Math.max(bytes, total));
    this.#messages.setSegmentBytes(0, total === 0 ? 0 : bytes);
    return sendMessages(this.#socket.fd, this.#messages.addressOf(0), 1) === 1;
  }
}

/** How long a probe of the largest size may take after the peer has sent it: probes cross within this where nothing is wrong. */
const PROBE_PATIENCE_MS = 200;
const MIN_SEGMENT_BYTES = 512;
const MAX_SEGMENT_BYTES = 65_472;
const MAX_DATAGRAM = 65_535;
/** The kernel cuts a send into no more on every version. */
const MAX_CUTS = 64;

export const udp: PacketIoKind = {
  name: 'udp',
  rails: ({ transportRails }) => listRails(transportRails, hostInterfaces()).map(({ address }) => address),
  openLoop: ({ engine, settings }) => new UdpLoop({ engine, spinUs: packetSpinUs(settings) }),
  openPaths: (channel, plan, options) => new UdpPaths(channel, plan, options),
  countsOf: (offer) => ({ paths: portsOf(offer).length, rails: hostsOf(offer).length }),
};

class UdpPaths implements PeerPaths {
  readonly #channel: ControlChannel;
  readonly #plan: PathPlan;
  readonly #options: PathOptions;
  /** Lane by lane. */
  readonly #sockets: readonly UdpSocket[];
  rails: readonly RailPair[] = [];
  cutsSends = false;

  constructor(channel: ControlChannel, plan: PathPlan, options: PathOptions) {
    this.#channel = channel;
    this.#plan = plan;
    this.#options = options;
    checkRails(channel, plan);
    const sockets: UdpSocket[] = [];
    const { bufferBytes } = options;
    try {
      while (sockets.length < plan.lanes * plan.paths) {
        sockets.push(new UdpSocket({ host: this.#localHost(sockets.length), bufferBytes }));
      }
    } catch (error) {
      for (const socket of sockets) socket[Symbol.dispose]();
      throw error;
    }
    this.#sockets = sockets;
  }

  get count(): number {
    return this.#sockets.length;
  }

  get offer(): ControlFrame {
    return { hosts: this.#plan.rails, ports: this.#sockets.map(({ port }) => port) };
  }

  endpoint(lane: number): PathEndpoint {
    const { paths } = this.#plan;
    const sockets = this.#sockets.slice(lane * paths, (lane + 1) * paths);
    const segments = this.cutsSends ? MAX_CUTS : 1;
    return { ends: sockets.map(({ fd }) => fd), rails: this.#railCount, segments };
  }

  connect(peerOffer: ControlFrame): void {
    const ports = portsOf(peerOffer);
    const hosts = hostsOf(peerOffer);
    const { rails } = this.#plan;
    if (ports.length !== this.count) throw protocolError(`${ports.length} ports for ${this.count} paths`);
    if (Math.max(1, hosts.length) !== this.#railCount) {
      throw protocolError(`${hosts.length} rails where ${rails.length} were agreed on`);
    }
    this.rails = Array.from({ length: this.#railCount }, (_, rail) => ({
      local: this.#localHost(rail),
      remote: hosts[rail] ?? this.#channel.remoteAddress,
    }));
    for (const { local, remote } of this.rails) {
      if (isIP(local) !== isIP(remote)) throw protocolError(`the rail ${remote} for the rail ${local}`);
    }
    for (const [path, socket] of this.#sockets.entries()) {
      const { remote } = this.rails[this.#railOf(path)] as RailPair;
      socket.connect({ host: remote, port: ports[path]! });
    }
  }

  /** Each rail has its own size; the smallest of those that pass packets at all goes for all. */
  async agree(secret: bigint): Promise<number> {
    const channel = this.#channel;
    const options = this.#options;
    const probes = this.rails.map((_, rail) => new DatagramProbe(this.#sockets[rail] as UdpSocket, secret));
    const most = options.segmentBytes === 0 ? MAX_SEGMENT_BYTES : options.segmentBytes;
    const sent = probes.map((probe) => probe.send(most));
    this.cutsSends = options.segmentationOffload && probes.every((probe) => probe.cutsSends());
    channel.send({ sent });
    const expected = this.#sizesOf(await channel.receive('probes'), 'sent');
    const arrived = await waitForProbes(probes, expected);
    channel.send({ arrived });
    const reached = this.#sizesOf(await channel.receive('count of probes'), 'arrived');
    const sizes = arrived.map((bytes, rail) => Math.floor(Math.min(bytes, reached[rail]!, most) / 8) * 8);
    const passing = sizes.filter((bytes) => bytes >= MIN_SEGMENT_BYTES);
    if (passing.length > 0) return Math.min(...passing);
    const { host, port } = this.#sockets[0] as UdpSocket;
    throw new WeftlineError(
      'WL_TIMEOUT',
      `UDP packets do not pass between this host (${host} port ${port}) and ${channel.peer}, though TCP does: a firewall may drop them (of ${expected[0]} bytes at most, ${arrived[0]} arrived here and ${reached[0]} there)`,
      { details: { host, port, peer: channel.peer, arrived: arrived[0], reached: reached[0] } },
    );
  }

  [Symbol.dispose](): void {
    for (const socket of this.#sockets) socket[Symbol.dispose]();
  }

  get #railCount(): number {
    return Math.max(1, this.#plan.rails.length);
  }

  /** The rail of a path, counted over all lanes. */
  #railOf(path: number): number {
    return (path % this.#plan.paths) % this.#railCount;
  }

  #localHost(path: number): string {
    return this.#plan.rails[this.#railOf(path)] ?? this.#channel.localAddress;
  }

  /** One per rail. */
  #sizesOf(frame: ControlFrame, field: string): readonly number[] {
    const sizes = frame[field];
    if (Array.isArray(sizes) && sizes.length === this.#railCount && sizes.every(isSize)) return sizes;
    throw protocolError(`a greeting whose ${field} does not say ${this.#railCount} sizes`);
  }
}

/** Fails with WL_CONFIG unless all rails are of the control channel's kind, IPv4 or IPv6. */
function checkRails({ localAddress, peer }: ControlChannel, { rails }: PathPlan): void {
  const other = rails.find((address) => isIP(address) !== isIP(localAddress));
  if (other === undefined) return;
  throw new WeftlineError(
    'WL_CONFIG',
    `The rail ${other} cannot carry packets to ${peer}, which was met at ${localAddress}: name rails (WEFTLINE_TRANSPORT_RAILS) by addresses of one kind, IPv4 or IPv6, and meet at such an address`,
    { details: { rail: other, localAddress } },
  );
}

async function waitForProbes(
  probes: readonly DatagramProbe[],
  expected: readonly number[],
): Promise<readonly number[]> {
  const end = performance.now() + PROBE_PATIENCE_MS;
  for (;;) {
    const arrived = probes.map((probe) => probe.receive());
    const haveAll = arrived.every((bytes, rail) => bytes >= expected[rail]!);
    if (haveAll || performance.now() >= end) return arrived;
    await new Promise((resolve) => setTimeout(resolve, 1));
  }
}

function portsOf(frame: ControlFrame): readonly number[] {
  const ports = frame['ports'];
  const most = MAX_ENGINES * MAX_PATHS;
  const areGood = Array.isArray(ports) && ports.length >= 1 && ports.length <= most && ports.every(isPort);
  if (areGood) return ports;
  throw protocolError('a greeting without ports');
}

/** Addresses of the peer's rails; none if packets go to the control channel's. */
function hostsOf(frame: ControlFrame): readonly string[] {
  const hosts = frame['hosts'];
  if (Array.isArray(hosts) && hosts.length <= MAX_PATHS && hosts.every(isHost)) return hosts;
  throw protocolError('a greeting without addresses of rails');
}

function isHost(host: unknown): host is string {
  return typeof host === 'string' && isIP(host) !== 0;
}

function isSize(bytes: unknown): bytes is number {
  return typeof bytes === 'number' && Number.isInteger(bytes) && bytes >= 0 && bytes <= MAX_DATAGRAM;
}

function isPort(port: unknown): port is number {
  return typeof port === 'number' && Number.isInteger(port) && port > 0 && port < 65_536;
}
