// Requests of a queue in native memory, made once: a post patches words of some and hands their chain over by one call.
import { type Layout, putWide, wideAt, wordOffsets } from '../../abi/layout.ts';
import { ibvReceiveWr, ibvSendWr, ibvSge, sendFlag } from './c-structs.ts';
import { WeftlineError } from '../../core/errors.ts';
import { NativeBlock, nativeError } from '../library.ts';

type Post = (queue: number, first: number, refused: number) => number;

type RequestFields = 'sequence' | 'tag' | 'next' | 'sgeList' | 'sgeCount';

const sge = wordOffsets(ibvSge);
const sgeWords = ibvSge.size / 4;
const send = wordOffsets(ibvSendWr);

/** What both directions share. A queue's requests are numbered in the order of their posts, modulo 2^32. */
class RequestRing {
  /** Requests that may be under way. */
  readonly depth: number;
  readonly elements: number;
  protected readonly words: Uint32Array;
  /** Place at which the words of the request that was started last begin. */
  protected at = 0;
  readonly #field: Readonly<Record<RequestFields, number>>;
  readonly #block: NativeBlock;
  readonly #strideWords: number;
  readonly #refused = new NativeBlock(8);
  readonly #post: Post;
  readonly #queue: number;
  /** Sequences: of the next request, of the first that was started and not posted, of the first that is not done. */
  #next = 0;
  #unposted = 0;
  #oldest = 0;

  protected constructor(layout: Layout<RequestFields>, size: RingSize, queue: number, post: Post) {
    this.depth = size.depth;
    this.elements = size.elements;
    this.#field = wordOffsets(layout);
    this.#strideWords = (layout.size + size.elements * ibvSge.size) / 4;
    this.#block = new NativeBlock(size.depth * this.#strideWords * 4);
    this.words = this.#block.words;
    this.#queue = queue;
    this.#post = post;
    for (let index = 0; index < size.depth; index += 1) {
      const at = index * this.#strideWords;
      putWide(this.words, at + this.#field.sgeList, this.#block.address + at * 4 + layout.size);
    }
  }

  /** Requests that can be started before one must be done. */
  get room(): number {
    return this.depth - ((this.#next - this.#oldest) >>> 0);
  }

  /** Requests that were started, but not posted. */
  get unposted(): number {
    return (this.#next - this.#unposted) >>> 0;
  }

  /** Sequence that the next request will have. */
  get nextSequence(): number {
    return this.#next;
  }

  /** Hot path. Gives the first request free whose words the following calls patch. False if there is no room. */
  protected begin(tag: number): boolean {
    if (this.room === 0) return false;
    const at = (this.#next % this.depth) * this.#strideWords;
    const { words } = this;
    if (this.#next !== this.#unposted) putWide(words, this.at + this.#field.next, this.#block.address + at * 4);
    this.at = at;
    words[at + this.#field.sequence] = this.#next;
    words[at + this.#field.tag] = tag;
    words[at + this.#field.next] = 0;
    words[at + this.#field.next + 1] = 0;
    words[at + this.#field.sgeCount] = 0;
    this.#next = (this.#next + 1) >>> 0;
    return true;
  }

  /** Hot path. Adds an element, a range of memory, to the request that was started last: at most `elements`. */
  add(address: number, bytes: number, localKey: number): void {
    const { words } = this;
    const count = words[this.at + this.#field.sgeCount]!;
    if (count === this.elements) {
      throw new WeftlineError(
        'WL_INTERNAL',
        `A request of a queue with ${this.elements} elements per request got one more`,
      );
    }
    const at = this.at + this.#strideWords - (this.elements - count) * sgeWords;
    words[this.at + this.#field.sgeCount] = count + 1;
    putWide(words, at + sge.address, address);
    words[at + sge.bytes] = bytes;
    words[at + sge.localKey] = localKey;
  }

  /** Hot path. Hands all started requests over: one native call. Those that are refused are as if never started. */
  post(): void {
    const count = this.unposted;
    if (count === 0) return;
    const first = this.#block.address + (this.#unposted % this.depth) * this.#strideWords * 4;
    const status = this.#post(this.#queue, first, this.#refused.address);
    if (status !== 0) this.#takeBack(status);
    this.#unposted = this.#next;
  }

  /** Hot path. So many of the oldest requests are done. */
  protected release(count: number): void {
    this.#oldest = (this.#oldest + count) >>> 0;
  }

  /** How many requests are under way up to and with this sequence; too large a number for one that was done before. */
  protected countUntil(sequence: number): number {
    return (sequence + 1 - this.#oldest) >>> 0;
  }

  #takeBack(status: number): never {
    const count = this.unposted;
    const refused = wideAt(this.#refused.words, 0);
    let posted = 0;
    while (posted < count && this.#addressOf((this.#unposted + posted) >>> 0) !== refused) posted += 1;
    if (posted === count) posted = 0;
    this.#next = (this.#unposted + posted) >>> 0;
    this.#unposted = this.#next;
    throw nativeError(
      'ibv_post',
      `${count - posted} of ${count} requests were refused by the device`,
      -Math.abs(status),
    );
  }

  #addressOf(sequence: number): number {
    return this.#block.address + (sequence % this.depth) * this.#strideWords * 4;
  }
}

/** `depth`: requests under way, a power of two; `elements`: ranges of memory that one request may have. */
export interface RingSize {
  readonly depth: number;
  readonly elements: number;
}

/**
 * Sends of a queue pair: start(), what it needs of add(), target(), addend(), datagram(), immediate(), any number of
 * times, then post().
 */
export class SendRing extends RequestRing {
  constructor(size: RingSize, queuePair: number, post: Post) {
    super(ibvSendWr, size, queuePair, post);
  }

  /**
   * Hot path. Starts a request. False if there is no room: take completions first.
   * @param opcode One of sendOpcode.
   * @param flags Of sendFlag. Without `signaled` its completion comes with that of a later request, or when it fails.
   * @param tag Any word; its completion repeats it.
   */
  start(opcode: number, flags: number, tag: number): boolean {
    if (!this.begin(tag)) return false;
    this.words[this.at + send.opcode] = opcode;
    this.words[this.at + send.flags] = flags;
    return true;
  }

  /** Hot path. Of a reliable connection, the device keeps the order of writes in any case. */
  order(): void {
    // Nothing to tell it.
  }

  /** Hot path. Memory of the peer that is written, read or added to. */
  target(remoteAddress: number, remoteKey: number): void {
    putWide(this.words, this.at + send.remoteAddress, remoteAddress);
    this.words[this.at + send.remoteKey] = remoteKey;
  }

  /** Hot path. In place of target(), for fetchAdd: adds a number of 64 bits, given as two words, to 8 aligned bytes. */
  addend(remoteAddress: number, remoteKey: number, low: number, high: number): void {
    const { words, at } = this;
    putWide(words, at + send.remoteAddress, remoteAddress);
    words[at + send.remoteKey] = low;
    words[at + send.queueKey] = high;
    words[at + send.atomicKey] = remoteKey;
  }

  /** Hot path. Where a datagram goes. `handle`: address of an AddressHandle. */
  datagram(handle: number, queuePair: number, queueKey: number): void {
    const { words, at } = this;
    putWide(words, at + send.remoteAddress, handle);
    words[at + send.remoteKey] = queuePair;
    words[at + send.queueKey] = queueKey;
  }

  /** Hot path. A word that the receive of the peer gets, `value` in host order. */
  immediate(value: number): void {
    this.words[this.at + send.immediate] =
      (value << 24) | ((value & 0xff00) << 8) | ((value >>> 8) & 0xff00) | (value >>> 24);
  }

  /** Hot path. The request with this sequence is done, and all before it. */
  doneUntil(sequence: number): void {
    // Flushed requests complete one by one, also those that an earlier completion has counted.
    const count = this.countUntil(sequence);
    if (count <= this.depth) this.release(count);
  }

  /** Hot path. Asks for the completion of the request that was started last, whatever its flags were. */
  signal(): void {
    this.words[this.at + send.flags]! |= sendFlag.signaled;
  }
}

/** Receives of a queue pair or of a shared queue: start() and add() any number of times, then post(). */
export class ReceiveRing extends RequestRing {
  constructor(size: RingSize, queue: number, post: Post) {
    super(ibvReceiveWr, size, queue, post);
  }

  /** Hot path. Starts a receive; its completion repeats `tag`. False if there is no room. */
  start(tag: number): boolean {
    return this.begin(tag);
  }

  /** Hot path. A receive was completed: of a shared queue, in any order. */
  done(): void {
    this.release(1);
  }
}
