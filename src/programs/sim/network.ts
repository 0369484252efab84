// Future events by time, packets, and links at work: packets wait, travel, are lost, marked, doubled, delayed and changed, and arrive.
import { ARRIVED, type NetworkTopology } from './topology.ts';

/** Subjects are below this; kinds are 0 to 15. */
const SUBJECTS = 2 ** 28;

/** No allocation per event: `pop` leaves what it took in `time`, `kind` and `subject`. */
export class EventQueue {
  time = 0;
  kind = 0;
  subject = 0;
  #size = 0;
  #sequence = 0;
  #times = new Float64Array(1024);
  #sequences = new Float64Array(1024);
  #events = new Uint32Array(1024);

  get size(): number {
    return this.#size;
  }

  /** Time in microseconds, not before that of the last event popped. */
  push(time: number, kind: number, subject: number): void {
    if (this.#size === this.#times.length) this.#grow();
    const times = this.#times;
    const sequences = this.#sequences;
    const events = this.#events;
    let at = this.#size;
    this.#size += 1;
    while (at > 0) {
      const parent = (at - 1) >> 2;
      // A parent with the same time was inserted before.
      if (times[parent]! <= time) break;
      times[at] = times[parent]!;
      sequences[at] = sequences[parent]!;
      events[at] = events[parent]!;
      at = parent;
    }
    times[at] = time;
    sequences[at] = this.#sequence;
    this.#sequence += 1;
    events[at] = kind * SUBJECTS + subject;
  }

  /** Takes the first event; false when there is none. */
  pop(): boolean {
    if (this.#size === 0) return false;
    const event = this.#events[0]!;
    this.time = this.#times[0]!;
    this.kind = Math.floor(event / SUBJECTS);
    this.subject = event % SUBJECTS;
    this.#size -= 1;
    if (this.#size > 0) this.#sink();
    return true;
  }

  /** The last node moves to the root and down until none of its children comes before it. */
  #sink(): void {
    const times = this.#times;
    const sequences = this.#sequences;
    const events = this.#events;
    const size = this.#size;
    const time = times[size]!;
    const sequence = sequences[size]!;
    const event = events[size]!;
    let at = 0;
    for (;;) {
      const first = 4 * at + 1;
      if (first >= size) break;
      let best = first;
      let bestTime = times[first]!;
      const end = Math.min(first + 4, size);
      for (let child = first + 1; child < end; child += 1) {
        const childTime = times[child]!;
        if (childTime < bestTime || (childTime === bestTime && sequences[child]! < sequences[best]!)) {
          best = child;
          bestTime = childTime;
        }
      }
      if (bestTime > time || (bestTime === time && sequences[best]! > sequence)) break;
      times[at] = bestTime;
      sequences[at] = sequences[best]!;
      events[at] = events[best]!;
      at = best;
    }
    times[at] = time;
    sequences[at] = sequence;
    events[at] = event;
  }

  #grow(): void {
    const capacity = this.#times.length * 2;
    const times = new Float64Array(capacity);
    const sequences = new Float64Array(capacity);
    const events = new Uint32Array(capacity);
    times.set(this.#times);
    sequences.set(this.#sequences);
    events.set(this.#events);
    this.#times = times;
    this.#sequences = sequences;
    this.#events = events;
  }
}

// One event per packet and link.

// Packets of a simulation: numbered entries of typed arrays, so that none is allocated while it runs.

/** Bit of `marks`: a switch saw a long queue (explicit congestion notification). */
export const MARK_ECN = 1;
/** Bit of `marks`: bytes were changed on the way. */
export const MARK_CORRUPT = 2;

/** Most packets of a network that carries no payload are headers of this size. */
const SMALL_BYTES = 128;
const NONE = -1;

/** Fields of a packet that travel with it, by the type of their arrays. */
const words = ['lengths', 'wireBytes', 'sources', 'destinations', 'ports', 'paths', 'links', 'epochs'] as const;
const octets = ['lanes', 'marks'] as const;
const carriedFields = [...words, ...octets] as const;

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
  /** What tells connections between the same hosts apart. */
  ports: Int32Array;
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
    this.ports = new Int32Array(capacity);
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
    for (const field of carriedFields) this[field][twin] = this[field][packet]!;
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
    for (const field of words) this[field] = wider(this[field]);
    for (const field of octets) this[field] = wider(this[field]);
    this.#small = wider(this.#small);
    this.#next = wider(this.#next);
  }
}

/** Why packets did not arrive, and what else happened to them. */
interface NetworkCounts {
  readonly sent: number;
  readonly delivered: number;
  /** No room in a queue. */
  readonly droppedFull: number;
  /** Random loss. */
  readonly droppedLoss: number;
  /** Packets on a link that was down, or that failed before they arrived. */
  readonly droppedDown: number;
  readonly marked: number;
  readonly duplicated: number;
  readonly corrupted: number;
  readonly delayed: number;
}

interface NetworkOptions {
  readonly topology: NetworkTopology;
  readonly events: EventQueue;
  readonly packets: PacketPool;
  readonly random: () => number;
  /** Kind of the event "packet `subject` reaches the end of its link", which must be given to `arrive`. */
  readonly arrivalKind: number;
}

/** Fields of a link in one row of numbers. */
const RATE = 0;
const DELAY = 1;
const QUEUE = 2;
const ECN = 3;
const LOSS = 4;
const REORDER = 5;
const JITTER = 6;
const DUPLICATE = 7;
const CORRUPT = 8;
/** When the last packet that entered will have left the sender. */
const BUSY_UNTIL = 9;
const FIELDS = 10;

/** Bytes per microsecond of one Gbps. */
const BYTES_PER_GIGABIT = 125;

export class Network {
  readonly #topology: NetworkTopology;
  readonly #events: EventQueue;
  readonly #packets: PacketPool;
  readonly #random: () => number;
  readonly #arrivalKind: number;
  readonly #fields: Float64Array;
  readonly #down: Uint8Array;
  readonly #failures: Int32Array;
  readonly #carried: Float64Array;
  readonly #longest: Float64Array;
  readonly #counts = {
    sent: 0,
    delivered: 0,
    droppedFull: 0,
    droppedLoss: 0,
    droppedDown: 0,
    marked: 0,
    duplicated: 0,
    corrupted: 0,
    delayed: 0,
  };

  constructor({ topology, events, packets, random, arrivalKind }: NetworkOptions) {
    this.#topology = topology;
    this.#events = events;
    this.#packets = packets;
    this.#random = random;
    this.#arrivalKind = arrivalKind;
    const links = topology.links.length;
    this.#fields = new Float64Array(links * FIELDS);
    this.#down = new Uint8Array(links);
    this.#failures = new Int32Array(links);
    this.#carried = new Float64Array(links);
    this.#longest = new Float64Array(links);
    for (const [link, options] of topology.links.entries()) {
      const { gigabitsPerSecond, delay, queueBytes, ecnBytes, loss, reorder, jitter, duplicate, corrupt } = options;
      const rate = gigabitsPerSecond * BYTES_PER_GIGABIT;
      const row = [rate, delay, queueBytes, ecnBytes, loss, reorder, jitter, duplicate, corrupt, 0];
      this.#fields.set(row, link * FIELDS);
    }
  }

  get counts(): NetworkCounts {
    return this.#counts;
  }

  /** Bytes that passed a link, and the longest queue before it. */
  linkLoad(link: number): { readonly bytes: number; readonly longestQueueBytes: number } {
    return { bytes: this.#carried[link]!, longestQueueBytes: this.#longest[link]! };
  }

  /** Bytes that wait before a link now. */
  queuedBytes(link: number, now: number): number {
    const at = link * FIELDS;
    return Math.max(0, this.#fields[at + BUSY_UNTIL]! - now) * this.#fields[at + RATE]!;
  }

  bytesPerMicrosecond(link: number): number {
    return this.#fields[link * FIELDS + RATE]!;
  }

  /** A host sends a packet of the pool whose source, destination, path, length and wire bytes are set; its own link never drops it for want of room. */
  send(packet: number, now: number): void {
    const { sources, destinations, paths } = this.#packets;
    const link = this.#topology.firstLink(sources[packet]!, destinations[packet]!, paths[packet]!);
    this.#counts.sent += 1;
    // A host does not drop what it sends: it waits for room in its own card.
    this.#enter(packet, link, now, Number.POSITIVE_INFINITY);
  }

  /** A packet reached the end of its link. True when that is its destination: it is the caller's to release. */
  arrive(packet: number, now: number): boolean {
    const packets = this.#packets;
    const link = packets.links[packet]!;
    if (this.#failures[link] !== packets.epochs[packet]) {
      this.#counts.droppedDown += 1;
      packets.release(packet);
      return false;
    }
    const source = packets.sources[packet]!;
    const destination = packets.destinations[packet]!;
    const next = this.#topology.nextLink(link, source, destination, packets.paths[packet]!);
    if (next === ARRIVED) {
      this.#counts.delivered += 1;
      return true;
    }
    this.#enter(packet, next, now, this.#fields[next * FIELDS + QUEUE]!);
    return false;
  }

  /** What is on the link is lost, and all that comes until it recovers. */
  fail(link: number): void {
    if (this.#down[link] === 1) return;
    this.#down[link] = 1;
    this.#failures[link] = this.#failures[link]! + 1;
  }

  recover(link: number, now: number): void {
    this.#down[link] = 0;
    this.#fields[link * FIELDS + BUSY_UNTIL] = now;
  }

  #enter(packet: number, link: number, now: number, room: number): void {
    const packets = this.#packets;
    const fields = this.#fields;
    const counts = this.#counts;
    const at = link * FIELDS;
    if (this.#down[link] === 1) {
      counts.droppedDown += 1;
      packets.release(packet);
      return;
    }
    const rate = fields[at + RATE]!;
    const begin = Math.max(now, fields[at + BUSY_UNTIL]!);
    const queued = (begin - now) * rate;
    const bytes = packets.wireBytes[packet]!;
    if (queued + bytes > room) {
      counts.droppedFull += 1;
      packets.release(packet);
      return;
    }
    const end = begin + bytes / rate;
    fields[at + BUSY_UNTIL] = end;
    this.#carried[link] = this.#carried[link]! + bytes;
    if (queued > this.#longest[link]!) this.#longest[link] = queued;
    if (queued > fields[at + ECN]! && room !== Number.POSITIVE_INFINITY) {
      counts.marked += 1;
      packets.marks[packet] = packets.marks[packet]! | MARK_ECN;
    }
    const random = this.#random;
    const loss = fields[at + LOSS]!;
    if (loss > 0 && random() < loss) {
      counts.droppedLoss += 1;
      packets.release(packet);
      return;
    }
    packets.links[packet] = link;
    packets.epochs[packet] = this.#failures[link]!;
    const arrival = end + fields[at + DELAY]!;
    const duplicate = fields[at + DUPLICATE]!;
    if (duplicate > 0 && random() < duplicate) {
      counts.duplicated += 1;
      this.#travel(packets.copy(packet), arrival + random() * fields[at + JITTER]!, at);
    }
    this.#travel(packet, arrival, at);
  }

  #travel(packet: number, arrival: number, at: number): void {
    const fields = this.#fields;
    const random = this.#random;
    const reorder = fields[at + REORDER]!;
    let time = arrival;
    if (reorder > 0 && random() < reorder) {
      this.#counts.delayed += 1;
      time += random() * fields[at + JITTER]!;
    }
    const corrupt = fields[at + CORRUPT]!;
    if (corrupt > 0 && random() < corrupt) this.#corrupt(packet);
    this.#events.push(time, this.#arrivalKind, packet);
  }

  /** Changes a byte or cuts the end off. */
  #corrupt(packet: number): void {
    const packets = this.#packets;
    const random = this.#random;
    const length = packets.lengths[packet]!;
    packets.marks[packet] = packets.marks[packet]! | MARK_CORRUPT;
    this.#counts.corrupted += 1;
    if (random() < 0.1) {
      packets.lengths[packet] = Math.floor(random() * length);
      return;
    }
    const at = packets.starts[packet]! + Math.floor(random() * Math.min(length, packets.room(packet)));
    packets.bytes[at] = packets.bytes[at]! ^ (1 + Math.floor(random() * 255));
  }
}
