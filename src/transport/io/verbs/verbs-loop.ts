// One engine over queue pairs on one thread: takes packets in, lets the engine send, sleeps when nothing happens.
import { log } from '../../../core/log.ts';
import { Doorbell, ReadinessSet } from '../../../native/readiness.ts';
import type { VerbsEvent } from '../../../native/verbs/context.ts';
import type { QueuePairService } from '../../../native/verbs/queue-pair.ts';
import { packetSpinUs } from '../../../threads/spin-time.ts';
import type { TransportEngine } from '../../engine/transport-engine.ts';
import {
  EngineTurns,
  microseconds,
  type PacketLoop,
  type PacketLoopOptions,
  type PathEndpoint,
} from '../packet-io-kind.ts';
import { GONE, NOBODY, type PathEnd, type VerbsFailures } from './path-end.ts';
import { VerbsEnds } from './verbs-ends.ts';
import { VerbsPacketIo } from './verbs-packet-io.ts';
import { packetRails, VerbsPort } from './verbs-port.ts';
import { type RailEnd, VerbsRail } from './verbs-rail.ts';

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
