// One end of a path: a queue pair, where it leads, and what it has under way.
import { alignUp } from '../../../abi/layout.ts';
import { ROUTING_HEADER_BYTES } from '../../../native/verbs/c-structs.ts';
import { NativeBlock } from '../../../native/library.ts';
import { MemoryRegion } from '../../../native/verbs/memory-region.ts';
import type { AddressHandle, QueuePair } from '../../../native/verbs/queue-pair.ts';
import type { ProtectionDomain } from '../../../native/verbs/context.ts';
import type { SendRing } from '../../../native/verbs/request-ring.ts';

/** What stands for a peer: the end has none yet, or no longer. */
export const NOBODY = -1;
export const GONE = -2;
/** A device takes microseconds for what it has; then the queue pairs that do not come to an end are failed. */
export const SETTLE_MICROSECONDS = 500_000;

/** The memory of a port that packets are sent from. */
interface WithMemory {
  readonly memory: PacketMemory;
}

/** `Rail`: the port that it is an end at. */
export class PathEnd<Rail extends WithMemory = WithMemory> {
  /** The number by which the engine's thread and those who meet the peer call it. */
  readonly number: number;
  readonly rail: Rail;
  readonly queuePair: QueuePair;
  readonly sends: SendRing;
  /** Key of datagrams that come in; others are dropped by the device. */
  readonly queueKey: number;
  /** First packet number that it sends. */
  readonly firstSequence: number;
  /** The peer's number as the engine's I/O calls it. */
  peer: number = NOBODY;
  /** Set by connect: the peer's queue pair, and for datagrams its key and where it is. */
  remoteNumber = 0;
  remoteQueueKey = 0;
  handle: AddressHandle | undefined;
  /** The queue pair has failed and sends nothing more. */
  isFailed = false;
  /** It has failed, and the device says that it takes no more of the shared receives. */
  hasTakenLast = false;
  /** The queue pair is destroyed. */
  isClosed = false;
  /** It has requests that were not posted. */
  isPending = false;
  /** The largest probe that has arrived, and the secret in it. */
  probed = 0;
  probedSecret = 0n;
  readonly #memory: PacketMemory;
  /** The place of each sequence in the packet memory. */
  readonly #places: Int32Array;
  /** Sequences: of the first packet whose place is taken, and of the next packet. */
  #oldest = 0;
  #next = 0;

  /** `names`: its number, the key of its datagrams and the number of the first packet. */
  constructor(rail: Rail, queuePair: QueuePair, names: Pick<PathEnd, 'number' | 'queueKey' | 'firstSequence'>) {
    this.rail = rail;
    this.#memory = rail.memory;
    this.number = names.number;
    this.queuePair = queuePair;
    this.sends = queuePair.sends;
    this.queueKey = names.queueKey;
    this.firstSequence = names.firstSequence;
    this.#places = new Int32Array(this.sends.depth);
  }

  /** Packets whose memory the device may still read. */
  get underWay(): number {
    return (this.#next - this.#oldest) >>> 0;
  }

  /** Sequence that the next packet will have. */
  get nextSequence(): number {
    return this.#next;
  }

  /** True while the device may still read the packet with this sequence. */
  isUnderWay(sequence: number): boolean {
    return (sequence - this.#oldest) >>> 0 < this.underWay;
  }

  /** Hot path. The request that was started last reads from this place. */
  hold(place: number): void {
    this.#places[this.#next % this.sends.depth] = place;
    this.#next = (this.#next + 1) >>> 0;
  }

  /** Hot path. The packet with this sequence has left, and all before it. Returns how many places that frees. */
  doneUntil(sequence: number): number {
    const count = (sequence + 1 - this.#oldest) >>> 0;
    // Flushed requests complete one by one, also those that an earlier completion has counted.
    if (count > this.underWay) return 0;
    this.sends.doneUntil(sequence);
    this.#release(count);
    return count;
  }

  /** Requests from the ring's next sequence on were refused. Returns how many places that frees. */
  takeBack(): number {
    const count = (this.#next - this.sends.nextSequence) >>> 0;
    for (let left = count; left > 0; left -= 1) {
      this.#next = (this.#next - 1) >>> 0;
      this.#memory.giveBack(this.#places[this.#next % this.sends.depth]!);
    }
    return count;
  }

  /** Must be called, for datagrams, when the device has given back what was under way: a queue pair that has failed begins again. */
  restart(port: number): void {
    const { queuePair } = this;
    queuePair.reset();
    queuePair.initialize(port, {}, this.queueKey);
    queuePair.open(this.firstSequence);
    this.isFailed = false;
    this.hasTakenLast = false;
  }

  /** The queue pair is closed: the device reads nothing any more. Returns how many places that frees. */
  close(): number {
    const count = this.underWay;
    this.isClosed = true;
    this.queuePair.close();
    this.handle?.close();
    this.#release(count);
    return count;
  }

  #release(count: number): void {
    for (let left = count; left > 0; left -= 1) {
      this.#memory.giveBack(this.#places[this.#oldest % this.sends.depth]!);
      this.#oldest = (this.#oldest + 1) >>> 0;
    }
  }
}

// What went wrong over the queue pairs of an engine, counted.

/** Counters of what did not go out or come in. */
export interface VerbsFailures {
  /** Queue pairs that have failed. */
  queuePairs: number;
  /** Packets given up because their queue pair had failed, or would not take them. */
  unsent: number;
  /** Packets that came with an error, such as messages of which a part was lost. */
  broken: number;
  /** Packets of queue pairs that are not the peer's. */
  strangers: number;
}

// The registered memory of an engine: places for packets that come in, and for headers and copies of those that go out.

/** Room for a header, or for a small packet as a whole. */
export const SMALL_BYTES = 256;
/** Packets that are copied as a whole and are larger: few, since data goes by reference. */
const LARGE_SLOTS = 64;
const LINE = 64;

interface PacketMemorySizes {
  /** Bytes of a packet. */
  readonly packetBytes: number;
  readonly receives: number;
  readonly smallSlots: number;
}

export class PacketMemory {
  /** Memory in which packets are received: slot i begins at i * packetBytes. */
  readonly received: Uint8Array;
  readonly receivedAddress: number;
  readonly packetBytes: number;
  readonly receives: number;
  /** Memory of the routing headers of datagrams, one above the other: nobody reads them. */
  readonly routingHeader: number;
  readonly localKey: number;
  /** All of it, from `address` on; slots are places in it. */
  readonly bytes: Uint8Array;
  readonly words: Int32Array;
  readonly address: number;
  readonly #free: number[] = [];
  readonly #freeLarge: number[] = [];
  readonly #largeFrom: number;

  /** Fails with WL_CAPACITY if the memory cannot be registered. */
  constructor(domain: ProtectionDomain, { packetBytes, receives, smallSlots }: PacketMemorySizes) {
    const large = alignUp(packetBytes, LINE);
    const smallFrom = alignUp(ROUTING_HEADER_BYTES, LINE);
    this.#largeFrom = smallFrom + smallSlots * SMALL_BYTES;
    const receivesFrom = this.#largeFrom + LARGE_SLOTS * large;
    const block = new NativeBlock(receivesFrom + receives * packetBytes);
    this.packetBytes = packetBytes;
    this.receives = receives;
    this.bytes = block.bytes;
    this.words = new Int32Array(block.bytes.buffer, block.bytes.byteOffset, block.words.length);
    this.address = block.address;
    this.routingHeader = block.address;
    this.received = block.bytes.subarray(receivesFrom);
    this.receivedAddress = block.address + receivesFrom;
    this.localKey = MemoryRegion.host(domain, block.address, block.bytes.length).localKey;
    for (let slot = 0; slot < smallSlots; slot += 1) this.#free.push(smallFrom + slot * SMALL_BYTES);
    for (let slot = 0; slot < LARGE_SLOTS; slot += 1) this.#freeLarge.push(this.#largeFrom + slot * large);
  }

  /** How many packets of any kind can be taken. */
  get room(): number {
    return Math.min(this.#free.length, this.#freeLarge.length);
  }

  /** Hot path. A place of so many bytes, at most a packet; there must be room. */
  take(bytes: number): number {
    return (bytes <= SMALL_BYTES ? this.#free : this.#freeLarge).pop() as number;
  }

  /** Hot path. */
  giveBack(place: number): void {
    (place < this.#largeFrom ? this.#free : this.#freeLarge).push(place);
  }
}
