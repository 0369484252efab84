// One engine over queue pairs on one thread: takes packets in, lets the engine send, sleeps when nothing happens.
import { log } from '../../../core/log.ts';
import { Doorbell, ReadinessSet } from '../../../native/readiness.ts';
import { AsyncEvents } from '../../../native/verbs/async-events.ts';
import { CompletionQueue } from '../../../native/verbs/completion-queue.ts';
import type { QueuePairService } from '../../../native/verbs/queue-pair.ts';
import { SharedReceiveQueue } from '../../../native/verbs/shared-receive-queue.ts';
import { packetSpinUs } from '../../../threads/spin-time.ts';
import type { TransportEngine } from '../../engine/transport-engine.ts';
import { EngineTurns, microseconds } from '../engine-turns.ts';
import type { EndMaker, PacketLoop, PacketLoopOptions, PathEndpoint } from '../packet-io-kind.ts';
import { PacketMemory } from './packet-memory.ts';
import { PacketReceiver } from './packet-receiver.ts';
import { NOBODY, type PathEnd } from './path-end.ts';
import { VerbsEnds } from './verbs-ends.ts';
import { MAX_UNDER_WAY, type VerbsFailures, VerbsPacketIo } from './verbs-packet-io.ts';
import { VerbsPort } from './verbs-port.ts';

/** Batches taken before the engine may answer. */
const BATCHES_PER_ROUND = 4;
const [DOORBELL, COMPLETIONS, EVENTS] = [1, 2, 3];
/** Memory for packets that have come and were not looked at yet: of all queue pairs together, or some for each. */
const SHARED_BYTES = 8_388_608;
const OWN_BYTES = 33_554_432;
const MIN_RECEIVES = 128;
const MAX_RECEIVES = 8192;
/** A device tells of its troubles at most this late to a loop that never sleeps. */
const EVENTS_MICROSECONDS = 100_000;

export interface VerbsLoopOptions extends PacketLoopOptions {
  readonly service: QueuePairService;
  /** Of a packet, as large as it may be over this port. */
  readonly packetBytes: (mtu: number) => number;
}

export class VerbsLoop implements PacketLoop {
  readonly engine: TransportEngine;
  /** Rung by other threads to end a sleep. */
  readonly doorbell: Doorbell = Doorbell.create();
  /** Peers all of whose queue pairs have failed. */
  readonly refused: number[] = [];
  readonly refusal = 'its queue pairs have failed';
  readonly ends: EndMaker;
  readonly #ends: VerbsEnds;
  readonly #port: VerbsPort;
  readonly #io: VerbsPacketIo;
  readonly #receiver: PacketReceiver;
  readonly #receives: CompletionQueue;
  readonly #sends: CompletionQueue;
  readonly #events: AsyncEvents;
  readonly #readiness = new ReadinessSet();
  readonly #turns: EngineTurns;
  readonly #peers = new Map<number, readonly PathEnd[]>();
  #nextEvents = 0;

  constructor({ engine, settings, service, packetBytes }: VerbsLoopOptions) {
    this.#port = new VerbsPort(settings);
    try {
      const { context, domain, channel, rail } = this.#port;
      const bytes = packetBytes(rail.mtuBytes);
      // After a message of which the end was lost, rxe takes nothing more over a queue pair of UC with shared receives.
      const isShared = context.attributes.maxSrq > 0 && service !== 'uc';
      const receives = receiveCount(bytes, isShared ? context.attributes.maxSrqWr : undefined);
      const memory = new PacketMemory(domain, { packetBytes: bytes, receives, smallSlots: MAX_UNDER_WAY });
      this.#sends = new CompletionQueue(context, 2 * MAX_UNDER_WAY, channel);
      this.#receives = new CompletionQueue(context, 2 * receives, channel);
      this.#events = new AsyncEvents(context);
      const areDatagrams = service === 'ud';
      const size = { depth: receives, pieces: areDatagrams ? 2 : 1 };
      const shared = isShared ? new SharedReceiveQueue(domain, size) : undefined;
      this.#io = new VerbsPacketIo(this.#port, memory, this.#sends, settings.rdmaRelaxedOrdering, (end) =>
        this.#noteFailed(end),
      );
      this.#receiver = new PacketReceiver({
        completions: this.#receives,
        memory,
        shared,
        areDatagrams,
        failures: this.#io.failures,
        findEnd: (queuePair) => this.#io.findEnd(queuePair),
        onEarly: (end, at, length) => this.#ends.noteProbe(end, at, length),
      });
      this.#ends = new VerbsEnds({
        service,
        port: this.#port,
        io: this.#io,
        receiver: this.#receiver,
        sendCompletions: this.#sends,
        receiveCompletions: this.#receives,
        shared,
        drain: () => this.#drain(),
      });
      this.ends = this.#ends;
      this.#readiness.add(this.doorbell.fd, DOORBELL);
      this.#readiness.add(channel.descriptor, COMPLETIONS);
      this.#readiness.add(this.#events.descriptor, EVENTS);
      this.engine = engine(this.#io);
      this.#turns = new EngineTurns(this.engine, packetSpinUs(settings));
    } catch (error) {
      this.#close();
      throw error;
    }
  }

  get failures(): Readonly<Record<keyof VerbsFailures, number>> {
    return this.#io.failures;
  }

  addPeer(peer: number, { ends }: PathEndpoint): void {
    const taken = this.#ends.take(ends, peer);
    this.#peers.set(peer, taken);
    this.#io.setPeer(peer, taken);
  }

  removePeer(peer: number): void {
    this.#io.setPeer(peer, undefined);
    this.#ends.remove(this.#peers.get(peer) ?? []);
    this.#peers.delete(peer);
    // The number may soon be another peer's.
    for (let at = this.refused.length - 1; at >= 0; at -= 1) if (this.refused[at] === peer) this.refused.splice(at, 1);
  }

  step(): boolean {
    const isBusy = this.#drain();
    const now = microseconds();
    if (!isBusy) this.#lookAround(now);
    return this.#turns.take(now, isBusy);
  }

  get isIdle(): boolean {
    return this.#turns.isIdle;
  }

  sleep(most?: number): void {
    const time = this.#turns.sleepTime(most);
    if (time <= 0) return;
    this.#receives.arm();
    // Completions of sends matter to a sleeper only while it waits for them.
    if (this.#io.isFull) this.#sends.arm();
    // What came before the arming rings nobody.
    if (this.#drain()) {
      this.#turns.take(microseconds(), true);
      return;
    }
    this.#readiness.sleep(time);
    const ready = this.#readiness.poll();
    for (let index = 0; index < ready; index += 1) {
      const number = this.#readiness.numberAt(index);
      if (number === DOORBELL) this.doorbell.silence();
      else if (number === COMPLETIONS) this.#port.channel.takeEvents();
      else this.#takeEvents();
    }
  }

  touch(): void {
    this.#turns.touch();
  }

  [Symbol.dispose](): void {
    try {
      for (const peer of this.#peers.keys()) this.removePeer(peer);
    } finally {
      // Memory that the device may write to goes with this thread.
      this.#close();
    }
  }

  #close(): void {
    this.#readiness[Symbol.dispose]();
    this.doorbell[Symbol.dispose]();
    this.#port[Symbol.dispose]();
  }

  #drain(): boolean {
    const receiver = this.#receiver;
    let isBusy = false;
    for (let round = 0; round < BATCHES_PER_ROUND && receiver.receive(); round += 1) {
      isBusy = true;
      if (receiver.batch.count > 0) this.engine.onPackets(receiver.batch, microseconds());
      receiver.release();
    }
    return isBusy;
  }

  /** What a loop that has nothing to receive looks at: failed sends, and now and then the device. */
  #lookAround(now: number): void {
    this.#io.reapSome();
    if (now < this.#nextEvents) return;
    this.#nextEvents = now + EVENTS_MICROSECONDS;
    this.#takeEvents();
  }

  #takeEvents(): void {
    for (let event = this.#events.take(); event !== undefined; event = this.#events.take()) {
      const { meaning, name, queuePair } = event;
      log('transport', name === 'IBV_EVENT_PORT_ACTIVE' ? 'info' : 'warn', meaning);
      if (name === 'IBV_EVENT_DEVICE_FATAL') for (const ends of this.#peers.values()) this.#failAll(ends);
      const end = queuePair === undefined ? undefined : this.#io.findEnd(queuePair);
      if (end !== undefined && name.startsWith('IBV_EVENT_QP_')) this.#io.fail(end);
    }
  }

  #failAll(ends: readonly PathEnd[]): void {
    for (const end of ends) this.#io.fail(end);
  }

  #noteFailed({ peer, queuePair }: PathEnd): void {
    log('transport', 'info', `${this.#port.rail.name}: queue pair ${queuePair.number} has failed`);
    if (peer === NOBODY) return;
    if (this.#peers.get(peer)?.every(({ isFailed }) => isFailed) === true) this.refused.push(peer);
  }
}

/** A power of two. `mostShared`: what a shared queue of the device takes; undefined where there is none. */
function receiveCount(packetBytes: number, mostShared: number | undefined): number {
  const bytes = mostShared === undefined ? OWN_BYTES : SHARED_BYTES;
  const wanted = Math.max(MIN_RECEIVES, Math.min(MAX_RECEIVES, bytes / packetBytes));
  return 2 ** Math.floor(Math.log2(Math.min(wanted, mostShared ?? wanted)));
}
