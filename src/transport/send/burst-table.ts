// Bursts in flight: consecutive segments that were sent together on one path, listed per path in the order of sending.
// Hot path: no allocation.

export const NO_BURST = -1;

export class BurstTable {
  readonly firstSequence: Int32Array;
  /** Of the first segment; the others follow on. */
  readonly firstPathSequence: Int32Array;
  readonly count: Uint8Array;
  /** Segments that are neither known to have arrived nor lost. */
  readonly outstanding: Uint8Array;
  readonly path: Uint8Array;
  /** Which congestion window they count against. */
  readonly controller: Int32Array;
  readonly sentAt: Float64Array;
  /** Payload and headers of the outstanding segments. */
  readonly bytes: Float64Array;
  /** The burst that was sent after this one on its path; of a free one: the next free one. */
  readonly nextOnPath: Int32Array;
  readonly #previousOnPath: Int32Array;
  /** Per path: the oldest burst. */
  readonly oldest: Int32Array;
  readonly #newest: Int32Array;
  /** Per path: bytes in flight. */
  readonly pathBytes: Float64Array;
  /** Per rail: the same of all its paths. */
  readonly railBytes: Float64Array;
  /** Per congestion window: bytes in flight. Grows with the flows of a connection. */
  controllerBytes: Float64Array;
  /** Per congestion window: bytes that arrived and were not yet told to congestion control. */
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
