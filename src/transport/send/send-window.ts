// What a connection has sent and not yet heard of: segments in a ring, and the bursts they were last sent in, so that a
// burst that arrives whole costs one step. Hot path: no allocation. Sequences are signed 32-bit integers that wrap.

export class SendWindow {
  /** The oldest segment that is not known to have arrived. */
  first: number;
  /** The segment to be sent next. */
  next: number;
  readonly limit: number;
  readonly mask: number;
  /** The burst of each segment's latest transmission, at `sequence & mask`, if it is in flight. */
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

  /** The window takes at most `limit` outstanding segments. */
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

// Bursts in flight: consecutive segments that were sent together on one path, listed per path in the order of sending.

// Hot path: no allocation.

export const NO_BURST = -1;

export class BurstTable {
  readonly firstSequence: Int32Array;
  /** Number of the first segment; the others follow on. */
  readonly firstPathSequence: Int32Array;
  readonly count: Uint8Array;
  /** Segments that are neither known to have arrived nor lost. */
  readonly outstanding: Uint8Array;
  readonly path: Uint8Array;
  /** The congestion window that they count against. */
  readonly controller: Int32Array;
  readonly sentAt: Float64Array;
  /** Payload and headers of the outstanding segments. */
  readonly bytes: Float64Array;
  /** The burst that was sent after this one on its path; of a free one: the next free one. */
  readonly nextOnPath: Int32Array;
  readonly #previousOnPath: Int32Array;
  /** The oldest burst of each path. */
  readonly oldest: Int32Array;
  readonly #newest: Int32Array;
  /** Bytes in flight on each path. */
  readonly pathBytes: Float64Array;
  /** Bytes in flight on all paths of each rail. */
  readonly railBytes: Float64Array;
  /** Bytes in flight of each congestion window. Grows with the flows of a connection. */
  controllerBytes: Float64Array;
  /** Bytes of each congestion window that arrived and were not yet told to congestion control. */
  controllerAcked: Float64Array;
  /** The windows whose `controllerAcked` is not zero. */
  touched: Int32Array;
  touchedCount = 0;
  readonly headerBytes: number;
  #free = 0;

  /** Path p leaves by rail p modulo `rails`. */
  constructor(
    capacity: number,
    { paths, rails }: { readonly paths: number; readonly rails: number },
    headerBytes: number,
  ) {
    this.firstSequence = new Int32Array(capacity);
    this.firstPathSequence = new Int32Array(capacity);
    this.count = new Uint8Array(capacity);
    this.outstanding = new Uint8Array(capacity);
    this.path = new Uint8Array(capacity);
    this.controller = new Int32Array(capacity);
    this.sentAt = new Float64Array(capacity);
    this.bytes = new Float64Array(capacity);
    this.nextOnPath = Int32Array.from({ length: capacity }, (_, at) => (at + 1 < capacity ? at + 1 : NO_BURST));
    this.#previousOnPath = new Int32Array(capacity);
    this.oldest = new Int32Array(paths).fill(NO_BURST);
    this.#newest = new Int32Array(paths).fill(NO_BURST);
    this.pathBytes = new Float64Array(paths);
    this.railBytes = new Float64Array(rails);
    this.controllerBytes = new Float64Array(paths);
    this.controllerAcked = new Float64Array(paths);
    this.touched = new Int32Array(paths);
    this.headerBytes = headerBytes;
  }

  /** Makes room for congestion window number `controller`. */
  reserveController(controller: number): void {
    if (controller < this.controllerBytes.length) return;
    const bytes = new Float64Array(this.controllerBytes.length * 2);
    bytes.set(this.controllerBytes);
    const acked = new Float64Array(bytes.length);
    acked.set(this.controllerAcked);
    this.controllerBytes = bytes;
    this.controllerAcked = acked;
    const touched = new Int32Array(bytes.length);
    touched.set(this.touched);
    this.touched = touched;
  }

  /**
   * A new burst, the newest of its path. There is always one free: a burst in the table has at least one segment in
   * flight, and the table is as large as the window.
   */
  open(path: number, controller: number, now: number): number {
    const burst = this.#free;
    this.#free = this.nextOnPath[burst]!;
    this.path[burst] = path;
    this.controller[burst] = controller;
    this.sentAt[burst] = now;
    this.bytes[burst] = 0;
    const before = this.#newest[path]!;
    this.#previousOnPath[burst] = before;
    this.nextOnPath[burst] = NO_BURST;
    this.#newest[path] = burst;
    if (before === NO_BURST) this.oldest[path] = burst;
    else this.nextOnPath[before] = burst;
    return burst;
  }

  /** Says which segments a new burst holds; `payloadBytes` is the sum of their payloads. */
  fill(burst: number, firstSequence: number, count: number, payloadBytes: number): void {
    const bytes = payloadBytes + count * this.headerBytes;
    const path = this.path[burst]!;
    const controller = this.controller[burst]!;
    this.firstSequence[burst] = firstSequence;
    this.count[burst] = count;
    this.outstanding[burst] = count;
    this.bytes[burst] = bytes;
    this.#addInFlight(path, bytes);
    this.controllerBytes[controller] = this.controllerBytes[controller]! + bytes;
  }

  isWhole(burst: number): boolean {
    return this.outstanding[burst] === this.count[burst];
  }

  /** One segment of the burst is no longer in flight. */
  leave(burst: number, payloadBytes: number): void {
    this.#land(burst, payloadBytes + this.headerBytes);
    const left = this.outstanding[burst]! - 1;
    this.outstanding[burst] = left;
    if (left === 0) this.#close(burst);
  }

  /** All segments of the burst have arrived. */
  arriveWhole(burst: number): void {
    this.noteAcked(burst, this.bytes[burst]!);
    this.#land(burst, this.bytes[burst]!);
    this.#close(burst);
  }

  /** `bytes` of the burst's window have arrived. */
  noteAcked(burst: number, bytes: number): void {
    const controller = this.controller[burst]!;
    const before = this.controllerAcked[controller]!;
    if (before === 0) this.touched[this.touchedCount++] = controller;
    this.controllerAcked[controller] = before + bytes;
  }

  #land(burst: number, bytes: number): void {
    const path = this.path[burst]!;
    const controller = this.controller[burst]!;
    this.bytes[burst] = this.bytes[burst]! - bytes;
    this.#addInFlight(path, -bytes);
    this.controllerBytes[controller] = this.controllerBytes[controller]! - bytes;
  }

  #addInFlight(path: number, bytes: number): void {
    const { pathBytes, railBytes } = this;
    const rail = path % railBytes.length;
    pathBytes[path] = pathBytes[path]! + bytes;
    railBytes[rail] = railBytes[rail]! + bytes;
  }

  #close(burst: number): void {
    const path = this.path[burst]!;
    const before = this.#previousOnPath[burst]!;
    const after = this.nextOnPath[burst]!;
    if (before === NO_BURST) this.oldest[path] = after;
    else this.nextOnPath[before] = after;
    if (after === NO_BURST) this.#newest[path] = before;
    else this.#previousOnPath[after] = before;
    this.nextOnPath[burst] = this.#free;
    this.#free = burst;
  }
}
