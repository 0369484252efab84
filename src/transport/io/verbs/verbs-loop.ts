// One engine over queue pairs on one thread: takes packets in, lets the engine send, sleeps when nothing happens.
import { randomInt } from 'node:crypto';
import { Block } from '../../../abi/layout.ts';
import { WeftlineError } from '../../../core/errors.ts';
import { log } from '../../../core/log.ts';
import { Doorbell, ReadinessSet } from '../../../native/readiness.ts';
import type { VerbsEvent } from '../../../native/verbs/context.ts';
import { AddressHandle, QueuePair, type QueuePairService } from '../../../native/verbs/queue-pair.ts';
import { packetSpinUs } from '../../../threads/spin-time.ts';
import type { TransportEngine } from '../../engine/transport-engine.ts';
import { PROBE_MARK, transportProbe } from '../../wire/packet-layout.ts';
import {
  type EndMaker,
  type EndsJoin,
  type EndsPlan,
  type EndsProbe,
  EngineTurns,
  type MadeEnds,
  microseconds,
  type PacketLoop,
  type PacketLoopOptions,
  type PathEndpoint,
} from '../packet-io-kind.ts';
import { GONE, NOBODY, PathEnd, SETTLE_MICROSECONDS, type VerbsFailures } from './path-end.ts';
import { VerbsPacketIo } from './verbs-packet-io.ts';
import {
  type EndName,
  flowLabelOf,
  packetRails,
  type PortName,
  QUEUE_KEYS,
  readOffer,
  SEQUENCES,
  VerbsPort,
} from './verbs-port.ts';
import { MAX_UNDER_WAY, type RailEnd, VerbsRail } from './verbs-rail.ts';

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

  /** Asks to be woken by completions. What came before that rings nobody: true if there was any, which is then taken. */
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
