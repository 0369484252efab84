// One end of a path: a queue pair, where it leads, and what it has under way.
import type { AddressHandle } from '../../../native/verbs/path.ts';
import type { QueuePair } from '../../../native/verbs/queue-pair.ts';
import type { SendRing } from '../../../native/verbs/request-ring.ts';
import type { PacketMemory } from './packet-memory.ts';

/** What has no peer yet. */
export const NOBODY = -1;

export class PathEnd {
  /** By which the engine's thread and those who meet the peer call it. */
  readonly number: number;
  readonly queuePair: QueuePair;
  readonly sends: SendRing;
  /** Of datagrams that come in; others are dropped by the device. */
  readonly queueKey: number;
  /** First packet number that it sends. */
  readonly firstSequence: number;
  /** As the engine's I/O calls the peer. */
  peer: number = NOBODY;
  /** Set by connect: the peer's queue pair, and for datagrams its key and where it is. */
  remoteNumber = 0;
  remoteQueueKey = 0;
  handle: AddressHandle | undefined;
  /** The queue pair has failed and sends nothing more. */
  isFailed = false;
  /** It has requests that were not posted. */
  isPending = false;
  /** The largest probe that has arrived, and the secret in it. */
  probed = 0;
  probedSecret = 0n;
  /** By sequence: the place in the packet memory. */
  readonly #places: Int32Array;
  /** Sequences: of the first packet whose place is taken, and of the next packet. */
  #oldest = 0;
  #next = 0;

  constructor(number: number, queuePair: QueuePair, queueKey: number, firstSequence: number) {
    this.number = number;
    this.queuePair = queuePair;
    this.sends = queuePair.sends;
    this.queueKey = queueKey;
    this.firstSequence = firstSequence;
    this.#places = new Int32Array(this.sends.depth);
  }

  /** Packets whose memory the device may still read. */
  get underWay(): number {
    return (this.#next - this.#oldest) >>> 0;
  }

  /** Hot path. The request that was started last reads from this place. */
  hold(place: number): void {
    this.#places[this.#next % this.sends.depth] = place;
    this.#next = (this.#next + 1) >>> 0;
  }

  /** Hot path. The packet with this sequence has left, and all before it. Returns how many places that frees. */
  doneUntil(sequence: number, memory: PacketMemory): number {
    const count = (sequence + 1 - this.#oldest) >>> 0;
    // Flushed requests complete one by one, also those that an earlier completion has counted.
    if (count > this.underWay) return 0;
    this.sends.doneUntil(sequence);
    this.#release(count, memory);
    return count;
  }

  /** Requests from the ring's next sequence on were refused. Returns how many places that frees. */
  takeBack(memory: PacketMemory): number {
    const count = (this.#next - this.sends.nextSequence) >>> 0;
    for (let left = count; left > 0; left -= 1) {
      this.#next = (this.#next - 1) >>> 0;
      memory.giveBack(this.#places[this.#next % this.sends.depth]!);
    }
    return count;
  }

  /** The queue pair is closed: the device reads nothing any more. Returns how many places that frees. */
  close(memory: PacketMemory): number {
    const count = this.underWay;
    this.queuePair.close();
    this.handle?.close();
    this.#release(count, memory);
    return count;
  }

  #release(count: number, memory: PacketMemory): void {
    for (let left = count; left > 0; left -= 1) {
      memory.giveBack(this.#places[this.#oldest % this.sends.depth]!);
      this.#oldest = (this.#oldest + 1) >>> 0;
    }
  }
}
