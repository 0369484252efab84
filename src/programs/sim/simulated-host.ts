// A simulated host: its network cards, its engines, memory that all of them know, and its requests, whose parts end on several engines.
import { WeftlineError } from '../../core/errors.ts';
import type { Engine } from '../../transport/engine/engine.ts';
import type { Region, RegionOptions } from '../../transport/engine/region.ts';
import {
  type ConnectionStatistics,
  type EngineHandle,
  type MessageOptions,
  type RemoteOptions,
  requestStatus,
  type RequestStatus,
  type ScatterOptions,
  type SignalOptions,
  type TransportConnection,
} from '../../transport/engine/transport-engine.ts';

import { LaneChoice, type LanePart, type Spread } from '../../transport/lanes/lane-choice.ts';
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

/** A peer of an engine that gives its peers numbers: its host, and what both ends call the connection. */
export interface PeerEnd {
  readonly host: number;
  readonly port: number;
}

/** No peer of the engine, and the port of packets between hosts that have one connection at most. */
const NOBODY = -1;
const PLAIN = -1;

/** Most packets that go to the engine in one batch. */
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
  /** What peers are whose numbers are the engine's own, by number, and the number of each port. */
  readonly #ends = new Map<number, PeerEnd>();
  readonly #numbers = new Map<number, number>();
  #usesPorts = false;

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

  /** The engine calls a peer by this number; without any such, peers are called as their hosts are. */
  join(peer: number, end: PeerEnd): void {
    this.#usesPorts = true;
    this.#ends.set(peer, end);
    this.#numbers.set(end.port, peer);
  }

  /** What comes from the peer is dropped from now on. */
  part(peer: number): void {
    this.#numbers.delete(this.#ends.get(peer)?.port ?? NOBODY);
    this.#ends.delete(peer);
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
    const end = this.#ends.get(peer);
    // The paths to a peer that has parted are closed.
    if (end === undefined && this.#usesPorts) return;
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
      packets.destinations[packet] = end?.host ?? peer;
      packets.ports[packet] = end?.port ?? PLAIN;
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

  #peerOf(packet: number): number {
    const { packets } = this.#options;
    const port = packets.ports[packet]!;
    return port === PLAIN ? packets.sources[packet]! : (this.#numbers.get(port) ?? NOBODY);
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
      batch.peer[entry] = this.#peerOf(packet);
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
      const source = this.#peerOf(packet);
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

// The host.

export interface SimulatedEngine {
  /** Among those of all hosts. */
  readonly node: number;
  readonly engine: Engine;
  readonly io: SimulatedIo;
}

/** The end of a request; `error` if it failed. */
export interface RequestEnd {
  readonly request: number;
  readonly error: WeftlineError | undefined;
  /** What a receive brought. */
  readonly bytes: number;
}

interface Part {
  readonly lane: number;
  readonly connection: TransportConnection;
  readonly handle: EngineHandle;
}

/** A part that is to be posted. */
interface NewPart {
  readonly lane: number;
  readonly connection: TransportConnection;
  readonly post: () => EngineHandle;
}

interface PendingRequest {
  readonly parts: Part[];
  left: number;
  bytes: number;
  error: WeftlineError | undefined;
}

export class SimulatedHost {
  readonly index: number;
  readonly engines: readonly SimulatedEngine[];
  /** Set before requests are posted. */
  onEnd: (end: RequestEnd) => void = () => {};
  onConnectionEnd: (connection: TransportConnection, error: WeftlineError) => void = () => {};
  /** Called before an engine of the host sends what is due, and when it has. */
  beforeRound: (lane: number) => void = () => {};
  afterRound: (lane: number) => void = () => {};
  alive = true;
  readonly #later: (action: () => void) => void;
  readonly #requests = new Map<number, PendingRequest>();
  /** The request of a handle, by engine. */
  readonly #owners: readonly Map<EngineHandle, number>[];
  /** The regions of all engines, by that of the first one. */
  readonly #regions = new Map<Region, readonly Region[]>();
  /** Why connections that this side ended have ended, in place of what their engines say. */
  readonly #reasons = new Map<TransportConnection, WeftlineError>();
  #next = 1;

  /** `later` calls an action when the present event is over. */
  constructor(index: number, engines: readonly SimulatedEngine[], later: (action: () => void) => void) {
    this.index = index;
    this.engines = engines;
    this.#later = later;
    this.#owners = engines.map(() => new Map());
  }

  /** The same memory at all engines, under one name. */
  register(options: RegionOptions): Region {
    const [first, ...others] = this.engines as readonly [SimulatedEngine, ...SimulatedEngine[]];
    const region = first.engine.register(options);
    const { id, key } = region;
    const more = others.map(({ engine }) => engine.register({ ...options, name: { id, key } }));
    this.#regions.set(region, [region, ...more]);
    return region;
  }

  regionOf(region: Region, lane: number): Region {
    return this.#regions.get(region)?.[lane] ?? region;
  }

  /** A request of so many parts. */
  open(parts: number): number {
    const request = this.#next;
    this.#next += 1;
    this.#requests.set(request, { parts: [], left: parts, bytes: 0, error: undefined });
    return request;
  }

  /** Posts a part to its engine. What that refuses fails when the present event is over. */
  put(request: number, { lane, connection, post }: NewPart): void {
    const pending = this.#requests.get(request);
    if (pending === undefined) return;
    try {
      const handle = post();
      pending.parts.push({ lane, connection, handle });
      this.#owners[lane]?.set(handle, request);
    } catch (error) {
      if (!(error instanceof WeftlineError)) throw error;
      this.#later(() => this.#partEnded(request, this.#reasons.get(connection) ?? error, 0));
    }
  }

  /** An engine says that a request of its own has ended. */
  ended(lane: number, handle: EngineHandle, status: RequestStatus): void {
    const owners = this.#owners[lane]!;
    const request = owners.get(handle);
    if (request === undefined) return;
    owners.delete(handle);
    const { engine } = this.engines[lane]!;
    const part = this.#requests.get(request)?.parts.find((one) => one.handle === handle && one.lane === lane);
    const reason = part && this.#reasons.get(part.connection);
    const error = status === requestStatus.failed ? (reason ?? engine.requestError(handle)) : undefined;
    const bytes = status === requestStatus.failed ? 0 : engine.receivedBytes(handle);
    this.#partEnded(request, error, bytes);
  }

  /** Withdraws the parts of a request that are pending. False if there are none. */
  cancel(request: number): boolean {
    const parts = this.#requests.get(request)?.parts ?? [];
    return parts.map(({ connection, handle }) => connection.cancel(handle)).includes(true);
  }

  /** What requests of these ends fail with from now on. */
  noteReason(connections: readonly TransportConnection[], reason: WeftlineError): void {
    for (const connection of connections) if (!this.#reasons.has(connection)) this.#reasons.set(connection, reason);
  }

  #partEnded(request: number, error: WeftlineError | undefined, bytes: number): void {
    const pending = this.#requests.get(request);
    if (pending === undefined) return;
    pending.error ??= error;
    pending.bytes += bytes;
    pending.left -= 1;
    if (pending.left > 0) return;
    this.#requests.delete(request);
    this.onEnd({ request, error: pending.error, bytes: pending.bytes });
  }
}

// One end of a connection between hosts with several engines: which lane carries what is decided as on a real host.

interface LaneConnectionOptions {
  readonly host: SimulatedHost;
  /** Connections by lane, which is also the number of the engine. */
  readonly lanes: readonly TransportConnection[];
  readonly spread: Spread;
}

/** Requests are numbers of the host. */
export class LaneConnection {
  readonly #host: SimulatedHost;
  readonly #lanes: readonly TransportConnection[];
  readonly #choice: LaneChoice;
  #isOver = false;
  /** The reason of the lane that ended first. */
  #reason: WeftlineError | undefined;

  constructor({ host, lanes, spread }: LaneConnectionOptions) {
    this.#host = host;
    this.#lanes = lanes;
    this.#choice = new LaneChoice(lanes.length, spread);
  }

  get peerName(): string {
    return this.#lanes[0]!.peerName;
  }

  get payloadBytes(): number {
    return this.#lanes[0]!.payloadBytes;
  }

  get error(): WeftlineError | undefined {
    return this.#reason ?? this.#lanes.find(({ error }) => error !== undefined)?.error;
  }

  /** The counters of all lanes together, and the paths of each. */
  get statistics(): ConnectionStatistics {
    return this.#lanes.map(({ statistics }) => statistics).reduce(add);
  }

  has(lane: TransportConnection): boolean {
    return this.#lanes.includes(lane);
  }

  postSend(options: MessageOptions): number {
    return this.#message(options, true);
  }

  postReceive(options: MessageOptions): number {
    return this.#message(options, false);
  }

  /** Writes stay on their flow's home lane, as signals and flushes do. */
  write({ region, ...options }: RemoteOptions): number {
    return this.#postHome(options.flow, (connection, lane) =>
      connection.write({ ...options, region: this.#host.regionOf(region, lane) }),
    );
  }

  read(options: RemoteOptions): number {
    this.#check();
    const { offset, bytes, remoteOffset, flow = 0 } = options;
    this.#choice.read(this.#choice.flow(flow), bytes);
    return this.#post(options.region, (share) => {
      const place = { offset: offset + share.offset, bytes: share.bytes, remoteOffset: remoteOffset + share.offset };
      return (connection, region) => connection.read({ ...options, ...place, region });
    });
  }

  scatter({ region, ...options }: ScatterOptions): number {
    return this.#postHome(options.flow, (connection, lane) =>
      connection.scatter({ ...options, region: this.#host.regionOf(region, lane) }),
    );
  }

  gather({ region, ...options }: ScatterOptions): number {
    return this.#postHome(options.flow, (connection, lane) =>
      connection.gather({ ...options, region: this.#host.regionOf(region, lane) }),
    );
  }

  signal(options: SignalOptions): number {
    return this.#postHome(options.flow, (connection) => connection.signal(options));
  }

  flush(flow = 0): number {
    return this.#postHome(flow, (connection) => connection.flush(flow));
  }

  cancel(request: number): boolean {
    return this.#host.cancel(request);
  }

  close(): void {
    this.end();
    for (const lane of this.#lanes) lane.close();
  }

  /** A lane has ended: so have the others, for the same reason. */
  end(reason?: WeftlineError): void {
    if (this.#isOver) return;
    this.#isOver = true;
    this.#reason = reason;
    if (reason === undefined) return;
    this.#host.noteReason(this.#lanes, reason);
    for (const lane of this.#lanes) if (lane.error === undefined) lane.close();
  }

  #message(options: MessageOptions, isSend: boolean): number {
    this.#check();
    const { offset, bytes, flow = 0 } = options;
    const order = this.#choice.flow(flow);
    this.#choice.message(order, isSend ? order.sends : order.receives, bytes);
    const request = this.#post(options.region, (share) => {
      if (!isSend) return (connection, region) => connection.postReceive({ ...options, region });
      const whole = share.bytes === bytes ? undefined : { partOffset: share.offset, bytes };
      const part = { ...options, offset: offset + share.offset, bytes: share.bytes, whole };
      return (connection, region) => connection.postSend({ ...part, region });
    });
    if (isSend) order.sends += 1;
    else order.receives += 1;
    return request;
  }

  #postHome(flow: number | undefined, post: (connection: TransportConnection, lane: number) => EngineHandle): number {
    this.#check();
    const { home: lane } = this.#choice.flow(flow ?? 0);
    const request = this.#host.open(1);
    const connection = this.#lanes[lane]!;
    this.#host.put(request, { lane, connection, post: () => post(connection, lane) });
    return request;
  }

  /** A request of the parts that were chosen last. */
  #post(region: Region, prepare: (share: LanePart) => PostPart): number {
    const host = this.#host;
    const { count, parts } = this.#choice;
    const request = host.open(count);
    for (const share of parts.slice(0, count)) {
      const { lane } = share;
      const post = prepare(share);
      const connection = this.#lanes[lane]!;
      const here = host.regionOf(region, lane);
      host.put(request, { lane, connection, post: () => post(connection, here) });
    }
    return request;
  }

  #check(): void {
    const { error } = this;
    if (error !== undefined) throw error;
  }
}

type PostPart = (connection: TransportConnection, region: Region) => EngineHandle;

function add(sum: ConnectionStatistics, other: ConnectionStatistics): ConnectionStatistics {
  const { paths, ...counters } = sum;
  const names = Object.keys(counters) as (keyof typeof counters)[];
  const sums = Object.fromEntries(names.map((name) => [name, sum[name] + other[name]])) as typeof counters;
  return { ...sums, paths: [...paths, ...other.paths] };
}
