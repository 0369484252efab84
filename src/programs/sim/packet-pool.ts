// Packets of a simulation: numbered slots of typed arrays, so that none is allocated while it runs.

/** Bit of `marks`: a switch saw a long queue (explicit congestion notification). */
export const MARK_ECN = 1;
/** Bit of `marks`: bytes were changed on the way. */
export const MARK_CORRUPT = 2;

export class PacketPool {
  /** Most bytes of one packet. */
  readonly slotBytes: number;
  /** Slot p begins at p * slotBytes. Replaced when the pool grows. */
  bytes: Uint8Array;
  /** Bytes of the packet, and bytes that it takes on a wire. */
  lengths: Int32Array;
  wireBytes: Int32Array;
  sources: Int32Array;
  destinations: Int32Array;
  paths: Int32Array;
  /** The link it is on, and how often that link had failed when the packet entered it. */
  links: Int32Array;
  epochs: Int32Array;
  marks: Uint8Array;
  #next: Int32Array;
  #free = 0;
  #used = 0;
  #most = 0;

  constructor(slotBytes: number, capacity = 256) {
    this.slotBytes = slotBytes;
    this.bytes = new Uint8Array(capacity * slotBytes);
    this.lengths = new Int32Array(capacity);
    this.wireBytes = new Int32Array(capacity);
    this.sources = new Int32Array(capacity);
    this.destinations = new Int32Array(capacity);
    this.paths = new Int32Array(capacity);
    this.links = new Int32Array(capacity);
    this.epochs = new Int32Array(capacity);
    this.marks = new Uint8Array(capacity);
    this.#next = Int32Array.from({ length: capacity }, (_, slot) => slot + 1);
  }

  /** Packets that are under way. */
  get used(): number {
    return this.#used;
  }

  /** Most packets that ever were under way together. */
  get most(): number {
    return this.#most;
  }

  /** A slot with cleared marks; its other fields may hold anything. */
  take(): number {
    if (this.#free === this.#next.length) this.#grow();
    const packet = this.#free;
    this.#free = this.#next[packet]!;
    this.#used += 1;
    if (this.#used > this.#most) this.#most = this.#used;
    this.marks[packet] = 0;
    return packet;
  }

  release(packet: number): void {
    this.#next[packet] = this.#free;
    this.#free = packet;
    this.#used -= 1;
  }

  /** A second packet with the same content and place. */
  copy(packet: number): number {
    const twin = this.take();
    const start = packet * this.slotBytes;
    this.bytes.copyWithin(twin * this.slotBytes, start, start + this.lengths[packet]!);
    this.lengths[twin] = this.lengths[packet]!;
    this.wireBytes[twin] = this.wireBytes[packet]!;
    this.sources[twin] = this.sources[packet]!;
    this.destinations[twin] = this.destinations[packet]!;
    this.paths[twin] = this.paths[packet]!;
    this.links[twin] = this.links[packet]!;
    this.epochs[twin] = this.epochs[packet]!;
    this.marks[twin] = this.marks[packet]!;
    return twin;
  }

  #grow(): void {
    const old = this.#next.length;
    const capacity = old * 2;
    const wider = (values: Int32Array): Int32Array => {
      const grown = new Int32Array(capacity);
      grown.set(values);
      return grown;
    };
    const bytes = new Uint8Array(capacity * this.slotBytes);
    bytes.set(this.bytes);
    this.bytes = bytes;
    this.lengths = wider(this.lengths);
    this.wireBytes = wider(this.wireBytes);
    this.sources = wider(this.sources);
    this.destinations = wider(this.destinations);
    this.paths = wider(this.paths);
    this.links = wider(this.links);
    this.epochs = wider(this.epochs);
    const marks = new Uint8Array(capacity);
    marks.set(this.marks);
    this.marks = marks;
    this.#next = wider(this.#next);
    for (let slot = old; slot < capacity; slot += 1) this.#next[slot] = slot + 1;
  }
}
