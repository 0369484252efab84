// Links at work: packets wait, travel, are lost, marked, doubled, delayed and changed, and arrive. One event per packet and link.
import type { EventQueue } from './event-queue.ts';
import type { NetworkCounts } from './link.ts';
import { MARK_CORRUPT, MARK_ECN, type PacketPool } from './packet-pool.ts';
import { ARRIVED, type NetworkTopology } from './topology.ts';

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
