// Packets over UDP: a socket per path on each side, a probe of the largest datagram that passes on each rail, the loop over
// the sockets of an engine.
import { isIP } from 'node:net';
import { Block } from '../../../abi/layout.ts';
import { WeftlineError } from '../../../core/errors.ts';
import type { ControlChannel, ControlFrame } from '../../../meeting/control-channel.ts';
import { protocolError } from '../../../meeting/frames.ts';
import { NativeBlock } from '../../../native/library.ts';
import { closeDescriptor, MessageBlock, peekMessage, receiveMessages, sendMessages } from '../../../native/udp.ts';
import { Doorbell, ReadinessSet } from '../../../native/readiness.ts';
import { hostInterfaces, listRails } from '../../../rails/rail-list.ts';
import { packetSpinUs } from '../../../threads/spin-time.ts';
import { MAX_ENGINES } from '../../engine-commands.ts';
import type { TransportEngine } from '../../engine/transport-engine.ts';
import { DATA_HEADER_BYTES, MAX_PATHS, PROBE_MARK, transportProbe } from '../../wire/packet-layout.ts';
import {
  EngineTurns,
  microseconds,
  type PacketIoKind,
  type PacketLoop,
  type PacketLoopOptions,
  type PathEndpoint,
  type PathOptions,
  type PathPlan,
  type PeerPaths,
  type RailPair,
} from '../packet-io-kind.ts';
import { createReceivedBatch, type ReceivedBatch } from '../packet-io.ts';
import { type PathSocket, type SendFailures, UdpPacketIo, UdpSocket } from './udp-packet-io.ts';

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

// Takes datagrams from the sockets that are readable into one arena, as batches for the engine; the payload of large ones
// straight into its place. Hot path: no allocation.

/** What the kernel may join is at most 64 KiB. */
const SLOT_BYTES = 65_536;
const SLOTS = 64;
/** Large datagrams are taken a few at a time, so that they are still in the cache when they are placed. */
const LARGE_SLOTS = 8;
const LARGE_BYTES = 8192;
/** Size of a datagram below which the call that looks at the header costs more than the copy that it saves. */
const DIRECT_BYTES = 32_768;

export const RECEIVE_ARENA_BYTES: number = SLOTS * SLOT_BYTES;

/** Calls that do not try it after one in which no payload could go straight to its place. */
const CALLS_TO_DIRECT = 64;
/** What the engine must see of a packet to say where its payload belongs. */
const PEEKED_BYTES = DATA_HEADER_BYTES;
/** Place of headers that were looked at: in the last slot, which large datagrams do not use. */
const PEEKED_AT = (SLOTS - 1) * SLOT_BYTES;

const ECONNREFUSED = 111;

export class DatagramReceiver {
  /** What the last `receive` brought. */
  readonly batch: ReceivedBatch;
  /** True if the last `receive` heard that the peer's port is closed. */
  isRefused = false;
  readonly #block = new MessageBlock({ messages: SLOTS, iovecsPerMessage: 1 });
  /** A header, and a payload that goes elsewhere. */
  readonly #direct = new MessageBlock({ messages: 1, iovecsPerMessage: 2 });
  readonly #arena: NativeBlock;
  readonly #engine: Pick<TransportEngine, 'payloadAddress'> | undefined;
  #slots = SLOTS;
  /** Slots that the last call filled: the kernel has shortened what it was given for control records. */
  #filled = SLOTS;
  /** What came last were large datagrams, each by itself. */
  #isDirect = false;
  #callsToDirect = 0;

  /** `arena` has RECEIVE_ARENA_BYTES. `engine` knows where payload belongs; without it all is received into the arena. */
  constructor(arena: NativeBlock, engine?: Pick<TransportEngine, 'payloadAddress'>) {
    this.batch = createReceivedBatch(arena.bytes, SLOTS);
    this.#arena = arena;
    this.#engine = engine;
    this.#direct.setIovecCount(0, 2);
    for (let slot = 0; slot < SLOTS; slot += 1) {
      this.#block.setIovec(slot, 0, arena.address + slot * SLOT_BYTES, SLOT_BYTES);
      this.#block.setIovecCount(slot, 1);
      this.batch.offset[slot] = slot * SLOT_BYTES;
    }
  }

  /** Fills the batch from one socket. True if there may be more in it. */
  receive(fd: number, peer: number): boolean {
    if (this.#isDirect) return this.#receiveDirect(fd, peer);
    const { batch } = this;
    const asked = this.#slots;
    const count = this.#receiveWhole(fd, peer, 0, asked);
    batch.count = Math.max(0, count);
    this.isRefused = count === -ECONNREFUSED;
    if (count <= 0) return false;
    let bytes = 0;
    let isLone = true;
    for (let slot = 0; slot < count; slot += 1) {
      bytes += batch.length[slot]!;
      if (batch.segmentBytes[slot] !== 0) isLone = false;
    }
    this.#slots = bytes > count * LARGE_BYTES ? LARGE_SLOTS : SLOTS;
    if (isLone && bytes > count * DIRECT_BYTES) this.#noteLarge();
    return count === asked;
  }

  #noteLarge(): void {
    if (this.#callsToDirect > 0) this.#callsToDirect -= 1;
    else this.#isDirect = this.#engine !== undefined;
  }

  /** Receives datagrams into the slots from `first` on. Returns how many, or a negative errno. */
  // oxlint-disable-next-line max-params -- hot path: an object for them would be allocated per call
  #receiveWhole(fd: number, peer: number, first: number, most: number): number {
    const block = this.#block;
    const { batch } = this;
    for (let slot = 0; slot < this.#filled; slot += 1) block.expectControl(slot);
    const count = receiveMessages(fd, block.addressOf(first), most);
    const end = first + count;
    this.#filled = Math.max(0, end);
    for (let slot = first; slot < end; slot += 1) {
      const length = block.lengthOf(slot);
      const segment = block.segmentBytesOf(slot);
      batch.length[slot] = length;
      batch.segmentBytes[slot] = segment < length ? segment : 0;
      batch.placed[slot] = 0;
      batch.peer[slot] = peer;
    }
    return count;
  }

  /** One by one: looks at the header of each, and has the kernel put its payload where it belongs. */
  #receiveDirect(fd: number, peer: number): boolean {
    const { batch } = this;
    batch.count = 0;
    this.isRefused = false;
    let placed = 0;
    while (batch.count < LARGE_SLOTS) {
      const length = peekMessage(fd, this.#arena.address + PEEKED_AT, PEEKED_BYTES);
      if (length < 0) {
        this.isRefused = length === -ECONNREFUSED;
        break;
      }
      if (!this.#receiveNext(fd, peer, batch.count, length)) break;
      placed += batch.placed[batch.count]!;
      batch.count += 1;
    }
    if (placed === 0 && batch.count > 0) {
      this.#isDirect = false;
      this.#callsToDirect = CALLS_TO_DIRECT;
    }
    return batch.count === LARGE_SLOTS;
  }

  /** The datagram that was looked at. False if it is not there, or is another one: that is lost. */
  // oxlint-disable-next-line max-params -- hot path: an object for them would be allocated per packet
  #receiveNext(fd: number, peer: number, slot: number, length: number): boolean {
    const { batch } = this;
    const arena = this.#arena;
    const address = length < DIRECT_BYTES ? 0 : this.#engine!.payloadAddress(arena.bytes, PEEKED_AT, length, peer);
    if (address === 0) return this.#receiveWhole(fd, peer, slot, 1) === 1;
    const direct = this.#direct;
    const at = slot * SLOT_BYTES;
    direct.setIovec(0, 0, arena.address + at, PEEKED_BYTES);
    direct.setIovec(0, 1, address, length - PEEKED_BYTES);
    direct.expectControl(0);
    if (receiveMessages(fd, direct.addressOf(0), 1) !== 1) return false;
    batch.length[slot] = length;
    batch.segmentBytes[slot] = 0;
    batch.placed[slot] = 1;
    batch.peer[slot] = peer;
    return direct.lengthOf(0) === length && this.#isWhatWasPeeked(at);
  }

  #isWhatWasPeeked(at: number): boolean {
    const { words } = this.#arena;
    const first = at / 4;
    for (let word = 0; word < PEEKED_BYTES / 4; word += 1) {
      if (words[first + word] !== words[PEEKED_AT / 4 + word]) return false;
    }
    return true;
  }
}

/** Batches taken from one socket before the engine may answer: acks must not wait for a full socket to run dry. */
const BATCHES_PER_ROUND = 4;
/** What stands for a socket's number in the set to wait for: the doorbell. */
const DOORBELL = -1;
const NO_SOCKET = -1;
/** Looks at one socket, whatever they found, after which all are looked at. */
const LOOKS_AT_ONE = 2;
/** A pause after which an empty socket is no reason to go: who looks seldom would find the others late. */
const PAUSE_MICROSECONDS = 50;

interface UdpLoopOptions extends Pick<PacketLoopOptions, 'engine'> {
  /** How long the loop polls after the last packet before it sleeps. */
  readonly spinUs: number;
}

/** One engine over UDP sockets on one thread: takes packets in, lets the engine send, sleeps when nothing happens. */
export class UdpLoop implements PacketLoop {
  readonly engine: TransportEngine;
  /** Rung by other threads to end a sleep. */
  readonly doorbell: Doorbell = Doorbell.create();
  /** Peers whose ports the kernel says are closed, for the owner to take out. */
  readonly refused: number[] = [];
  readonly refusal = 'its UDP ports are closed';
  readonly #io: UdpPacketIo;
  readonly #receiver: DatagramReceiver;
  readonly #readiness = new ReadinessSet();
  readonly #turns: EngineTurns;
  /** Descriptors by socket number; -1 for a number that is free. */
  readonly #descriptors: number[] = [];
  readonly #peers: number[] = [];
  readonly #paths = new Map<number, readonly PathSocket[]>();
  #sockets = 0;
  /** The socket that the last single packets came from. Looking there first saves asking which socket has packets. */
  #likely = NO_SOCKET;
  #looks = 0;
  #lastLook = 0;

  constructor({ engine, spinUs }: UdpLoopOptions) {
    const arena = new NativeBlock(RECEIVE_ARENA_BYTES);
    this.#io = new UdpPacketIo(arena, (peer) => this.refused.push(peer));
    this.#readiness.add(this.doorbell.fd, DOORBELL);
    this.engine = engine(this.#io);
    this.#turns = new EngineTurns(this.engine, spinUs);
    this.#receiver = new DatagramReceiver(arena, this.engine);
  }

  get failures(): Readonly<Record<keyof SendFailures, number>> {
    return this.#io.failures;
  }

  addPeer(peer: number, { ends, segments }: PathEndpoint): void {
    const paths = ends.map((fd) => ({ fd, peer, segments }));
    this.#paths.set(peer, paths);
    this.#io.setPeer(peer, paths);
    for (const fd of ends) {
      const free = this.#descriptors.indexOf(-1);
      const number = free === -1 ? this.#descriptors.length : free;
      this.#descriptors[number] = fd;
      this.#peers[number] = peer;
      this.#sockets += 1;
      this.#readiness.add(fd, number);
    }
  }

  removePeer(peer: number): void {
    this.#io.removePeer(peer);
    this.#likely = NO_SOCKET;
    for (const { fd } of this.#paths.get(peer) ?? []) {
      this.#readiness.remove(fd);
      closeDescriptor(fd);
      const number = this.#descriptors.indexOf(fd);
      if (number === -1) continue;
      this.#descriptors[number] = -1;
      this.#sockets -= 1;
    }
    this.#paths.delete(peer);
    // The number may soon be another peer's.
    for (let at = this.refused.length - 1; at >= 0; at--) if (this.refused[at] === peer) this.refused.splice(at, 1);
  }

  /** Hot path. Takes in what has arrived, sends what is due. False if there was nothing to do. */
  step(): boolean {
    const isBusy = this.#sockets === 1 && this.#descriptors.length === 1 ? this.#drain(0) : this.#drainReady();
    const now = microseconds();
    this.#lastLook = now;
    return this.#turns.take(now, isBusy);
  }

  /** True once so little happens that the thread had better sleep. */
  get isIdle(): boolean {
    return this.#turns.isIdle;
  }

  /** Sleeps until a packet comes, the engine's next deadline, the doorbell, or `most` is over. */
  sleep(most?: number): void {
    const time = this.#turns.sleepTime(most);
    if (time <= 0) return;
    this.#readiness.sleep(time);
    // Any socket may have ended it.
    this.#lastLook = 0;
    // A doorbell that stays rung would end every later sleep at once; a loop with one socket never looks at it.
    this.doorbell.silence();
  }

  /** Must be called before requests are posted: the engine then knows what time it is, and the loop polls for a while. */
  touch(): void {
    this.#turns.touch();
  }

  [Symbol.dispose](): void {
    for (const peer of this.#paths.keys()) this.removePeer(peer);
    this.#readiness[Symbol.dispose]();
    this.doorbell[Symbol.dispose]();
  }

  #drainReady(): boolean {
    if (this.#likely !== NO_SOCKET && this.#looks < LOOKS_AT_ONE) {
      this.#looks += 1;
      if (this.#drain(this.#likely)) return true;
      if (microseconds() - this.#lastLook < PAUSE_MICROSECONDS) return false;
    }
    this.#looks = 0;
    const ready = this.#readiness.poll();
    let isBusy = false;
    let last = NO_SOCKET;
    let sockets = 0;
    for (let index = 0; index < ready; index += 1) {
      const number = this.#readiness.numberAt(index);
      if (number === DOORBELL) continue;
      last = number;
      sockets += 1;
      if (this.#drain(number)) isBusy = true;
    }
    // All sockets have packets under load, and one question finds many of them.
    if (last !== NO_SOCKET) this.#likely = sockets === 1 && this.#receiver.batch.count === 1 ? last : NO_SOCKET;
    return isBusy;
  }

  #drain(number: number): boolean {
    const fd = this.#descriptors[number]!;
    const peer = this.#peers[number]!;
    const { batch } = this.#receiver;
    for (let round = 0; round < BATCHES_PER_ROUND; round += 1) {
      const hasMore = this.#receiver.receive(fd, peer);
      if (this.#receiver.isRefused) this.refused.push(peer);
      if (batch.count === 0) return round > 0;
      this.engine.onPackets(batch, microseconds());
      if (!hasMore) break;
    }
    return true;
  }
}
