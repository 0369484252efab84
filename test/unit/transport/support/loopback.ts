// Two engines and a seeded network between them: fixed delay per path, loss, duplication, reordering, corruption.
import { readSettings, type Settings, type WeftlineError } from 'weftline';
import { seededRandom } from '#lib/core/seeded-random.js';
import { splitSessionKey } from '#lib/transport/authentication/packet-guard.js';
import { Engine } from '#lib/transport/engine/engine.js';
import { copyPayload, createReceivedBatch, type Burst, type PacketIo, placeRun } from '#lib/transport/io/packet-io.js';
import type { Region } from '#lib/transport/engine/region.js';
import { type EngineHandle, requestStatus, type TransportConnection } from '#lib/transport/engine/transport-engine.js';

export interface LoopbackOptions {
  readonly seed?: number;
  /** Secret of all connections; its upper half is where numbers begin. */
  readonly secret?: bigint;
  readonly paths?: number;
  readonly segmentBytes?: number;
  readonly burstSegments?: number;
  /** One way, in microseconds, of path p. */
  readonly delay?: (path: number) => number;
  /** Bytes per microsecond of each path and direction, behind a queue of `queueBytes`; unbounded if missing. */
  readonly rate?: number;
  readonly queueBytes?: number;
  /** Chances per packet. */
  readonly loss?: number;
  readonly duplication?: number;
  readonly reordering?: number;
  readonly corruption?: number;
  readonly settings?: Partial<Settings>;
  /** What both sides of a connection have agreed; without it the settings count. */
  readonly receiverCredits?: boolean;
  readonly keepsPlaces?: boolean;
  /** Hold the packets of a burst together, as receive offload does. */
  readonly join?: boolean;
  /** Payload is put where the engine says before it takes the packet in, as sockets do with large packets. */
  readonly direct?: boolean;
  /** A packet for which this is true is lost. */
  readonly lose?: (packet: Flying) => boolean;
}

export interface Flying {
  readonly at: number;
  readonly order: number;
  readonly to: Side;
  readonly path: number;
  readonly bytes: Uint8Array;
  readonly segmentBytes: number;
}

/** In place of native addresses: a region at each multiple. */
const ADDRESS_STEP = 2 ** 40;
const HEADER_BYTES = 64;

/** One engine with its end of the network. */
export class Side implements PacketIo {
  readonly arena = new Uint8Array(262_144);
  readonly burstSegments: number;
  readonly burstBytes = 65_507;
  readonly engine: Engine;
  readonly name: string;
  connection!: TransportConnection;
  other!: Side;
  readonly ended: WeftlineError[] = [];
  readonly completed: EngineHandle[] = [];
  readonly #net: Loopback;
  readonly #memories: Uint8Array[] = [];

  constructor(net: Loopback, name: string, poll: boolean) {
    this.#net = net;
    this.name = name;
    this.burstSegments = net.options.burstSegments ?? 32;
    this.engine = new Engine({
      io: this,
      settings: readSettings(net.options.settings, {}),
      seed: net.options.seed ?? 1,
      onConnectionEnd: (_connection, error) => this.ended.push(error),
      ...(poll ? {} : { onCompletion: (handle: EngineHandle) => this.completed.push(handle) }),
    });
  }

  room(): number {
    return 64;
  }

  send(burst: Burst): void {
    this.#net.carry(this, burst);
  }

  flush(): void {
    // What `send` took has been copied; whatever still pointed here would now be wrong.
    this.arena.fill(0xee);
  }

  place = placeRun;

  region(bytes: number, remote = { read: true, write: true }): Region {
    return this.regionOf(new Uint8Array(bytes), remote);
  }

  regionOf(bytes: Uint8Array, remote = { read: true, write: true }): Region {
    if (this.#net.options.direct !== true) return this.engine.register({ bytes, remote });
    this.#memories.push(bytes);
    return this.engine.register({ bytes, remote, address: this.#memories.length * ADDRESS_STEP });
  }

  /** The memory that `address` is said to be of, which must hold `bytes` from there on. */
  memoryAt(address: number, bytes: number): Uint8Array {
    const memory = this.#memories[Math.floor(address / ADDRESS_STEP) - 1];
    const at = address % ADDRESS_STEP;
    if (memory === undefined || at + bytes > memory.length) throw new Error(`${bytes} bytes at ${address}: nowhere`);
    return memory.subarray(at, at + bytes);
  }
}

export class Loopback {
  readonly options: LoopbackOptions;
  readonly a: Side;
  readonly b: Side;
  now = 1000;
  /** Paths that carry nothing. */
  readonly dead = new Set<number>();
  /** Sides that have died: nothing reaches them and they do nothing. */
  readonly gone = new Set<Side>();
  packets = 0;
  /** Packets whose payload went straight to its place. */
  placed = 0;
  readonly #linkFree = new Map<string, number>();
  #order = 0;
  readonly #flying: Flying[] = [];
  readonly #random: () => number;
  readonly #batch = createReceivedBatch(new Uint8Array(65_536), 1);

  constructor(options: LoopbackOptions = {}) {
    this.options = options;
    this.#random = seededRandom((options.seed ?? 1) ^ 0x5eed);
    this.a = new Side(this, 'a', true);
    this.b = new Side(this, 'b', true);
    this.a.other = this.b;
    this.b.other = this.a;
    [this.a.connection, this.b.connection] = this.connect();
  }

  /** One more connection: the ends at `a` and at `b`. */
  connect(): [TransportConnection, TransportConnection] {
    const idA = this.a.engine.reserveConnectionId();
    const idB = this.b.engine.reserveConnectionId();
    const shared = {
      secret: this.options.secret ?? 0x0123_4567_89ab_cdefn,
      paths: this.options.paths ?? 1,
      segmentBytes: this.options.segmentBytes ?? 1368,
      receiverCredits: this.options.receiverCredits,
      keepsPlaces: this.options.keepsPlaces,
    };
    const keys = (end: 'caller' | 'listener') =>
      this.options.settings?.transportAuthentication === true
        ? { packetKeys: splitSessionKey(new Uint8Array(32).fill(idA), end) }
        : {};
    const a = { ...shared, ...keys('caller'), peer: 1, peerName: 'rank 1 (b)', localId: idA, remoteId: idB };
    const b = { ...shared, ...keys('listener'), peer: 0, peerName: 'rank 0 (a)', localId: idB, remoteId: idA };
    return [this.a.engine.createConnection(a), this.b.engine.createConnection(b)];
  }

  /** Runs until `done`, or for `limit` microseconds of virtual time. Returns whether it got done. */
  run(done: () => boolean, limit = 60_000_000): boolean {
    const end = this.now + limit;
    for (;;) {
      this.#step(this.a);
      this.#step(this.b);
      if (done()) return true;
      const next = Math.min(this.#flying[0]?.at ?? Infinity, this.#deadline(this.a), this.#deadline(this.b));
      if (next > end || next === Infinity) {
        this.now = Math.min(next, end);
        return done();
      }
      this.now = Math.max(this.now + 1, next);
      while (this.#flying.length > 0 && (this.#flying[0] as Flying).at <= this.now) {
        this.#deliver(this.#flying.shift() as Flying);
      }
    }
  }

  /** Until nothing is under way and no timer is set. */
  settle(limit = 60_000_000): void {
    this.run(() => false, limit);
  }

  carry(from: Side, burst: Burst): void {
    if (this.gone.has(from)) return;
    const packets: Uint8Array[] = [];
    for (let index = 0; index < burst.count; index++) {
      const at = burst.headerOffset + index * burst.headerBytes;
      const bytes = index === burst.count - 1 ? burst.lastPayloadBytes : burst.payloadBytes;
      const packet = new Uint8Array(burst.headerBytes + (burst.region === undefined ? 0 : bytes));
      packet.set(from.arena.subarray(at, at + burst.headerBytes));
      copyPayload(burst, index, packet, burst.headerBytes);
      packets.push(packet);
    }
    if (this.options.join === true && (this.options.loss ?? 0) === 0) {
      const stride = packets[0]?.length ?? 0;
      const whole = new Uint8Array(packets.reduce((sum, packet) => sum + packet.length, 0));
      packets.forEach((packet, index) => whole.set(packet, index * stride));
      this.#launch(from, burst.path, whole, packets.length > 1 ? stride : 0);
      return;
    }
    for (const packet of packets) this.#launch(from, burst.path, packet, 0);
  }

  // oxlint-disable-next-line max-params -- a packet and where it goes
  #launch(from: Side, path: number, bytes: Uint8Array, segmentBytes: number): void {
    const { delay = () => 10, loss = 0, duplication = 0, reordering = 0, corruption = 0 } = this.options;
    this.packets++;
    if (this.dead.has(path) || this.#random() < loss) return;
    const late = this.#random() < reordering ? delay(path) * 3 * this.#random() : 0;
    if (this.#random() < corruption) {
      const at = Math.floor(this.#random() * bytes.length);
      bytes[at] = (bytes[at] as number) ^ (1 << Math.floor(this.#random() * 8));
    }
    const sent = this.#transmitted(from, path, bytes.length);
    if (sent === undefined) return;
    const packet: Flying = {
      at: sent + delay(path) + late,
      order: this.#order++,
      to: from.other,
      path,
      bytes,
      segmentBytes,
    };
    if (this.options.lose?.(packet) === true) return;
    this.#insert(packet);
    if (this.#random() < duplication) this.#insert({ ...packet, at: packet.at + delay(path), order: this.#order++ });
  }

  /** When the last bit of a packet is on the link; undefined if the queue before it is full. */
  #transmitted(from: Side, path: number, bytes: number): number | undefined {
    const { rate, queueBytes = Infinity } = this.options;
    if (rate === undefined) return this.now;
    const link = `${from.name}${path}`;
    const begin = Math.max(this.now, this.#linkFree.get(link) ?? 0);
    if ((begin - this.now) * rate + bytes > queueBytes) return undefined;
    this.#linkFree.set(link, begin + bytes / rate);
    return begin + bytes / rate;
  }

  #insert(packet: Flying): void {
    let at = this.#flying.length;
    while (at > 0 && (this.#flying[at - 1] as Flying).at > packet.at) at--;
    this.#flying.splice(at, 0, packet);
  }

  #deliver({ to, bytes, segmentBytes }: Flying): void {
    if (this.gone.has(to)) return;
    this.receive(to, bytes, segmentBytes);
  }

  /** Hands bytes to a side as if they had come over the network. */
  receive(to: Side, bytes: Uint8Array, segmentBytes = 0): void {
    const batch = this.#batch;
    batch.placed[0] = 0;
    if (this.options.direct === true && segmentBytes === 0 && bytes.length > HEADER_BYTES) {
      batch.bytes.set(bytes.subarray(0, HEADER_BYTES));
      const address = to.engine.payloadAddress(batch.bytes, 0, bytes.length, -1);
      if (address !== 0) {
        to.memoryAt(address, bytes.length - HEADER_BYTES).set(bytes.subarray(HEADER_BYTES));
        batch.placed[0] = 1;
        this.placed++;
      }
    }
    if (batch.placed[0] === 0) batch.bytes.set(bytes);
    batch.count = 1;
    batch.offset[0] = 0;
    batch.length[0] = bytes.length;
    batch.segmentBytes[0] = segmentBytes;
    to.engine.onPackets(batch, this.now);
  }

  #deadline(side: Side): number {
    return this.gone.has(side) ? Infinity : side.engine.nextDeadline();
  }

  #step(side: Side): void {
    if (this.#deadline(side) <= this.now) side.engine.onTimer(this.now);
  }
}

/** Bytes that depend on their place, so that a wrong place shows. */
export function pattern(bytes: Uint8Array, seed = 1): Uint8Array {
  let word = seed >>> 0;
  for (let at = 0; at < bytes.length; at++) {
    word = (Math.imul(word, 1_664_525) + 1_013_904_223) >>> 0;
    bytes[at] = word >>> 24;
  }
  return bytes;
}

export function isEnded(side: Side, handle: EngineHandle): boolean {
  return side.engine.poll(handle) !== requestStatus.pending;
}
