// Takes received packets out of the completion queue as batches for the engine, and offers their memory to the device again.
// Hot path: no allocation, two native calls for 16 packets.
import { completionStatus, ROUTING_HEADER_BYTES } from '../../../native/verbs/c-structs.ts';
import type { CompletionQueue } from '../../../native/verbs/completion-queue.ts';
import type { ReceiveRing } from '../../../native/verbs/request-ring.ts';
import { createReceivedBatch, type ReceivedBatch } from '../packet-io.ts';
import { GONE, NOBODY, type PacketMemory, type PathEnd, type VerbsFailures } from './path-end.ts';

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
