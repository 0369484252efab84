// Packets of a simulation: numbered entries of typed arrays, so that none is allocated while it runs.

/** Bit of `marks`: a switch saw a long queue (explicit congestion notification). */
export const MARK_ECN = 1;
/** Bit of `marks`: bytes were changed on the way. */
export const MARK_CORRUPT = 2;

/** Most packets of a network that carries no payload are headers of this size. */
const SMALL_BYTES = 128;
const NONE = -1;

export class PacketPool {
  /** Most bytes of one packet. */
  readonly packetBytes: number;
  /**
   * Packet p begins at starts[p]. Replaced when the pool grows. A packet whose payload does not travel is longer than its place:
   * behind the last one lies as much as the longest packet has, because who reads packets refuses one that ends behind the bytes.
   */
  bytes: Uint8Array;
  starts: Float64Array;
  /** Bytes of the packet, and bytes that it takes on a wire. */
  lengths: Int32Array;
  wireBytes: Int32Array;
  sources: Int32Array;
  destinations: Int32Array;
  paths: Int32Array;
  /** Engine of the source and of the destination. */
  lanes: Uint8Array;
  /** The link it is on, and how often that link had failed when the packet entered it. */
  links: Int32Array;
  epochs: Int32Array;
  marks: Uint8Array;
  /** Whether its place has room for SMALL_BYTES only. */
  #small: Uint8Array;
  #next: Int32Array;
  #freeSmall = NONE;
  #freeLarge = NONE;
  #count = 0;
  #placed = 0;
  #used = 0;
  #most = 0;

  constructor(packetBytes: number, capacity = 256) {
    this.packetBytes = packetBytes;
    this.bytes = new Uint8Array(capacity * SMALL_BYTES + packetBytes);
    this.starts = new Float64Array(capacity);
    this.lengths = new Int32Array(capacity);
    this.wireBytes = new Int32Array(capacity);
    this.sources = new Int32Array(capacity);
    this.destinations = new Int32Array(capacity);
    this.paths = new Int32Array(capacity);
    this.lanes = new Uint8Array(capacity);
    this.links = new Int32Array(capacity);
    this.epochs = new Int32Array(capacity);
    this.marks = new Uint8Array(capacity);
    this.#small = new Uint8Array(capacity);
    this.#next = new Int32Array(capacity);
  }

  /** Packets that are under way. */
  get used(): number {
    return this.#used;
  }

  /** Most packets that ever were under way together. */
  get most(): number {
    return this.#most;
  }

  /** A packet with room for so many bytes and cleared marks; its other fields may hold anything. */
  take(bytes: number): number {
    const isSmall = bytes <= SMALL_BYTES;
    let packet = isSmall ? this.#freeSmall : this.#freeLarge;
    if (packet === NONE) packet = this.#add(isSmall);
    else if (isSmall) this.#freeSmall = this.#next[packet]!;
    else this.#freeLarge = this.#next[packet]!;
    this.#used += 1;
    if (this.#used > this.#most) this.#most = this.#used;
    this.marks[packet] = 0;
    return packet;
  }

  release(packet: number): void {
    if (this.#small[packet] === 1) {
      this.#next[packet] = this.#freeSmall;
      this.#freeSmall = packet;
    } else {
      this.#next[packet] = this.#freeLarge;
      this.#freeLarge = packet;
    }
    this.#used -= 1;
  }

  /** Bytes that the packet's place has room for. */
  room(packet: number): number {
    return this.#small[packet] === 1 ? SMALL_BYTES : this.packetBytes;
  }

  /** A second packet with the same content and place. */
  copy(packet: number): number {
    const bytes = this.room(packet);
    const twin = this.take(bytes);
    const start = this.starts[packet]!;
    this.bytes.copyWithin(this.starts[twin]!, start, start + Math.min(bytes, this.lengths[packet]!));
    this.lengths[twin] = this.lengths[packet]!;
    this.wireBytes[twin] = this.wireBytes[packet]!;
    this.sources[twin] = this.sources[packet]!;
    this.destinations[twin] = this.destinations[packet]!;
    this.paths[twin] = this.paths[packet]!;
    this.lanes[twin] = this.lanes[packet]!;
    this.links[twin] = this.links[packet]!;
    this.epochs[twin] = this.epochs[packet]!;
    this.marks[twin] = this.marks[packet]!;
    return twin;
  }

  #add(isSmall: boolean): number {
    const bytes = isSmall ? SMALL_BYTES : this.packetBytes;
    if (this.#count === this.starts.length) this.#growTable();
    const least = this.#placed + bytes + this.packetBytes;
    if (least > this.bytes.length) this.#growBytes(least);
    const packet = this.#count;
    this.#count += 1;
    this.starts[packet] = this.#placed;
    this.#placed += bytes;
    this.#small[packet] = isSmall ? 1 : 0;
    return packet;
  }

  #growBytes(least: number): void {
    const bytes = new Uint8Array(Math.max(least, 2 * this.bytes.length));
    bytes.set(this.bytes);
    this.bytes = bytes;
  }

  #growTable(): void {
    const capacity = this.starts.length * 2;
    const wider = <T extends Int32Array | Uint8Array | Float64Array>(values: T): T => {
      const grown = new (values.constructor as new (length: number) => T)(capacity);
      grown.set(values);
      return grown;
    };
    this.starts = wider(this.starts);
    this.lengths = wider(this.lengths);
    this.wireBytes = wider(this.wireBytes);
    this.sources = wider(this.sources);
    this.destinations = wider(this.destinations);
    this.paths = wider(this.paths);
    this.lanes = wider(this.lanes);
    this.links = wider(this.links);
    this.epochs = wider(this.epochs);
    this.marks = wider(this.marks);
    this.#small = wider(this.#small);
    this.#next = wider(this.#next);
  }
}
