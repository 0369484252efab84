// One port that an engine uses, and what belongs to its device: queues, packet memory, keys of regions, queue pairs.
import { log } from '../../../core/log.ts';
import { completionStatus, ROUTING_HEADER_BYTES } from '../../../native/verbs/c-structs.ts';
import { CompletionQueue } from '../../../native/verbs/completion-queue.ts';
import { AsyncEvents, type ProtectionDomain } from '../../../native/verbs/context.ts';
import { MemoryRegion } from '../../../native/verbs/memory-region.ts';
import { type QueuePairService, SharedReceiveQueue } from '../../../native/verbs/queue-pair.ts';
import type { ReceiveRing } from '../../../native/verbs/request-ring.ts';
import type { Region } from '../../engine/region.ts';
import { microseconds } from '../packet-io-kind.ts';
import { createReceivedBatch, type ReceivedBatch } from '../packet-io.ts';
import { GONE, NOBODY, PacketMemory, type PathEnd, SETTLE_MICROSECONDS, type VerbsFailures } from './path-end.ts';
import type { VerbsPort } from './verbs-port.ts';

// The queue pairs that read memory of a region at one moment, and how they come to an end of it.

/** What is done with the ends of a port. */
interface ReadingRail {
  /** Takes completions of sends, if there may be any. Returns how many there were. */
  reapSome(): number;
  fail(end: PathEnd): void;
  cutOff(end: PathEnd): void;
  closeEnd(end: PathEnd): void;
}

interface Reader {
  readonly end: PathEnd;
  /** Sequence behind the last packet of the region that the end had then. Later ones do not count. */
  readonly mark: number;
}

function isReading({ end, mark }: Reader): boolean {
  // Packets that a failed queue pair has refused are taken back, and with them what the mark says of those before.
  return end.isFailed ? end.underWay > 0 : end.isUnderWay(mark - 1);
}

export class RegionReaders {
  readonly #rail: ReadingRail;
  readonly #since: number;
  #readers: readonly Reader[];
  /** When those that were left were failed. */
  #failedAt: number | undefined;

  constructor(rail: ReadingRail, readers: readonly Reader[], now: number) {
    this.#rail = rail;
    this.#readers = readers;
    this.#since = now;
  }

  /**
   * To be asked until it is true. Queue pairs that go on reading for half a second are failed, and destroyed if the device
   * does not flush them for as long again.
   */
  areThrough(now: number): boolean {
    while (this.#rail.reapSome() > 0);
    this.#readers = this.#readers.filter(isReading);
    const readers = this.#readers;
    if (readers.length === 0) return true;
    if (this.#failedAt === undefined) {
      if (now - this.#since < SETTLE_MICROSECONDS) return false;
      this.#failedAt = now;
      for (const { end } of readers) this.#rail.cutOff(end);
      return false;
    }
    if (now - this.#failedAt < SETTLE_MICROSECONDS) return false;
    for (const { end } of readers) {
      this.#rail.fail(end);
      this.#rail.closeEnd(end);
    }
    this.#readers = [];
    return true;
  }
}

// The regions whose memory a device reads: their keys, and which queue pairs have packets under way from each.

/** A region as one device knows it. */
export class RegionUse {
  readonly registered: MemoryRegion;
  /** Sequence of each end behind the last packet that it was given from the region, by number of the end. */
  readonly #marks: (number | undefined)[] = [];

  constructor(registered: MemoryRegion) {
    this.registered = registered;
  }

  /** Hot path. The last packets that were given to the end are of this region. */
  mark(end: PathEnd): void {
    this.#marks[end.number] = end.nextSequence;
  }

  /** The ends among these that read the region. */
  readersAmong(ends: readonly PathEnd[]): Reader[] {
    const known = ends.flatMap((end) => {
      const mark = this.#marks[end.number];
      return mark === undefined ? [] : [{ end, mark }];
    });
    return known.filter(isReading);
  }

  /** The end is closed, and its number may soon be another's. */
  forget(end: PathEnd): void {
    if (end.number < this.#marks.length) this.#marks[end.number] = undefined;
  }
}

class RegionKeys {
  readonly #domain: ProtectionDomain;
  readonly #relaxedOrdering: boolean;
  readonly #uses = new Map<Region, RegionUse>();

  constructor(domain: ProtectionDomain, relaxedOrdering: boolean) {
    this.#domain = domain;
    this.#relaxedOrdering = relaxedOrdering;
  }

  /** Fails with WL_CAPACITY. Memory without a native address is not registered: its packets are copied. */
  add(region: Region): void {
    const { address, bytes } = region;
    if (address === 0 || bytes.length === 0) return;
    const access = { relaxedOrdering: this.#relaxedOrdering };
    this.#uses.set(region, new RegionUse(MemoryRegion.host(this.#domain, address, bytes.length, access)));
  }

  /** Hot path. Undefined if the region is not registered. */
  find(region: Region): RegionUse | undefined {
    return this.#uses.get(region);
  }

  /** Nothing reads it any more. */
  remove(region: Region): void {
    this.#uses.get(region)?.registered.close();
    this.#uses.delete(region);
  }

  forgetEnd(end: PathEnd): void {
    for (const use of this.#uses.values()) use.forget(end);
  }
}

/** Packets under way over all queue pairs of a port, each of which has room for so many. */
export const MAX_UNDER_WAY = 512;
/** Requests that one poll takes at most; a burst of them is one chain. */
export const BURST_SEGMENTS = 16;
/** Completions are looked for when so many packets are under way: then most polls find some. */
const REAP_FROM = 128;
/** A port that is full for so long holds up no other port: what it is given is lost. */
const STUCK_MICROSECONDS = 100_000;
/** Memory for packets that have come and were not looked at yet: of all queue pairs together, or some for each. */
const SHARED_BYTES = 8_388_608;
const OWN_BYTES = 33_554_432;
const MIN_RECEIVES = 128;
const MAX_RECEIVES = 8192;

interface RailOptions {
  readonly service: QueuePairService;
  readonly packetBytes: number;
  readonly relaxedOrdering: boolean;
  /** Failures of the engine. */
  readonly failures: VerbsFailures;
  /** Hears of queue pairs that have failed, and of the name of their device. */
  readonly onFailed: (end: PathEnd, device: string) => void;
  /** Hears of packets that came before the end had a peer; they may be probes. */
  readonly onEarly: (end: PathEnd, at: number, bytes: number) => void;
}

/** An end of a path over such a port. */
export type RailEnd = PathEnd<VerbsRail>;

export class VerbsRail {
  readonly port: VerbsPort;
  readonly service: QueuePairService;
  readonly memory: PacketMemory;
  readonly sends: CompletionQueue;
  readonly receives: CompletionQueue;
  /** Undefined where each queue pair has receives of its own. */
  readonly shared: SharedReceiveQueue | undefined;
  readonly receiver: PacketReceiver;
  readonly events: AsyncEvents;
  /** Packets that were handed to the device and may still be read. */
  underWay = 0;
  /** Regions whose memory the device may read. */
  readonly regions: RegionKeys;
  /** Ends by number of their queue pair. */
  readonly #ends = new Map<number, PathEnd>();
  readonly #failures: VerbsFailures;
  readonly #onFailed: RailOptions['onFailed'];
  /** Time since which there has been no room for a burst; 0 while there is. */
  #fullSince = 0;
  #isOver = false;

  constructor(port: VerbsPort, options: RailOptions) {
    const { service, packetBytes, failures, onEarly } = options;
    const { context, domain, channel } = port;
    this.port = port;
    this.service = service;
    this.#failures = failures;
    this.#onFailed = options.onFailed;
    // The device rxe, after a message of which the end was lost, takes nothing more over a queue pair of UC with shared receives.
    const isShared = context.attributes.maxSrq > 0 && service !== 'uc';
    const receives = receiveCount(packetBytes, isShared ? context.attributes.maxSrqWr : undefined);
    this.memory = new PacketMemory(domain, { packetBytes, receives, smallSlots: MAX_UNDER_WAY });
    this.sends = new CompletionQueue(context, 2 * MAX_UNDER_WAY, channel);
    this.receives = new CompletionQueue(context, 2 * receives, channel);
    this.events = new AsyncEvents(context);
    const areDatagrams = service === 'ud';
    const size = { depth: receives, elements: areDatagrams ? 2 : 1 };
    this.shared = isShared ? new SharedReceiveQueue(domain, size) : undefined;
    this.regions = new RegionKeys(domain, options.relaxedOrdering);
    this.receiver = new PacketReceiver({
      completions: this.receives,
      memory: this.memory,
      shared: this.shared?.receives,
      areDatagrams,
      failures,
      findEnd: (queuePair) => this.#ends.get(queuePair),
      onEarly,
      onFlushed: (end) => this.fail(end),
      onRefused: (ring) => this.#failReceives(ring),
    });
  }

  addEnd(end: PathEnd): void {
    this.#ends.set(end.queuePair.number, end);
  }

  /** Destroys the queue pair: the device reads nothing for it any more. */
  closeEnd(end: PathEnd): void {
    // It may be destroyed already, and its number a new one's.
    if (this.#ends.get(end.queuePair.number) !== end) return;
    this.#ends.delete(end.queuePair.number);
    this.regions.forgetEnd(end);
    this.underWay -= end.close();
  }

  findEnd(queuePair: number): PathEnd | undefined {
    return this.#ends.get(queuePair);
  }

  /** The device is gone, and its queue pairs with it. */
  end(): void {
    this.#isOver = true;
    for (const end of this.#ends.values()) this.fail(end);
  }

  /** Queue pairs of datagrams that have failed can begin again; those of connections would have to meet their peers. */
  get canRestart(): boolean {
    return this.service === 'ud' && this.shared !== undefined && !this.#isOver;
  }

  /** Must be called now and then. A port that is down, or has no route to the peer, fails what is sent over it. */
  restartFailed(): void {
    if (!this.canRestart) return;
    for (const end of this.#ends.values()) {
      if (!end.isFailed || end.peer < 0) continue;
      while (this.reapSome() > 0);
      if (end.underWay > 0) continue;
      try {
        end.restart(this.port.rail.port);
      } catch (error) {
        log('transport', 'debug', `${this.port.rail.name}: ${String(error)}`);
      }
    }
  }

  /** The queue pair sends nothing any more: to the protocol its packets are lost. */
  fail(end: PathEnd): void {
    if (end.isFailed) return;
    end.isFailed = true;
    if (end.peer === GONE) return;
    this.#failures.queuePairs += 1;
    this.#onFailed(end, this.port.rail.name);
  }

  /** Fails it, and ends what it has under way: the device flushes that, unless it is gone itself. */
  cutOff(end: PathEnd): void {
    this.fail(end);
    try {
      end.queuePair.fail();
    } catch (error) {
      log('transport', 'debug', `${this.port.rail.name}: ${String(error)}`);
    }
  }

  /** Packets that it takes now. */
  get room(): number {
    return Math.min(MAX_UNDER_WAY - this.underWay, this.memory.room);
  }

  /** Hot path. True if there is no room for a burst, and has been none for so short a time that it is worth waiting. */
  get isFull(): boolean {
    return this.room < BURST_SEGMENTS && !this.isStuck;
  }

  /** Hot path. The device has not ended what it was given for long. */
  get isStuck(): boolean {
    if (this.room >= BURST_SEGMENTS) {
      this.#fullSince = 0;
      return false;
    }
    const now = microseconds();
    if (this.#fullSince === 0) this.#fullSince = now;
    return now - this.#fullSince >= STUCK_MICROSECONDS;
  }

  /** Hot path. Takes completions of sends if most polls would find some. */
  makeRoom(): void {
    if (this.underWay >= REAP_FROM || this.room < BURST_SEGMENTS) this.reap();
  }

  /** Takes the completions of sends: their memory is free again. Returns how many there were. */
  reap(): number {
    const queue = this.sends;
    const count = queue.poll();
    for (let index = 0; index < count; index += 1) {
      const end = this.#ends.get(queue.queuePairAt(index));
      if (end === undefined) continue;
      if (!queue.isSuccess(index)) this.fail(end);
      this.underWay -= end.doneUntil(queue.sequenceAt(index));
    }
    return count;
  }

  /** The same, if there may be any. Returns how many there were. */
  reapSome(): number {
    return this.underWay > 0 ? this.reap() : 0;
  }

  /** The queue pairs that read the region now, of one peer or of all; undefined if there are none. */
  readersOf(region: Region, peer: number | undefined, now: number): RegionReaders | undefined {
    const use = this.regions.find(region);
    if (use === undefined) return undefined;
    while (this.reapSome() > 0);
    // Nobody knows the peer of packets that are on their way out.
    const ends = [...this.#ends.values()].filter((end) => peer === undefined || end.peer === peer || end.peer === GONE);
    const readers = use.readersAmong(ends);
    return readers.length === 0 ? undefined : new RegionReaders(this, readers, now);
  }

  /** The device takes no receives for a queue pair, or for all that share them. */
  #failReceives(ring: ReceiveRing): void {
    for (const end of this.#ends.values())
      if (this.shared !== undefined || end.queuePair.receives === ring) this.fail(end);
  }
}

/** A power of two. `mostShared`: what a shared queue of the device takes; undefined where there is none. */
function receiveCount(packetBytes: number, mostShared: number | undefined): number {
  const bytes = mostShared === undefined ? OWN_BYTES : SHARED_BYTES;
  const wanted = Math.max(MIN_RECEIVES, Math.min(MAX_RECEIVES, bytes / packetBytes));
  return 2 ** Math.floor(Math.log2(Math.min(wanted, mostShared ?? wanted)));
}

const BATCH = 16;
const NO_SLOT = -2;

interface ReceiverParts {
  readonly completions: Pick<CompletionQueue, 'poll' | 'tagAt' | 'statusAt' | 'queuePairAt' | 'bytesAt' | 'sourceAt'>;
  readonly memory: Pick<
    PacketMemory,
    'received' | 'receives' | 'packetBytes' | 'receivedAddress' | 'routingHeader' | 'localKey'
  >;
  /** Undefined where there are none: then each queue pair has slots of its own. */
  readonly shared: ReceiveRing | undefined;
  readonly areDatagrams: boolean;
  readonly failures: VerbsFailures;
  readonly findEnd: (queuePair: number) => PathEnd | undefined;
  /** Hears of packets that came before the end had a peer; they may be probes. */
  readonly onEarly: (end: PathEnd, at: number, bytes: number) => void;
  /** Hears of queue pairs with receives of their own that have failed. */
  readonly onFlushed: (end: PathEnd) => void;
  /** The device refuses receives. */
  readonly onRefused: (ring: ReceiveRing) => void;
}

/** Takes received packets out of the completion queue as batches, and offers their memory to the device again. */
export class PacketReceiver {
  /** What the last `receive` brought. */
  readonly batch: ReceivedBatch;
  readonly #parts: ReceiverParts;
  readonly #headBytes: number;
  /** Slots of no queue pair; with a shared queue all are posted there. */
  readonly #free: number[] = [];
  /** The ring that each slot is posted to. */
  readonly #ringOf: (ReceiveRing | undefined)[];
  /** Slots that have been emptied, and rings that they go back to. */
  readonly #empty: Int32Array = new Int32Array(BATCH);
  #emptied = 0;
  readonly #touched: ReceiveRing[] = [];
  /** The packet that the batch ends with: its slot, and whether another can join it. */
  #lastSlot = NO_SLOT;
  #lastEnd: PathEnd | undefined;

  constructor(parts: ReceiverParts) {
    const { memory, shared, areDatagrams } = parts;
    this.#parts = parts;
    this.#headBytes = areDatagrams ? ROUTING_HEADER_BYTES : 0;
    this.batch = createReceivedBatch(memory.received, BATCH);
    this.#ringOf = Array.from({ length: memory.receives }, () => undefined);
    for (let slot = memory.receives - 1; slot >= 0; slot -= 1) this.#free.push(slot);
    if (shared !== undefined) this.#offer(shared, memory.receives);
  }

  /** Gives a queue pair without shared receives slots of its own. False if too few are left. */
  equip(end: PathEnd, count: number): boolean {
    if (this.#parts.shared !== undefined) return true;
    if (this.#free.length < count) return false;
    this.#offer(end.queuePair.receives, count);
    return true;
  }

  /** The queue pair is closed, and its completions are taken: slots that it still has are free for others. */
  strip(end: PathEnd): void {
    const { receives } = end.queuePair;
    for (const [slot, ring] of this.#ringOf.entries()) if (ring === receives) this.#retire(slot);
  }

  /** True if the device has given back every slot of the failed queue pair. Not known of shared ones. */
  hasGivenBack(end: PathEnd): boolean {
    const { receives } = end.queuePair;
    return this.#parts.shared === undefined && receives.room === receives.depth;
  }

  /** Fills the batch. False if no packet has come. `release` must follow once the batch has been taken in. */
  receive(): boolean {
    const { completions } = this.#parts;
    const { batch } = this;
    batch.count = 0;
    this.#lastSlot = NO_SLOT;
    const count = completions.poll();
    for (let index = 0; index < count; index += 1) {
      const slot = completions.tagAt(index);
      const status = completions.statusAt(index);
      if (status === completionStatus.flushed && this.#parts.shared === undefined) {
        this.#giveUp(index, slot);
        continue;
      }
      this.#empty[this.#emptied] = slot;
      this.#emptied += 1;
      if (status === completionStatus.success) this.#take(index, slot);
      else this.#parts.failures.broken += 1;
    }
    return count > 0;
  }

  /** Offers the slots of the batch again. */
  release(): void {
    for (let index = 0; index < this.#emptied; index += 1) {
      const slot = this.#empty[index]!;
      const ring = this.#ringOf[slot];
      // The ring's queue pair has been closed.
      if (ring === undefined) continue;
      ring.done();
      this.#start(ring, slot);
      if (!this.#touched.includes(ring)) this.#touched.push(ring);
    }
    this.#emptied = 0;
    for (const ring of this.#touched) this.#post(ring);
    this.#touched.length = 0;
  }

  /** The device has flushed the slot: its queue pair has failed, and a receive that is posted again is flushed again. */
  #giveUp(index: number, slot: number): void {
    const { completions, findEnd, onFlushed } = this.#parts;
    const ring = this.#ringOf[slot];
    if (ring !== undefined) {
      ring.done();
      this.#retire(slot);
    }
    const end = findEnd(completions.queuePairAt(index));
    if (end !== undefined) onFlushed(end);
  }

  #retire(slot: number): void {
    this.#ringOf[slot] = undefined;
    this.#free.push(slot);
  }

  #take(index: number, slot: number): void {
    const { completions, memory, failures, areDatagrams } = this.#parts;
    const end = this.#parts.findEnd(completions.queuePairAt(index));
    if (end === undefined || end.peer === GONE) return;
    const bytes = completions.bytesAt(index) - this.#headBytes;
    if (areDatagrams && completions.sourceAt(index) !== end.remoteNumber) {
      failures.strangers += 1;
      return;
    }
    const at = slot * memory.packetBytes;
    if (end.peer === NOBODY) this.#parts.onEarly(end, at, bytes);
    else if (!this.#join(end, slot, bytes)) this.#add(end, at, bytes);
    this.#lastSlot = slot;
    this.#lastEnd = end;
  }

  /** Full packets of one path in neighbouring slots are taken in together, as the kernel joins datagrams. */
  #join(end: PathEnd, slot: number, bytes: number): boolean {
    const { batch } = this;
    const { packetBytes } = this.#parts.memory;
    const last = batch.count - 1;
    if (slot !== this.#lastSlot + 1 || end !== this.#lastEnd || bytes < 1 || last < 0) return false;
    const before = batch.length[last]!;
    if (before === 0 || before % packetBytes !== 0) return false;
    batch.segmentBytes[last] = packetBytes;
    batch.length[last] = before + bytes;
    return true;
  }

  #add(end: PathEnd, at: number, bytes: number): void {
    const { batch } = this;
    const entry = batch.count;
    batch.offset[entry] = at;
    batch.length[entry] = Math.max(0, bytes);
    batch.segmentBytes[entry] = 0;
    batch.peer[entry] = end.peer;
    batch.count = entry + 1;
  }

  #offer(ring: ReceiveRing, count: number): void {
    for (let left = count; left > 0; left -= 1) {
      const slot = this.#free.pop() as number;
      this.#ringOf[slot] = ring;
      this.#start(ring, slot);
    }
    ring.post();
  }

  #post(ring: ReceiveRing): void {
    try {
      ring.post();
    } catch {
      // Nothing tells which of them the device has; they are free once the queue pair is closed.
      this.#parts.onRefused(ring);
    }
  }

  #start(ring: ReceiveRing, slot: number): void {
    const { memory, areDatagrams } = this.#parts;
    ring.start(slot);
    if (areDatagrams) ring.add(memory.routingHeader, ROUTING_HEADER_BYTES, memory.localKey);
    ring.add(memory.receivedAddress + slot * memory.packetBytes, memory.packetBytes, memory.localKey);
  }
}
