// Packets over queue pairs of an RDMA device: many queue pairs are many paths. The engines make them; this side of the file
// meets the peer.
import { randomInt } from 'node:crypto';
import { Block } from '../../../abi/layout.ts';
import { WeftlineError } from '../../../core/errors.ts';
import { log } from '../../../core/log.ts';
import type { ControlChannel, ControlFrame } from '../../../meeting/control-channel.ts';
import { integerField, protocolError } from '../../../meeting/frames.ts';
import { Doorbell, ReadinessSet } from '../../../native/readiness.ts';
import type { VerbsEvent } from '../../../native/verbs/context.ts';
import { AddressHandle, QueuePair, type QueuePairService } from '../../../native/verbs/queue-pair.ts';
import { packetSpinUs } from '../../../threads/spin-time.ts';
import { MAX_ENGINES } from '../../engine-commands.ts';
import type { TransportEngine } from '../../engine/transport-engine.ts';
import { PROBE_MARK, transportProbe } from '../../wire/packet-layout.ts';
import {
  type EndMaker,
  type EndsJoin,
  type EndsPlan,
  type EndsProbe,
  type EngineEnds,
  EngineTurns,
  type MadeEnds,
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
import { GONE, NOBODY, PathEnd, SETTLE_MICROSECONDS, type VerbsFailures } from './path-end.ts';
import { VerbsPacketIo } from './verbs-packet-io.ts';
import {
  countOf,
  type EndName,
  flowLabelOf,
  gidsOf,
  packetRails,
  type PortName,
  QUEUE_KEYS,
  readOffer,
  SEQUENCES,
  VerbsPort,
} from './verbs-port.ts';
import { MAX_UNDER_WAY, type RailEnd, VerbsRail } from './verbs-rail.ts';

/** How long a probe may take after the peer has sent it: probes cross within this where nothing is wrong. */
const PROBE_PATIENCE_MS = 500;
const MIN_PACKET_BYTES = 512;
const MAX_PACKET_BYTES = 65_472;
/**
 * Bytes of a message of RC, where the device repeats what is lost. A message of UC is lost with any of its parts, so it has
 * one by default.
 */
const RC_MESSAGE_BYTES = 16_384;

export const verbs: Readonly<Record<QueuePairService, PacketIoKind>> = {
  ud: verbsOver('ud'),
  uc: verbsOver('uc'),
  rc: verbsOver('rc'),
};

function verbsOver(service: QueuePairService): PacketIoKind {
  return {
    name: `verbs/${service}`,
    rails: (settings) => packetRails(settings).map(({ gid }) => gid.gid),
    openLoop: (options) => {
      const { transportSegmentBytes } = options.settings;
      const packetBytes = (mtu: number): number => packetSize(service, mtu, transportSegmentBytes);
      return new VerbsLoop({ ...options, service, packetBytes });
    },
    openPaths: (channel, plan, options) => VerbsPaths.open(channel, plan, options),
    countsOf: (offer) => {
      const lanes = lanesOf(offer);
      return { paths: lanes.reduce<number>((sum, lane) => sum + countOf(lane), 0), rails: gidsOf(lanes[0]).length };
    },
  };
}

/** A datagram is one packet of the network; messages of connections are cut by the device. */
function packetSize(service: QueuePairService, mtu: number, wanted: number): number {
  const most = service === 'ud' ? mtu : MAX_PACKET_BYTES;
  const usual = service === 'rc' ? RC_MESSAGE_BYTES : mtu;
  return Math.floor(Math.min(most, wanted === 0 ? usual : Math.max(wanted, MIN_PACKET_BYTES)) / 8) * 8;
}

class VerbsPaths implements PeerPaths {
  readonly cutsSends = false;
  readonly count: number;
  readonly offer: ControlFrame;
  readonly #channel: ControlChannel;
  readonly #engines: readonly EngineEnds[];
  /** Ends in the order of lanes. */
  readonly #made: readonly MadeEnds[];
  rails: readonly RailPair[] = [];
  /** Lanes whose ends belong to the engines' connections. */
  readonly #given = new Set<number>();

  static async open(channel: ControlChannel, plan: PathPlan, { engines }: PathOptions): Promise<VerbsPaths> {
    const used = engines.slice(0, plan.lanes);
    const ends = { count: plan.paths, rails: Math.max(1, plan.rails.length) };
    const opened = await Promise.allSettled(used.map((engine) => engine.open(ends)));
    const made = opened.flatMap((end) => (end.status === 'fulfilled' ? [end.value] : []));
    const failed = opened.find((end) => end.status === 'rejected');
    if (failed === undefined) return new VerbsPaths(channel, used, made);
    for (const [lane, end] of opened.entries()) {
      if (end.status === 'fulfilled') closeLater(used[lane] as EngineEnds, end.value);
    }
    throw failed.reason;
  }

  private constructor(channel: ControlChannel, engines: readonly EngineEnds[], made: readonly MadeEnds[]) {
    this.#channel = channel;
    this.#engines = engines;
    this.#made = made;
    this.count = made.reduce((sum, { ends }) => sum + ends.length, 0);
    this.offer = { lanes: made.map(({ offer }) => offer) };
  }

  async connect(peerOffer: ControlFrame): Promise<void> {
    const lanes = lanesOf(peerOffer);
    if (lanes.length !== this.#made.length) throw protocolError(`${lanes.length} lanes for ${this.#made.length}`);
    const own = gidsOf(this.#made[0]?.offer);
    for (const lane of lanes) {
      const count = gidsOf(lane).length;
      if (count !== own.length) throw protocolError(`${count} rails where ${own.length} were agreed on`);
    }
    const theirs = gidsOf(lanes[0]);
    this.rails = own.map((gid, rail) => ({ local: grouped(gid), remote: grouped(theirs[rail] as string) }));
    await Promise.all(
      this.#made.map(({ ends }, lane) => (this.#engines[lane] as EngineEnds).connect({ ends, offer: lanes[lane] })),
    );
  }

  /** Each rail has its own size; the smallest of those that pass packets at all goes for all. */
  async agree(secret: bigint): Promise<number> {
    const channel = this.#channel;
    const engine = this.#engines[0] as EngineEnds;
    const probes = this.rails.map((_, rail) => ({ ends: [(this.#made[0] as MadeEnds).ends[rail] as number], secret }));
    const sent = await Promise.all(probes.map((probe) => engine.probe(probe)));
    channel.send({ sent });
    const expected = this.#sizesOf(await channel.receive('probes'), 'sent');
    const arrived = await waitForProbes(
      engine,
      probes,
      sent.map((bytes, rail) => Math.min(bytes, expected[rail]!)),
    );
    channel.send({ arrived });
    const reached = this.#sizesOf(await channel.receive('count of probes'), 'arrived');
    const sizes = sent.map((bytes, rail) => Math.floor(Math.min(bytes, arrived[rail]!, reached[rail]!) / 8) * 8);
    const passing = sizes.filter((bytes) => bytes >= MIN_PACKET_BYTES);
    if (passing.length > 0) return Math.min(...passing);
    const { local, remote } = this.rails[0] as RailPair;
    throw new WeftlineError(
      'WL_TIMEOUT',
      `Packets do not pass between the RDMA ports ${local} of this host and ${remote} of ${channel.peer}, though TCP does: a firewall may drop UDP port 4791, or the networks of the two ports are not joined (of ${expected[0]} bytes at most, ${arrived[0]} arrived here and ${reached[0]} there)`,
      { details: { local, remote, peer: channel.peer, arrived: arrived[0], reached: reached[0] } },
    );
  }

  endpoint(lane: number): PathEndpoint {
    this.#given.add(lane);
    return { ends: (this.#made[lane] as MadeEnds).ends, rails: this.rails.length, segments: 1 };
  }

  /** One per rail. */
  #sizesOf(frame: ControlFrame, field: string): readonly number[] {
    const sizes = frame[field];
    const areGood = Array.isArray(sizes) && sizes.length === this.rails.length;
    if (areGood) return sizes.map((size) => integerField({ size }, 'size', MAX_PACKET_BYTES));
    throw protocolError(`a greeting whose ${field} does not say ${this.rails.length} sizes`);
  }

  [Symbol.dispose](): void {
    for (const [lane, made] of this.#made.entries()) {
      if (!this.#given.has(lane)) closeLater(this.#engines[lane] as EngineEnds, made);
    }
  }
}

/** An engine that has ended has closed them. */
function closeLater(engine: EngineEnds, { ends }: MadeEnds): void {
  void engine.close(ends).catch(() => {});
}

async function waitForProbes(
  engine: EngineEnds,
  probes: readonly EndsProbe[],
  expected: readonly number[],
): Promise<readonly number[]> {
  const end = performance.now() + PROBE_PATIENCE_MS;
  for (;;) {
    const arrived = await Promise.all(probes.map((probe) => engine.probed(probe)));
    if (arrived.every((bytes, rail) => bytes >= expected[rail]!) || performance.now() >= end) return arrived;
    await new Promise((resolve) => setTimeout(resolve, 1));
  }
}

/** What the peer says of each lane. Fails with WL_PROTOCOL. */
function lanesOf(frame: ControlFrame): readonly unknown[] {
  const { lanes } = frame;
  if (Array.isArray(lanes) && lanes.length >= 1 && lanes.length <= MAX_ENGINES) return lanes;
  throw protocolError('a greeting without queue pairs');
}

/** An address as eight groups of four digits. */
function grouped(gid: string): string {
  return gid.replaceAll(/(.{4})(?=.)/g, '$1:');
}

/** Batches taken from a port before the engine may answer. */
const BATCHES_PER_ROUND = 4;
const BATCH = 16;
const DOORBELL = 0;
/** Numbers of each rail: its completions have the number 2 * rail + 1, its events the one after that. */
const PER_RAIL = 2;
/** A device tells of its troubles at most this late to a loop that never sleeps. */
const EVENTS_MICROSECONDS = 100_000;
/** Queue pairs on their way out are looked at so often. */
const LEAVING_MICROSECONDS = 1000;

interface VerbsLoopOptions extends PacketLoopOptions {
  readonly service: QueuePairService;
  /** Bytes of a packet, as large as it may be over this port. */
  readonly packetBytes: (mtu: number) => number;
}

/** One engine over queue pairs on one thread: takes packets in, lets the engine send, sleeps when nothing happens. */
export class VerbsLoop implements PacketLoop {
  readonly engine: TransportEngine;
  /** Rung by other threads to end a sleep. */
  readonly doorbell: Doorbell = Doorbell.create();
  /** Peers all of whose queue pairs have failed for good. */
  readonly refused: number[] = [];
  readonly refusal = 'its queue pairs have failed';
  readonly ends: VerbsEnds;
  readonly failures: Readonly<Record<keyof VerbsFailures, number>>;
  readonly #ports: VerbsPort[] = [];
  readonly #rails: readonly VerbsRail[];
  readonly #io: VerbsPacketIo;
  readonly #readiness = new ReadinessSet();
  readonly #turns: EngineTurns;
  readonly #peers = new Map<number, readonly RailEnd[]>();
  #nextEvents = 0;
  #nextLeaving = 0;

  constructor({ engine, settings, service, packetBytes: bytesFor }: VerbsLoopOptions) {
    try {
      for (const rail of packetRails(settings)) this.#ports.push(new VerbsPort(rail, settings));
      const packetBytes = bytesFor(Math.min(...this.#ports.map(({ rail }) => rail.mtuBytes)));
      const failures: VerbsFailures = { queuePairs: 0, unsent: 0, broken: 0, strangers: 0 };
      this.failures = failures;
      const options = {
        service,
        packetBytes,
        relaxedOrdering: settings.rdmaRelaxedOrdering,
        failures,
        onFailed: (end: PathEnd, device: string) => this.#noteFailed(end, device),
        onEarly: (end: PathEnd, at: number, bytes: number) => this.ends.noteProbe(end, at, bytes),
      };
      this.#rails = this.#ports.map((port) => new VerbsRail(port, options));
      this.#io = new VerbsPacketIo(this.#rails, failures);
      this.ends = new VerbsEnds({
        rails: this.#rails,
        io: this.#io,
        take: () => this.#takeIn(),
        drain: (rail) => this.#drain(rail, rail.memory.receives / BATCH + 1),
      });
      this.#readiness.add(this.doorbell.fd, DOORBELL);
      for (const [index, { port, events }] of this.#rails.entries()) {
        this.#readiness.add(port.channel.descriptor, PER_RAIL * index + 1);
        this.#readiness.add(events.descriptor, PER_RAIL * index + 2);
      }
      this.engine = engine(this.#io);
      this.#turns = new EngineTurns(this.engine, packetSpinUs(settings));
    } catch (error) {
      this.#close();
      throw error;
    }
  }

  addPeer(peer: number, { ends }: PathEndpoint): void {
    const taken = this.ends.take(ends, peer);
    this.#peers.set(peer, taken);
    this.#io.setPeer(peer, taken);
  }

  removePeer(peer: number): void {
    this.#io.setPeer(peer, undefined);
    this.ends.remove(this.#peers.get(peer) ?? []);
    this.#peers.delete(peer);
    // The number may soon be another peer's.
    for (let at = this.refused.length - 1; at >= 0; at -= 1) if (this.refused[at] === peer) this.refused.splice(at, 1);
  }

  step(): boolean {
    const isBusy = this.#takeIn();
    const now = microseconds();
    if (!isBusy) this.#lookAround(now);
    if (this.ends.leaving.count > 0 && now >= this.#nextLeaving) {
      this.#nextLeaving = now + LEAVING_MICROSECONDS;
      for (const rail of this.#rails) this.#takeEvents(rail);
      this.ends.leaving.advance(now);
    }
    return this.#turns.take(now, isBusy);
  }

  get isIdle(): boolean {
    return this.#turns.isIdle;
  }

  sleep(most?: number): void {
    const longest = this.ends.leaving.count > 0 ? Math.min(most ?? LEAVING_MICROSECONDS, LEAVING_MICROSECONDS) : most;
    const time = this.#turns.sleepTime(longest);
    if (time <= 0 || this.#armFindsWork()) return;
    this.#readiness.sleep(time);
    const ready = this.#readiness.poll();
    for (let index = 0; index < ready; index += 1) {
      const number = this.#readiness.numberAt(index);
      if (number === DOORBELL) {
        this.doorbell.silence();
        continue;
      }
      const rail = this.#rails[(number - 1) >>> 1] as VerbsRail;
      if (number % PER_RAIL === 1) rail.port.channel.takeEvents();
      else this.#takeEvents(rail);
    }
  }

  touch(): void {
    this.#turns.touch();
  }

  [Symbol.dispose](): void {
    try {
      for (const peer of this.#peers.keys()) this.removePeer(peer);
      this.ends.leaving.finish(microseconds);
    } finally {
      // Memory that the device may write to goes with this thread.
      this.#close();
    }
  }

  #close(): void {
    this.#readiness[Symbol.dispose]();
    this.doorbell[Symbol.dispose]();
    for (const port of this.#ports) port[Symbol.dispose]();
  }

  /** Asks to be woken by completions. Takes those that came before, which wake nobody, and returns whether there were any. */
  #armFindsWork(): boolean {
    let isFreed = false;
    for (const rail of this.#rails) {
      rail.receives.arm();
      // Completions of sends matter to a sleeper only while it waits for them.
      if (!rail.isFull) continue;
      rail.sends.arm();
      if (rail.reap() > 0) isFreed = true;
    }
    const isBusy = this.#takeIn();
    if (isBusy || isFreed) this.#turns.take(microseconds(), true);
    return isBusy || isFreed;
  }

  #takeIn(): boolean {
    let isBusy = false;
    for (const rail of this.#rails) isBusy = this.#drain(rail, BATCHES_PER_ROUND) || isBusy;
    return isBusy;
  }

  #drain({ receiver }: VerbsRail, rounds: number): boolean {
    let isBusy = false;
    for (let round = 0; round < rounds && receiver.receive(); round += 1) {
      isBusy = true;
      if (receiver.batch.count > 0) this.engine.onPackets(receiver.batch, microseconds());
      receiver.release();
    }
    return isBusy;
  }

  /** What a loop that has nothing to receive looks at: failed sends, and now and then the devices. */
  #lookAround(now: number): void {
    for (const rail of this.#rails) rail.reapSome();
    if (now < this.#nextEvents) return;
    this.#nextEvents = now + EVENTS_MICROSECONDS;
    for (const rail of this.#rails) {
      this.#takeEvents(rail);
      rail.restartFailed();
    }
  }

  #takeEvents(rail: VerbsRail): void {
    for (let event = rail.events.take(); event !== undefined; event = rail.events.take()) noteEvent(rail, event);
  }

  #noteFailed({ peer, queuePair }: PathEnd, device: string): void {
    log('transport', 'info', `${device}: queue pair ${queuePair.number} has failed`);
    if (peer <= NOBODY) return;
    const isLost = this.#peers.get(peer)?.every((end) => end.isFailed && !end.rail.canRestart) === true;
    if (isLost) this.refused.push(peer);
  }
}

/** A failed device, or queue pair, ends paths; the others go on. */
function noteEvent(rail: VerbsRail, { meaning, name, queuePair }: VerbsEvent): void {
  const end = queuePair === undefined ? undefined : rail.findEnd(queuePair);
  if (end !== undefined && name === 'IBV_EVENT_QP_LAST_WQE_REACHED') {
    end.hasTakenLast = true;
    if (end.peer === GONE) return;
  }
  log('transport', name === 'IBV_EVENT_PORT_ACTIVE' ? 'info' : 'warn', meaning);
  if (name === 'IBV_EVENT_DEVICE_FATAL') rail.end();
  if (end !== undefined && name.startsWith('IBV_EVENT_QP_')) rail.fail(end);
}

/** Slots of a queue pair without shared receives. */
const OWN_RECEIVES = 128;
/** Header and payload. */
const ELEMENTS = 2;
/** The code of 41 ms: a receiver without memory for so long, six times over, is no longer a receiver. */
const RECEIVER_NOT_READY_TIMER = 24;
/** Probes of each size, so that a lost packet does not decide. */
const PROBE_COPIES = 3;

interface EndsParts {
  /** The engine's ports; path p goes by rail p modulo as many of them as a connection uses. */
  readonly rails: readonly VerbsRail[];
  readonly io: VerbsPacketIo;
  /** Takes in what has arrived at all ports, as far as the engine may be kept busy by that. */
  readonly take: () => void;
  /** Takes in all that has arrived at one. */
  readonly drain: (rail: VerbsRail) => void;
}

/** The queue pairs of an engine: made before the peer is known, joined with the peer's, probed, closed. */
class VerbsEnds implements EndMaker {
  readonly #parts: EndsParts;
  readonly #ends: (RailEnd | undefined)[] = [];
  readonly leaving: LeavingEnds;

  constructor(parts: EndsParts) {
    this.#parts = parts;
    this.leaving = new LeavingEnds(parts.drain, ({ number }) => {
      this.#ends[number] = undefined;
    });
  }

  open({ count, rails }: EndsPlan): MadeEnds {
    const used = this.#railsOf(rails);
    const ends: RailEnd[] = [];
    try {
      while (ends.length < count) ends.push(this.#make(used[ends.length % rails] as VerbsRail));
    } catch (error) {
      this.remove(ends);
      throw error;
    }
    const named = ends.map(({ queuePair, queueKey, firstSequence }) => ({
      number: queuePair.number,
      queueKey,
      firstSequence,
    }));
    const offer = { rails: used.map(({ port }) => port.name), ends: named };
    return { ends: ends.map(({ number }) => number), offer };
  }

  connect({ ends, offer }: EndsJoin): void {
    const { rails, ends: remotes } = readOffer(offer, ends.length);
    for (const [path, number] of ends.entries()) {
      this.#join(this.get(number), rails[path % rails.length] as PortName, remotes[path] as EndName);
    }
  }

  probe({ ends, secret }: EndsProbe): number {
    const { io } = this.#parts;
    const end = this.get(ends[0] as number);
    const { packetBytes } = end.rail.memory;
    const sizes = [packetBytes, ...[2048, 1024].filter((bytes) => bytes < packetBytes)];
    for (const bytes of sizes) {
      const packet = new Uint8Array(bytes);
      const block = Block.over(transportProbe, packet);
      block.set('mark', PROBE_MARK);
      block.set('bytes', bytes);
      block.set('secretLow', Number(secret & 0xffff_ffffn));
      block.set('secretHigh', Number(secret >> 32n));
      for (let copy = 0; copy < PROBE_COPIES; copy += 1) io.sendBytes(end, packet);
    }
    io.flush();
    return packetBytes;
  }

  probed({ ends, secret }: EndsProbe): number {
    this.#parts.take();
    const end = this.get(ends[0] as number);
    return end.probedSecret === secret ? end.probed : 0;
  }

  close(ends: readonly number[]): void {
    const made = ends.map((number) => this.#ends[number]);
    this.remove(made.filter((end): end is RailEnd => end !== undefined && end.peer === NOBODY));
  }

  /** Gives ends to a peer of the engine. */
  take(ends: readonly number[], peer: number): readonly RailEnd[] {
    const taken = ends.map((number) => this.get(number));
    for (const end of taken) end.peer = peer;
    return taken;
  }

  /** Closes ends: what they have to send leaves, and the loop goes on meanwhile. */
  remove(ends: readonly RailEnd[]): void {
    const now = microseconds();
    for (const end of ends) {
      if (end.peer === GONE) continue;
      end.peer = GONE;
      this.leaving.add(end, now);
    }
  }

  /** A packet that came before the end had a peer: a probe, or nothing. */
  noteProbe(end: PathEnd, at: number, bytes: number): void {
    if (bytes < transportProbe.size) return;
    const { received } = end.rail.memory;
    const probe = Block.over(transportProbe, received.slice(at, at + transportProbe.size));
    if (probe.get('mark') !== PROBE_MARK || probe.get('bytes') !== bytes || bytes < end.probed) return;
    end.probed = bytes;
    end.probedSecret = (BigInt(probe.get('secretHigh')) << 32n) | BigInt(probe.get('secretLow'));
  }

  get(number: number): RailEnd {
    const end = this.#ends[number];
    if (end !== undefined) return end;
    throw new WeftlineError('WL_INTERNAL', `The engine has made no end of a path with the number ${number}`);
  }

  #railsOf(count: number): readonly VerbsRail[] {
    const { rails } = this.#parts;
    if (count >= 1 && count <= rails.length) return rails.slice(0, count);
    throw new WeftlineError(
      'WL_UNSUPPORTED',
      `A connection needs ${count} RDMA ports, but this engine has opened ${rails.length} (${rails.map(({ port }) => port.rail.name).join(', ')}): the others have gone down meanwhile`,
    );
  }

  #make(rail: VerbsRail): RailEnd {
    const { port, service, receiver, shared, sends, receives } = rail;
    const queuePair = new QueuePair(port.domain, {
      service,
      sendCompletions: sends,
      receiveCompletions: receives,
      maxSends: MAX_UNDER_WAY,
      elements: ELEMENTS,
      ...(shared === undefined ? { maxReceives: OWN_RECEIVES } : { sharedReceives: shared }),
    });
    const free = this.#ends.indexOf(undefined);
    const number = free === -1 ? this.#ends.length : free;
    const names = { number, queueKey: randomInt(1, QUEUE_KEYS), firstSequence: randomInt(SEQUENCES) };
    const end = new PathEnd(rail, queuePair, names);
    try {
      queuePair.initialize(port.rail.port, {}, end.queueKey);
      if (!receiver.equip(end, OWN_RECEIVES)) {
        throw new WeftlineError(
          'WL_CAPACITY',
          `The memory of an engine for packets has no room for another queue pair (${service}, ${port.rail.name}), which needs receives of its own: use fewer paths (WEFTLINE_TRANSPORT_PATHS) or connections, or WEFTLINE_RDMA_SERVICE=ud`,
        );
      }
    } catch (error) {
      queuePair.close();
      throw error;
    }
    this.#ends[number] = end;
    rail.addEnd(end);
    return end;
  }

  #join(end: RailEnd, peer: PortName, remote: EndName): void {
    const { queuePair, firstSequence } = end;
    const { port, service } = end.rail;
    const path = port.pathTo(peer, flowLabelOf(queuePair.number, remote.number));
    end.remoteNumber = remote.number;
    end.remoteQueueKey = remote.queueKey;
    if (service === 'ud') {
      end.handle = new AddressHandle(port.domain, path);
      queuePair.open(firstSequence);
      return;
    }
    const mtu = Math.min(port.rail.mtuBytes, peer.mtu);
    queuePair.connect(
      { number: remote.number, firstSequence: remote.firstSequence, path },
      { mtu, firstSequence, receiverNotReadyTimer: RECEIVER_NOT_READY_TIMER },
    );
  }
}

// Queue pairs on their way out: what they had to send leaves, what the device holds of receives comes back, then they are
// destroyed. The loop goes on meanwhile.

/** A failed queue pair gives back its receives at once. Devices without an event for that of shared ones get this long. */
const FLUSH_MICROSECONDS = 100_000;

interface Leaving {
  readonly end: RailEnd;
  /** Sending what it has; then failed, and flushing. */
  isFlushing: boolean;
  /** Begin of the stage. */
  since: number;
}

export class LeavingEnds {
  readonly #drain: (rail: VerbsRail) => void;
  readonly #onClosed: (end: RailEnd) => void;
  #leaving: Leaving[] = [];

  /**
   * `drain` takes in all that has arrived at a port. `onClosed` hears of ends whose queue pairs are destroyed.
   */
  constructor(drain: (rail: VerbsRail) => void, onClosed: (end: RailEnd) => void) {
    this.#drain = drain;
    this.#onClosed = onClosed;
  }

  get count(): number {
    return this.#leaving.length;
  }

  /** Nobody sends over it any more. */
  add(end: RailEnd, now: number): void {
    this.#leaving.push({ end, isFlushing: false, since: now });
  }

  /** Takes each as far as it has come. */
  advance(now: number): void {
    if (this.#leaving.length === 0) return;
    const leaving = this.#leaving;
    this.#leaving = leaving.filter((one) => !this.#isReady(one, now));
    for (const one of leaving) if (!this.#leaving.includes(one)) this.#close(one.end);
  }

  /** Closes all, when what they had to send has left or had its time. Receives are not waited for: they go with the device. */
  finish(clock: () => number): void {
    const until = clock() + SETTLE_MICROSECONDS;
    for (const { end } of this.#leaving) {
      while (!end.isFailed && end.underWay > 0 && clock() < until) end.rail.reapSome();
      end.rail.closeEnd(end);
      this.#onClosed(end);
    }
    this.#leaving = [];
  }

  #isReady(one: Leaving, now: number): boolean {
    const { end } = one;
    const { rail } = end;
    rail.reapSome();
    if (rail.findEnd(end.queuePair.number) !== end) return true;
    if (!one.isFlushing) {
      if (!end.isFailed && end.underWay > 0 && now - one.since < SETTLE_MICROSECONDS) return false;
      one.isFlushing = true;
      one.since = now;
      try {
        end.queuePair.fail();
      } catch {
        // A device that is gone flushes nothing.
        return true;
      }
      return false;
    }
    if (now - one.since >= FLUSH_MICROSECONDS) return true;
    const hasReceives = rail.shared === undefined ? !rail.receiver.hasGivenBack(end) : !end.hasTakenLast;
    return end.underWay === 0 && !hasReceives;
  }

  #close(end: RailEnd): void {
    const { rail } = end;
    // Libraries drop completions with the queue pair that they are of, and with them the memory they stand for.
    this.#drain(rail);
    rail.closeEnd(end);
    // The lists of drivers that keep them come first, before the memory goes to others.
    this.#drain(rail);
    rail.receiver.strip(end);
    this.#onClosed(end);
  }
}
