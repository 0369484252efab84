// What a connection has sent and not yet heard of: segments in a ring, and the bursts they were last sent in, so that a
// burst that arrives whole costs one step. Hot path: no allocation. Sequences are signed 32-bit integers that wrap.
import { NO_BURST, type BurstTable } from './burst-table.ts';

export class SendWindow {
  /** The oldest segment that is not known to have arrived. */
  first: number;
  /** The segment to be sent next. */
  next: number;
  readonly limit: number;
  readonly mask: number;
  /** Per segment, at `sequence & mask`: the burst of its latest transmission, if it is in flight. */
  readonly burst: Int32Array;
  /** The request it belongs to, as its handle. */
  readonly request: Int32Array;
  /** Position of its payload in the message. */
  readonly offset: Float64Array;
  readonly bytes: Uint16Array;
  /** One bit per segment: known to have arrived. */
  readonly acked: Int32Array;
  /** One bit per segment: lost, to be sent again. Never set together with `acked`. */
  readonly lost: Int32Array;
  lostCount = 0;
  /** No segment before this one is lost. */
  lostFrom: number;

  /** At most `limit` segments are outstanding. */
  constructor(limit: number, first = 0) {
    this.first = first;
    this.next = first;
    this.lostFrom = first;
    let size = 64;
    while (size < limit + 32) size *= 2;
    this.limit = limit;
    this.mask = size - 1;
    this.burst = new Int32Array(size).fill(NO_BURST);
    this.request = new Int32Array(size);
    this.offset = new Float64Array(size);
    this.bytes = new Uint16Array(size);
    this.acked = new Int32Array(size / 32);
    this.lost = new Int32Array(size / 32);
  }

  get outstanding(): number {
    return (this.next - this.first) | 0;
  }

  room(): number {
    return this.limit - this.outstanding;
  }

  isOutstanding(sequence: number): boolean {
    return ((sequence - this.first) | 0) >= 0 && ((sequence - this.next) | 0) < 0;
  }

  isAcked(sequence: number): boolean {
    return bitOf(this.acked, sequence & this.mask) === 1;
  }

  isLost(sequence: number): boolean {
    return bitOf(this.lost, sequence & this.mask) === 1;
  }

  /** Notes that `sequence` was sent in a burst; it may have been lost before. */
  setInFlight(sequence: number, burst: number): void {
    const slot = sequence & this.mask;
    this.burst[slot] = burst;
    if (bitOf(this.lost, slot) === 1) {
      clearBit(this.lost, slot);
      this.lostCount--;
    }
  }

  /** Begins a segment that was never sent. */
  append(request: number, offset: number, bytes: number): number {
    const sequence = this.next;
    const slot = sequence & this.mask;
    this.request[slot] = request;
    this.offset[slot] = offset;
    this.bytes[slot] = bytes;
    clearBit(this.acked, slot);
    clearBit(this.lost, slot);
    this.next = (sequence + 1) | 0;
    return sequence;
  }

  /** Begins `count` segments of one request that are sent at once in `burst`; the last may be shorter. Returns the first. */
  // oxlint-disable-next-line max-params -- hot path: an object for them would be allocated per burst
  appendRun(
    request: number,
    offset: number,
    count: number,
    payloadBytes: number,
    lastBytes: number,
    burst: number,
  ): number {
    const sequence = this.next;
    const { mask, acked, lost } = this;
    for (let index = 0; index < count; index++) {
      const slot = (sequence + index) & mask;
      this.request[slot] = request;
      this.offset[slot] = offset + index * payloadBytes;
      this.bytes[slot] = payloadBytes;
      this.burst[slot] = burst;
      clearBit(acked, slot);
      clearBit(lost, slot);
    }
    this.bytes[(sequence + count - 1) & mask] = lastBytes;
    this.next = (sequence + count) | 0;
    return sequence;
  }

  /** The segment is lost and leaves its burst. It must be in flight. */
  lose(sequence: number, bursts: BurstTable): void {
    const slot = sequence & this.mask;
    setBit(this.lost, slot);
    bursts.leave(this.burst[slot]!, this.bytes[slot]!);
    this.burst[slot] = NO_BURST;
    if (this.lostCount === 0 || ((sequence - this.lostFrom) | 0) < 0) this.lostFrom = sequence;
    this.lostCount++;
  }

  /** The segment has arrived: it leaves its burst, or the lost ones. It must not have been acknowledged before. */
  acknowledge(sequence: number, bursts: BurstTable): void {
    const slot = sequence & this.mask;
    setBit(this.acked, slot);
    if (bitOf(this.lost, slot) === 1) {
      clearBit(this.lost, slot);
      this.lostCount--;
      return;
    }
    const burst = this.burst[slot]!;
    const bytes = this.bytes[slot]!;
    bursts.noteAcked(burst, bytes + bursts.headerBytes);
    bursts.leave(burst, bytes);
    this.burst[slot] = NO_BURST;
  }

  /** The oldest lost segment. There must be one. */
  firstLost(): number {
    let sequence = ((this.lostFrom - this.first) | 0) < 0 ? this.first : this.lostFrom;
    while (bitOf(this.lost, sequence & this.mask) === 0) {
      // Whole words without a lost segment are passed over at once.
      const word = this.lost[(sequence & this.mask) >>> 5]!;
      sequence = word >>> (sequence & 31) === 0 ? ((sequence | 31) + 1) | 0 : (sequence + 1) | 0;
    }
    this.lostFrom = sequence;
    return sequence;
  }
}

function bitOf(words: Int32Array, slot: number): number {
  return (words[slot >>> 5]! >>> (slot & 31)) & 1;
}

function setBit(words: Int32Array, slot: number): void {
  words[slot >>> 5] = words[slot >>> 5]! | (1 << (slot & 31));
}

function clearBit(words: Int32Array, slot: number): void {
  words[slot >>> 5] = words[slot >>> 5]! & ~(1 << (slot & 31));
}
