// The engine: connections, requests and regions of one thread, driven by packets and time.
import { WeftlineError } from '../../core/errors.ts';
import { seededRandom } from '../../core/seeded-random.ts';
import { TagMemory } from '../authentication/packet-guard.ts';
import { Admission } from '../receive/admission.ts';
import type { AckSample } from '../../congestion/congestion.ts';
import { CreditPacer } from '../send/receiver-credits.ts';
import { Connection } from './connection.ts';
import { Decoder } from '../wire/decoder.ts';
import { createDataTemplate, type EngineCore } from './engine-core.ts';
import { PacketOutbox } from '../wire/packet-outbox.ts';
import type { MemoryReaders, PlacementRun, ReceivedBatch } from '../io/packet-io.ts';
import { type Region, RegionTable, type RegionOptions } from './region.ts';
import { type Request, RequestTable } from './request.ts';
import {
  type ConnectionOptions,
  type DropReason,
  dropReasons,
  type EngineOptions,
  type Microseconds,
  type EngineHandle,
  requestStatus,
  type RequestStatus,
  type TransportConnection,
  type TransportEngine,
} from './transport-engine.ts';

import { transportSettings, type TransportSettings } from './transport-settings.ts';
import { deadlineOf, runConnection } from './upkeep.ts';

/** Bursts of one connection, and of all, in one `onTimer`: then packets are looked at again. */
const BURSTS_PER_CONNECTION = 8;
const BURSTS_PER_ROUND = 32;
/**
 * 2^16 connections at a time, 2^16 generations of each. Generations begin anywhere, so that both ends of a connection do
 * not call it by the same number: a packet that comes back to its sender is then a stranger's.
 */
const MAX_CONNECTIONS = 2 ** 16;
/** Microseconds between looks at memory that a device still reads. */
const READERS_INTERVAL = 1000;

export class Engine implements TransportEngine, EngineCore {
  readonly settings: TransportSettings;
  readonly outbox: PacketOutbox;
  readonly requests = new RequestTable();
  readonly regions = new RegionTable();
  readonly admission: Admission;
  readonly credits: CreditPacer;
  readonly random: () => number;
  readonly template = createDataTemplate();
  readonly sample: AckSample = { now: 0, ackedBytes: 0, rtt: 0, baseRtt: 0, marked: false };
  readonly placement: PlacementRun;
  readonly drops = Object.fromEntries(dropReasons.map((reason) => [reason, 0])) as Record<DropReason, number>;
  now: Microseconds = 0;
  readonly #options: EngineOptions;
  readonly #decoder = new Decoder(this);
  readonly #slots: (Connection | undefined)[] = [];
  readonly #generations: number[] = [];
  readonly #freeSlots: number[] = [];
  /** Connections that are open, and ended ones whose end can still be asked for. */
  #connections: Connection[] = [];
  /** Regions that are released as soon as nothing reads them. */
  readonly #leaving = new Map<Region, MemoryReaders | undefined>();
  /** Requests that have failed, but whose memory a device still reads. */
  #stillRead: { readonly request: Request; readonly readers: MemoryReaders }[] = [];
  #turn = 0;
  #awake = false;
  #deadline = Number.POSITIVE_INFINITY;

  constructor(options: EngineOptions) {
    this.#options = options;
    this.settings = transportSettings(options.settings, options.engines);
    this.outbox = new PacketOutbox(options.io, this.settings.checksum);
    this.admission = new Admission(this.settings);
    this.random = seededRandom(options.seed ?? 0);
    this.credits = new CreditPacer(this.settings.creditRate);
    const nowhere = { id: 0, key: 0, bytes: new Uint8Array(0), address: 0, remote: { read: false, write: false } };
    this.placement = {
      source: nowhere.bytes,
      sourceOffset: 0,
      sourceStride: 0,
      region: nowhere,
      regionOffset: 0,
      count: 0,
      payloadBytes: 0,
      lastPayloadBytes: 0,
    };
  }

  reserveConnectionId(): number {
    const slot = this.#freeSlots.pop() ?? this.#slots.push(undefined) - 1;
    if (slot >= MAX_CONNECTIONS) {
      throw new WeftlineError('WL_CAPACITY', `Cannot connect: the engine has ${MAX_CONNECTIONS} connections`);
    }
    const before = this.#generations[slot] ?? crypto.getRandomValues(new Uint16Array(1))[0] ?? 0;
    const generation = (before % 0xffff) + 1;
    this.#generations[slot] = generation;
    return generation * MAX_CONNECTIONS + slot;
  }

  releaseConnectionId(id: number): void {
    const slot = id % MAX_CONNECTIONS;
    const generation = Math.floor(id / MAX_CONNECTIONS);
    if (this.#generations[slot] !== generation || this.#slots[slot] !== undefined) return;
    this.#generations[slot] = (generation % 0xffff) + 1;
    this.#freeSlots.push(slot);
  }

  createConnection(options: ConnectionOptions): Connection {
    const slot = options.localId % MAX_CONNECTIONS;
    const reserved = this.#generations[slot] === Math.floor(options.localId / MAX_CONNECTIONS);
    if (!reserved || this.#slots[slot] !== undefined) {
      throw new WeftlineError('WL_INVALID_ARGUMENT', `Connection id ${options.localId} is not reserved, or is taken`, {
        details: { localId: options.localId },
      });
    }
    const connection = new Connection(this, options);
    this.#slots[slot] = connection;
    this.#connections.push(connection);
    if (connection.send.credits !== undefined) this.credits.add(connection.receive.credit);
    return connection;
  }

  register(options: RegionOptions): Region {
    const region = this.regions.register(options);
    try {
      this.outbox.io.adopt?.(region);
    } catch (error) {
      this.regions.release(region);
      throw error;
    }
    return region;
  }

  findRegion(id: number): Region | undefined {
    return this.regions.find(id);
  }

  release(region: Region): boolean {
    if (!this.#leaving.has(region)) this.#leave(region);
    if (this.#leaving.get(region)?.areThrough() === false) return false;
    this.#tellFailed();
    this.#leaving.delete(region);
    this.outbox.io.abandon?.(region);
    return true;
  }

  #leave(region: Region): void {
    this.regions.release(region);
    for (const connection of this.#connections) connection.receive.signals.forget(region);
    for (const request of this.requests) {
      if (request.region !== region || !request.isPending) continue;
      const what = `The region of a pending ${request.kind} of ${request.bytes} bytes was closed`;
      const error = new WeftlineError('WL_CLOSED', what, { details: { kind: request.kind } });
      request.owner?.abandon(request, error);
    }
    this.#leaving.set(region, this.outbox.io.readersOf?.(region));
  }

  onPackets(batch: ReceivedBatch, now: Microseconds): void {
    this.now = now;
    this.#decoder.take(batch);
  }

  // oxlint-disable-next-line max-params -- hot path: an object for them would be allocated per packet
  payloadAddress(bytes: Uint8Array, at: number, length: number, peer: number): number {
    return this.#decoder.payloadAddress(bytes, at, length, peer);
  }

  onTimer(now: Microseconds): void {
    this.now = now;
    this.#awake = false;
    if (this.#stillRead.length > 0) this.#tellFailed();
    this.admission.run(now);
    this.credits.run(now);
    const connections = this.#connections;
    let left = BURSTS_PER_ROUND;
    let deadline = Math.min(this.admission.deadline, this.credits.deadline());
    for (let step = 0; step < connections.length; step++) {
      const connection = connections[(this.#turn + step) % connections.length] as Connection;
      if (deadlineOf(connection) <= now) {
        left -= runConnection(connection, now, Math.max(0, Math.min(left, BURSTS_PER_CONNECTION)));
      }
      deadline = Math.min(deadline, deadlineOf(connection));
    }
    this.#turn = connections.length === 0 ? 0 : (this.#turn + 1) % connections.length;
    this.outbox.flush();
    this.#deadline = this.#stillRead.length === 0 ? deadline : Math.min(deadline, now + READERS_INTERVAL);
    if (connections.some(isOver, this)) this.#retire();
  }

  nextDeadline(): Microseconds {
    return this.#awake ? Number.NEGATIVE_INFINITY : this.#deadline;
  }

  wake(): void {
    this.#awake = true;
  }

  get tagMemory(): TagMemory {
    this.outbox.tagMemory ??= new TagMemory(this.outbox.io);
    return this.outbox.tagMemory;
  }

  find(id: number): Connection | undefined {
    const connection = this.#slots[id % MAX_CONNECTIONS];
    return connection !== undefined && connection.id === id ? connection : undefined;
  }

  hasReaders(connection: TransportConnection): boolean {
    return this.#stillRead.some(({ request }) => request.owner === (connection as Connection));
  }

  poll(handle: EngineHandle): RequestStatus {
    const request = this.requests.find(handle);
    if (request === undefined) return requestStatus.unknown;
    return this.#isStillRead(request) ? requestStatus.pending : request.status;
  }

  receivedBytes(handle: EngineHandle): number {
    return this.requests.find(handle)?.received ?? 0;
  }

  requestError(handle: EngineHandle): WeftlineError | undefined {
    return this.requests.find(handle)?.error;
  }

  forget(handle: EngineHandle): void {
    const request = this.requests.find(handle);
    if (request !== undefined && !request.isPending && !this.#isStillRead(request)) this.requests.close(request);
  }

  done(request: Request): void {
    request.error = undefined;
    request.status = requestStatus.done;
    request.owner?.ended(request);
    this.#tell(request);
  }

  fail(request: Request, error: WeftlineError): void {
    request.owner?.unqueue(request);
    request.error = error;
    request.status = requestStatus.failed;
    request.owner?.ended(request);
    const readers = this.#readersOf(request);
    if (readers === undefined) {
      this.#tell(request);
    } else {
      this.#stillRead.push({ request, readers });
      this.wake();
    }
  }

  signalled(): void {
    this.#options.onSignal?.();
  }

  pathChanged(connection: TransportConnection, path: number, isAlive: boolean): void {
    this.#options.onPath?.(connection, path, isAlive);
  }

  connectionEnded(connection: TransportConnection, error: WeftlineError): void {
    this.#options.onConnectionEnd?.(connection, error);
  }

  /** A device may still read what was sent of a request that has failed. Nothing more of it is sent. */
  #readersOf({ unacked, region, owner }: Request): MemoryReaders | undefined {
    if (unacked === 0 || region === undefined || owner === undefined) return undefined;
    return this.outbox.io.readersOf?.(region, owner.peer);
  }

  #isStillRead(request: Request): boolean {
    // Called for each poll: a function for some() would be garbage on Node 26.
    const all = this.#stillRead;
    for (let index = 0; index < all.length; index++) if (all[index]!.request === request) return true;
    return false;
  }

  /** Failed requests whose memory nothing reads any more end now. */
  #tellFailed(): void {
    const failed = this.#stillRead;
    this.#stillRead = failed.filter(({ readers }) => !readers.areThrough());
    for (const read of failed) if (!this.#stillRead.includes(read)) this.#tell(read.request);
  }

  #tell(request: Request): void {
    if (request.kind === 'reply') {
      this.requests.close(request);
      return;
    }
    const { onCompletion } = this.#options;
    if (onCompletion === undefined) return;
    onCompletion(request.handle, request.status);
    this.requests.close(request);
  }

  /** Forgets connections that ended long ago. */
  #retire(): void {
    for (const connection of this.#connections.filter(isOver, this)) {
      const slot = connection.id % MAX_CONNECTIONS;
      connection.retire();
      this.#slots[slot] = undefined;
      this.#freeSlots.push(slot);
    }
    this.#connections = this.#connections.filter((connection) => !isOver.call(this, connection));
  }
}

function isOver(this: Engine, connection: Connection): boolean {
  const { error, life } = connection;
  return error !== undefined && life.endsUnsent === 0 && this.now - life.endedAt >= this.settings.giveUp;
}
