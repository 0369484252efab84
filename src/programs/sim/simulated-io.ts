// A simulated network card: what an engine sends becomes packets on links, and what arrives becomes batches for the engine.
import {
  type Burst,
  copyPayload,
  createReceivedBatch,
  type PacketIo,
  type PlacementRun,
  placeRun,
  type ReceivedBatch,
} from '../../transport/io/packet-io.ts';
import { MARK_CORRUPT, MARK_ECN, type Network, type PacketPool } from './network.ts';

/** Ethernet preamble, header, checksum and gap, IPv4 and UDP headers: what each packet costs on a wire beyond its bytes. */
export const WIRE_OVERHEAD_BYTES = 66;

export interface RailOptions {
  /** Packets that the engine may pass in one burst. */
  readonly burstSegments: number;
  /** Bytes that may wait in the card, for each of its links, before `room` says that it is full. */
  readonly sendBufferBytes: number;
  /** Whether payload travels; without, packets have their sizes and headers, and buffers stay as they are. */
  readonly carryPayload: boolean;
  /** Whether consecutive packets of one sender and path are joined before the engine sees them. */
  readonly join: boolean;
}

interface SimulatedIoOptions extends RailOptions {
  readonly host: number;
  readonly lane: number;
  /** Paths of a lane: those of different lanes have different numbers in the network. */
  readonly lanePaths: number;
  readonly network: Network;
  readonly packets: PacketPool;
  readonly uplinks: readonly number[];
}

/** At most this many packets go to the engine in one batch. */
const BATCH = 64;

export class SimulatedIo implements PacketIo {
  readonly arena = new Uint8Array(65_536);
  readonly burstSegments: number;
  readonly burstBytes = 65_507;
  /** First links of this host. */
  readonly uplinks: readonly number[];
  /** The simulation's clock, set before the engine runs. */
  now = 0;
  /** Packets that have arrived and wait for the engine. */
  waiting = 0;
  /** Packets that were changed on the way and given to the engine. */
  corrupted = 0;
  readonly #options: SimulatedIoOptions;
  readonly #batch: ReceivedBatch;
  readonly #joined: Uint8Array;
  readonly #sendBufferBytes: number;
  #inbox = new Int32Array(64);

  constructor(options: SimulatedIoOptions) {
    this.#options = options;
    this.burstSegments = options.burstSegments;
    this.uplinks = options.uplinks;
    this.#sendBufferBytes = options.sendBufferBytes * options.uplinks.length;
    // Joined packets lie behind one another; others stay where they are in the pool.
    this.#joined = new Uint8Array(options.join ? BATCH * options.packets.packetBytes : 0);
    this.#batch = createReceivedBatch(this.#joined, BATCH);
  }

  room(): number {
    return Math.max(0, Math.ceil((this.#sendBufferBytes - this.#backlog()) / this.burstBytes));
  }

  /** When `room` will be more than 0 again. */
  whenRoom(): number {
    const { network } = this.#options;
    const excess = this.#backlog() - this.#sendBufferBytes;
    if (excess < 0) return this.now;
    const rate = this.uplinks.reduce((sum, link) => sum + network.bytesPerMicrosecond(link), 0);
    return this.now + (excess + 1) / rate;
  }

  send(burst: Burst): void {
    const { packets, network, host, lane, lanePaths, carryPayload } = this.#options;
    const { peer, path, count, headerBytes, region } = burst;
    for (let index = 0; index < count; index += 1) {
      const payload = region === undefined ? 0 : index === count - 1 ? burst.lastPayloadBytes : burst.payloadBytes;
      const packet = packets.take(carryPayload ? headerBytes + payload : headerBytes);
      const start = packets.starts[packet]!;
      const header = burst.headerOffset + index * headerBytes;
      packets.bytes.set(this.arena.subarray(header, header + headerBytes), start);
      if (carryPayload) copyPayload(burst, index, packets.bytes, start + headerBytes);
      packets.lengths[packet] = headerBytes + payload;
      packets.wireBytes[packet] = headerBytes + payload + WIRE_OVERHEAD_BYTES;
      packets.sources[packet] = host;
      packets.destinations[packet] = peer;
      packets.paths[packet] = lane * lanePaths + path;
      packets.lanes[packet] = lane;
      network.send(packet, this.now);
    }
  }

  /** Packets were sent when they were given. */
  flush(): void {}

  place(run: PlacementRun): void {
    if (this.#options.carryPayload) placeRun(run);
  }

  /** A packet of the pool has arrived and is the card's until it was given to the engine. */
  receive(packet: number): void {
    if (this.waiting === this.#inbox.length) {
      const wider = new Int32Array(this.waiting * 2);
      wider.set(this.#inbox);
      this.#inbox = wider;
    }
    this.#inbox[this.waiting] = packet;
    this.waiting += 1;
  }

  /** Gives all that has arrived to `consume`, in batches, and then back to the pool. */
  poll(consume: (batch: ReceivedBatch) => void): void {
    const { packets, join } = this.#options;
    const count = this.waiting;
    for (let first = 0; first < count; first += BATCH) {
      const end = Math.min(count, first + BATCH);
      if (join) this.#fillJoined(first, end);
      else this.#fillDirect(first, end);
      consume(this.#batch);
      for (let index = first; index < end; index += 1) {
        const packet = this.#inbox[index]!;
        if ((packets.marks[packet]! & MARK_CORRUPT) !== 0) this.corrupted += 1;
        packets.release(packet);
      }
    }
    this.waiting = 0;
  }

  /** Forgets what has arrived: the host is dead. */
  discard(): void {
    for (let index = 0; index < this.waiting; index += 1) this.#options.packets.release(this.#inbox[index]!);
    this.waiting = 0;
  }

  #backlog(): number {
    const { network } = this.#options;
    let bytes = 0;
    for (const link of this.uplinks) bytes += network.queuedBytes(link, this.now);
    return bytes;
  }

  #fillDirect(first: number, end: number): void {
    const { packets } = this.#options;
    const batch = this.#batch;
    batch.bytes = packets.bytes;
    batch.count = end - first;
    for (let index = first; index < end; index += 1) {
      const packet = this.#inbox[index]!;
      const entry = index - first;
      batch.offset[entry] = packets.starts[packet]!;
      batch.length[entry] = packets.lengths[packet]!;
      batch.segmentBytes[entry] = 0;
      batch.marked[entry] = packets.marks[packet]! & MARK_ECN;
      batch.peer[entry] = packets.sources[packet]!;
    }
  }

  /**
   * As the kernel does: packets of one sender, path and mark, all of one size but a shorter last one, at most 64 KiB. An
   * empty packet stays alone: within others nobody would see it.
   */
  #fillJoined(first: number, end: number): void {
    const { packets } = this.#options;
    const batch = this.#batch;
    let entry = -1;
    let to = 0;
    let open = false;
    let path = -1;
    for (let index = first; index < end; index += 1) {
      const packet = this.#inbox[index]!;
      const start = packets.starts[packet]!;
      const length = packets.lengths[packet]!;
      const mark = packets.marks[packet]! & MARK_ECN;
      const source = packets.sources[packet]!;
      this.#joined.set(packets.bytes.subarray(start, start + length), to);
      const size: number = open ? batch.segmentBytes[entry]! || batch.length[entry]! : 0;
      const fits =
        open &&
        length > 0 &&
        batch.peer[entry] === source &&
        path === packets.paths[packet] &&
        batch.marked[entry] === mark &&
        length <= size &&
        batch.length[entry]! + length <= 65_507;
      if (fits) {
        batch.segmentBytes[entry] = size;
        batch.length[entry] = batch.length[entry]! + length;
        open = length === size;
      } else {
        entry += 1;
        batch.offset[entry] = to;
        batch.length[entry] = length;
        batch.segmentBytes[entry] = 0;
        batch.marked[entry] = mark;
        batch.peer[entry] = source;
        path = packets.paths[packet]!;
        open = length > 0;
      }
      to += length;
    }
    batch.count = entry + 1;
  }
}
