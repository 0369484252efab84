// Runs one engine for a user who may be on another thread: carries out commands, keeps the tables they refer to.
import { decodeError, type EncodedError, encodeError, WeftlineError } from '../../core/errors.ts';
import { viewAt } from '../../native/library.ts';
import type { Doorbell } from '../../native/readiness.ts';
import type { Settings } from '../../settings/settings.ts';
import { engineCommandKinds, REQUEST_SLOTS } from '../engine-commands.ts';
import { Engine } from '../engine/engine.ts';
import type { PacketKeys } from '../authentication/packet-guard.ts';
import type { Region, RegionName, RemoteAccess } from '../engine/region.ts';
import {
  type ConnectionStatistics,
  type DropCounters,
  type EngineHandle,
  requestStatus,
  type RequestStatus,
  type TransportConnection,
} from '../engine/transport-engine.ts';
import type {
  EndMaker,
  EndsJoin,
  EndsPlan,
  EndsProbe,
  MadeEnds,
  PacketIoKind,
  PacketLoop,
  PathEndpoint,
} from '../io/packet-io-kind.ts';
import { transportIo } from '../io/packet-ios.ts';
import { type CommandRing, type EngineBells, EngineCommand } from './command-ring.ts';
import { EngineChannels, postRequest, type RangesPlan } from './engine-channels.ts';
import { type LinePlan, PreparedTransfers, type TransferPlan } from './prepared-transfers.ts';
import { NOBODY, type SharedRequests } from './shared-requests.ts';

/** What an engine is made with, and shares with other threads. */
export interface EngineHostOptions {
  readonly settings: Settings;
  /** What carries packets, in place of what the settings name. */
  readonly io?: Pick<PacketIoKind, 'openLoop'>;
  /** See EngineOptions. */
  readonly seed?: number;
  /** How many engines the transport has, and which of them this one is. */
  readonly engines: number;
  readonly engine: number;
  readonly requests: SharedRequests;
  readonly ring: CommandRing;
  /** Bells of the other engines. */
  readonly bells: EngineBells;
  readonly onEvent: (event: HostEvent) => void;
}

export class EngineHost implements Disposable {
  /** What the user's side asks of the engine now and then; each after `beginCall`. */
  readonly calls = {
    /** A number for a connection to be; and it is not needed after all. */
    reserve: (): number => this.#loop.engine.reserveConnectionId(),
    unreserve: (localId: number): void => this.#loop.engine.releaseConnectionId(localId),
    /** Returns the engine's number of the connection. */
    connect: (options: HostConnection): number => this.#connect(options),
    register: (options: HostRegion): RegionName => this.#register(options),
    /** False while a device may still read it: then it is to be called again. */
    release: (region: number): boolean => this.#release(region),
    /** Returns the number of the transfer. */
    prepare: (plan: TransferPlan): number => this.#transfers.prepare(plan),
    /** Returns the number of the line. */
    openLine: (plan: LinePlan): number => this.#transfers.openLine(plan),
    unprepare: (transfer: number): void => this.#transfers.forget(transfer),
    /** Returns the number of the table. */
    shareRanges: (plan: RangesPlan): number => this.#channels.tables.share(plan),
    unshareRanges: (table: number): void => this.#channels.tables.forget(table),
    /** What a channel has under way is withdrawn; its state tells when all of it has ended. */
    closeChannel: (channel: number): void => this.#channels.close(channel),
    /** Ends a connection; its pending requests fail with the error. */
    end: ({ connection, error }: { readonly connection: number; readonly error: EncodedError }): void =>
      this.#end(connection, error),
    statistics: (connection: number): LaneStatistics => this.#statistics(connection),
    /** The EndMaker of the engine's loop. */
    openEnds: (plan: EndsPlan): MadeEnds => this.#ends.open(plan),
    connectEnds: (join: EndsJoin): void => this.#ends.connect(join),
    probeEnds: (probe: EndsProbe): number => this.#ends.probe(probe),
    probedEnds: (probe: EndsProbe): number => this.#ends.probed(probe),
    closeEnds: (ends: readonly number[]): void => this.#ends.close(ends),
    stop: (): void => this.#stop(),
  };
  readonly #loop: PacketLoop;
  /** This engine's number in its transport. */
  readonly #number: number;
  readonly #requests: SharedRequests;
  readonly #ring: CommandRing;
  readonly #bells: EngineBells;
  readonly #onEvent: (event: HostEvent) => void;
  readonly #connections: (HostedConnection | undefined)[] = [];
  /** Connections that are shut, but of whose requests a device still reads memory. */
  readonly #leaving = new Set<number>();
  readonly #leavingRegions = new Map<number, Region>();
  readonly #slotOf = new Map<EngineHandle, number>();
  readonly #handleOf: Float64Array = new Float64Array(REQUEST_SLOTS).fill(-1);
  readonly #connectionOf: Int32Array = new Int32Array(REQUEST_SLOTS);
  readonly #command: EngineCommand = new EngineCommand();
  readonly #transfers: PreparedTransfers;
  readonly #channels: EngineChannels;
  readonly #refused = new RefusedPeers();

  /** What `takeCommands` has seen of the ends on other engines. */
  seenFences = 0;

  constructor(options: EngineHostOptions) {
    const { settings, engines, engine, requests, ring, bells, onEvent, seed = 0 } = options;
    this.#number = engine;
    this.#requests = requests;
    this.#ring = ring;
    this.#bells = bells;
    this.#onEvent = onEvent;
    const region = this.#findRegion;
    const find = (number: number): TransportConnection | undefined => this.#connections[number]?.connection;
    this.#channels = new EngineChannels({
      requests,
      connection: (number) => this.#openConnection(number),
      find,
      region,
      follow: (handle, name) => this.#slotOf.set(handle, name),
      onFailure: (channel, error) => onEvent({ event: 'channel', channel, error }),
    });
    this.#transfers = new PreparedTransfers({
      connection: find,
      region,
      follow: (handle, slot) => this.#slotOf.set(handle, slot),
      done: (slot, bytes) => this.#done(slot, bytes),
      failed: (slot, error) => this.#fail(slot, error),
      isAlone: (slot) => requests.partsLeft(slot) === 1,
      hasFailedElsewhere: (slot) => requests.hasFailedPart(slot),
    });
    this.#loop = (options.io ?? transportIo(settings)).openLoop({
      settings,
      engine: (io) =>
        new Engine({
          io,
          settings,
          engines,
          seed,
          onSignal: () => requests.news.ring(),
          onCompletion: (handle, status) => this.#completed(handle, status),
          onConnectionEnd: (connection, error) => this.#connectionEnded(connection, error),
          onPath: (connection, path, isAlive) => this.#pathChanged(connection, path, isAlive),
        }),
    });
  }

  /** Rung to end a sleep. */
  get doorbell(): Doorbell {
    return this.#loop.doorbell;
  }

  /** True once so little happens that the thread had better sleep. */
  get isIdle(): boolean {
    return this.#loop.isIdle;
  }

  /** Hot path. False if there was nothing to do. */
  step(): boolean {
    const isBusy = this.#loop.step();
    this.#watchPeers();
    if (this.#leaving.size > 0) this.#letGo();
    return isBusy;
  }

  /** Sleeps until there is work, the doorbell rings, or `most` microseconds are over. */
  sleep(most?: number): void {
    this.#loop.sleep(most);
  }

  /** Hot path. Carries out what the user's side has put, and what had to wait for other engines; false if there was nothing. */
  takeCommands(): boolean {
    const hasFences = this.#ring.fences !== this.seenFences;
    if (!this.#ring.take(this.#command)) return hasFences && this.#passFences();
    this.#loop.touch();
    do this.#carryOut(this.#command);
    while (this.#ring.take(this.#command));
    if (hasFences) this.#passFences();
    return true;
  }

  /** Parts on other engines have ended: what waited for them goes on. */
  #passFences(): boolean {
    // ORDER: before the look, so that what ends during it is looked at again.
    this.seenFences = this.#ring.fences;
    this.#loop.touch();
    this.#transfers.resume();
    return true;
  }

  /** Ends connections to peers whose ports are closed: the process has ended, though nobody said goodbye. */
  #watchPeers(): void {
    for (const peer of this.#refused.due(this.#loop.refused)) {
      const name = this.#connections[peer]?.connection.peerName;
      const why = `${name} is gone: ${this.#loop.refusal}`;
      const error = encodeError(new WeftlineError('WL_PEER_LOST', why, { details: { peer: name } }));
      this.#onEvent({ event: 'ended', connection: peer, error });
      this.#shut(peer, error);
    }
  }

  /** Must be called before each of `calls`. */
  beginCall(): void {
    this.#loop.touch();
    // Commands put before the call come before it.
    this.takeCommands();
  }

  [Symbol.dispose](): void {
    this.#loop[Symbol.dispose]();
  }

  get #ends(): EndMaker {
    const { ends } = this.#loop;
    if (ends === undefined) throw new WeftlineError('WL_INTERNAL', 'This engine makes no ends of paths');
    return ends;
  }

  #connect(options: HostConnection): number {
    const { endpoint, ...names } = options;
    const free = this.#connections.indexOf(undefined);
    const number = free === -1 ? this.#connections.length : free;
    try {
      this.#loop.addPeer(number, endpoint);
      const connection = this.#loop.engine.createConnection({
        ...names,
        peer: number,
        paths: endpoint.ends.length,
        rails: endpoint.rails,
      });
      this.#connections[number] = { connection, reason: undefined, isShut: false, isEnded: false };
    } catch (error) {
      this.#loop.removePeer(number);
      throw error;
    }
    return number;
  }

  #register({ address, bytes, remote, name }: HostRegion): RegionName {
    const view = new Uint8Array(viewAt(address, bytes));
    const { id, key } = this.#loop.engine.register({ bytes: view, address, remote, name });
    return { id, key };
  }

  #release(id: number): boolean {
    const region = this.#loop.engine.findRegion(id) ?? this.#leavingRegions.get(id);
    if (region === undefined) return true;
    this.#leavingRegions.set(id, region);
    if (!this.#loop.engine.release(region)) return false;
    this.#leavingRegions.delete(id);
    return true;
  }

  /** Frees the number as well. */
  #end(number: number, error: EncodedError): void {
    this.#shut(number, error);
    const hosted = this.#connections[number];
    if (hosted === undefined) return;
    if (this.#leaving.has(number)) hosted.isEnded = true;
    else this.#connections[number] = undefined;
  }

  #shut(number: number, error: EncodedError): void {
    this.#refused.forget(number);
    const hosted = this.#connections[number];
    if (hosted === undefined || hosted.isShut) return;
    hosted.isShut = true;
    hosted.reason ??= error;
    hosted.connection.close();
    // What the close says goes out, and pending requests fail, before the paths close.
    this.#loop.engine.onTimer(performance.now() * 1000);
    this.#loop.removePeer(number);
    this.#leaving.add(number);
    this.#letGo();
  }

  /** Ends what is left of connections that are shut, as soon as no device reads memory of their requests. */
  #letGo(): void {
    for (const number of this.#leaving) {
      const hosted = this.#connections[number] as HostedConnection;
      if (this.#loop.engine.hasReaders(hosted.connection)) continue;
      this.#leaving.delete(number);
      this.#failRest(number, hosted.reason as EncodedError);
      if (hosted.isEnded) this.#connections[number] = undefined;
    }
  }

  #failRest(number: number, error: EncodedError): void {
    this.#transfers.end(number, error);
    this.#channels.endConnection(number, error);
    for (const [slot, connection] of this.#connectionOf.entries()) {
      if (connection === number && this.#handleOf[slot] !== -1) this.#fail(slot, error);
    }
  }

  #statistics(number: number): LaneStatistics {
    const hosted = this.#connections[number];
    if (hosted === undefined) throw new WeftlineError('WL_CLOSED', 'The connection was closed');
    // A copy: the counters themselves go on.
    const { engine, failures } = this.#loop;
    return structuredClone({ connection: hosted.connection.statistics, drops: engine.drops, failures });
  }

  #stop(): void {
    const error = encodeError(new WeftlineError('WL_CLOSED', 'The transport was closed'));
    for (const [number, hosted] of this.#connections.entries()) if (hosted !== undefined) this.#end(number, error);
    // The last call: what is left takes a device microseconds, or at most the time after which its queue pairs are failed.
    while (this.#leaving.size > 0) {
      this.#loop.engine.onTimer(performance.now() * 1000);
      this.#letGo();
    }
  }

  #carryOut(command: EngineCommand): void {
    const { slot, kind } = command;
    if (slot >= REQUEST_SLOTS) {
      this.#channels.carryOut(command);
      return;
    }
    if (kind === engineCommandKinds.cancel) {
      this.#cancel(slot, command.connection);
      return;
    }
    // A broken program has named a request that goes on: there is nobody to tell.
    if (this.#handleOf[slot] !== -1 || this.#transfers.has(slot)) return;
    this.#connectionOf[slot] = command.connection;
    try {
      if (kind === engineCommandKinds.transfer) {
        this.#transfers.post(slot, command.region, command);
        return;
      }
      const connection = this.#openConnection(command.connection);
      const handle = postRequest(command, connection, this.#findRegion);
      this.#handleOf[slot] = handle;
      this.#slotOf.set(handle, slot);
    } catch (error) {
      this.#fail(slot, encodeError(error));
    }
  }

  readonly #findRegion = (id: number): Region | undefined => this.#loop.engine.findRegion(id);

  #openConnection(number: number): TransportConnection {
    const hosted = this.#connections[number];
    if (hosted === undefined) throw new WeftlineError('WL_CLOSED', 'The connection was closed');
    const { connection, isShut, reason } = hosted;
    if (isShut && reason !== undefined) throw decodeError(reason);
    return connection;
  }

  #completed(handle: EngineHandle, status: RequestStatus): void {
    const slot = this.#slotOf.get(handle);
    if (slot === undefined) return;
    const error = status === requestStatus.done ? undefined : this.#errorOf(handle, slot);
    if (slot >= REQUEST_SLOTS) {
      this.#slotOf.delete(handle);
      this.#channels.ended(slot, error);
    } else if (this.#transfers.has(slot)) {
      this.#slotOf.delete(handle);
      this.#transfers.ended(slot, error);
    } else if (error === undefined) {
      this.#done(slot, this.#loop.engine.receivedBytes(handle));
    } else {
      this.#fail(slot, error);
    }
  }

  #errorOf(handle: EngineHandle, slot: number): EncodedError {
    const error = this.#loop.engine.requestError(handle);
    const number = slot >= REQUEST_SLOTS ? this.#channels.connectionOf(slot) : this.#connectionOf[slot];
    const reason = number === undefined ? undefined : this.#connections[number]?.reason;
    return reason ?? encodeError(error ?? new WeftlineError('WL_INTERNAL', 'A request failed silently'));
  }

  #cancel(slot: number, number: number): void {
    const connection = this.#connections[number]?.connection;
    if (!this.#transfers.has(slot)) {
      const handle = this.#handleOf[slot]!;
      if (handle !== -1) connection?.cancel(handle);
      return;
    }
    if (!this.#transfers.cancel(slot)) return;
    const handles = [...this.#slotOf].flatMap(([handle, owner]) => (owner === slot ? [handle] : []));
    for (const handle of handles) connection?.cancel(handle);
  }

  #done(slot: number, bytes: number): void {
    this.#forget(slot);
    this.#finish(slot, true, bytes);
  }

  #finish(slot: number, isDone: boolean, bytes: number): void {
    const last = this.#requests.finish(slot, this.#number, isDone, bytes);
    if (last !== NOBODY) this.#bells.ring(last);
  }

  #fail(slot: number, error: EncodedError): void {
    this.#forget(slot);
    // ORDER: the reason first, so that a thread that sees the failure finds it.
    this.#onEvent({ event: 'failed', slot, error });
    this.#finish(slot, false, 0);
  }

  #forget(slot: number): void {
    this.#slotOf.delete(this.#handleOf[slot]!);
    this.#handleOf[slot] = -1;
  }

  #pathChanged(connection: TransportConnection, path: number, isAlive: boolean): void {
    const number = this.#connections.findIndex((hosted) => hosted?.connection === connection);
    if (number !== -1) this.#onEvent({ event: 'path', connection: number, path, deadSince: isAlive ? 0 : Date.now() });
  }

  #connectionEnded(connection: TransportConnection, error: WeftlineError): void {
    const number = this.#connections.findIndex((hosted) => hosted?.connection === connection);
    if (number !== -1) this.#onEvent({ event: 'ended', connection: number, error: encodeError(error) });
    this.#requests.news.ring();
  }
}

export type HostCalls = EngineHost['calls'];

// What calls take and bring: plain data, so that it can cross threads.

export interface HostConnection {
  readonly localId: number;
  readonly remoteId: number;
  readonly peerName: string;
  readonly secret: bigint;
  readonly packetKeys: PacketKeys | undefined;
  readonly receiverCredits: boolean;
  readonly eagerBytes: number;
  readonly segmentBytes: number;
  readonly keepsPlaces: boolean;
  /** The host closes it. */
  readonly endpoint: PathEndpoint;
}

export interface HostRegion {
  /** Address of memory that stays until the region is released. */
  readonly address: number;
  readonly bytes: number;
  readonly remote: Partial<RemoteAccess>;
  /** That of the first engine, so that a region has the same on all. */
  readonly name?: RegionName | undefined;
}

/** Counts of a connection on one engine, and of that engine, since they were made. */
export interface LaneStatistics {
  readonly connection: ConnectionStatistics;
  readonly drops: DropCounters;
  readonly failures: Readonly<Record<string, number>>;
}

/** What the host tells without being asked. */
export type HostEvent =
  /** Sent before the table shows that the request failed. */
  | { readonly event: 'failed'; readonly slot: number; readonly error: EncodedError }
  /** Sent before the state of the channel shows that it failed. */
  | { readonly event: 'channel'; readonly channel: number; readonly error: EncodedError }
  /** A path of this engine has died, at that time in ms, or answers again: 0. */
  | { readonly event: 'path'; readonly connection: number; readonly path: number; readonly deadSince: number }
  | { readonly event: 'ended'; readonly connection: number; readonly error: EncodedError };

interface HostedConnection {
  readonly connection: TransportConnection;
  /** Why the connection was ended from here, in place of what the engine says of it. */
  reason: EncodedError | undefined;
  /** True once its paths are closed; its number stays taken until the user's side has ended it too. */
  isShut: boolean;
  /** The user's side has ended it: the number is free once no device reads memory of its requests. */
  isEnded: boolean;
}

/**
 * A peer that closes in good order says so over TCP, which another thread reads; that packets do not reach it counts only
 * after this.
 */
const PATIENCE_MS = 1_000;
const NO_PEERS: readonly number[] = [];

export /** Peers that packets no longer reach, from the first sign of it until it counts. */
class RefusedPeers {
  /** When a peer was first found so. */
  readonly #since = new Map<number, number>();

  /** The peers whose time is over. `refused` holds those found now, and is emptied. */
  due(refused: number[]): readonly number[] {
    if (refused.length === 0 && this.#since.size === 0) return NO_PEERS;
    const now = performance.now();
    for (const peer of refused.splice(0)) if (!this.#since.has(peer)) this.#since.set(peer, now);
    return [...this.#since].flatMap(([peer, since]) => (now - since < PATIENCE_MS ? [] : [peer]));
  }

  /** The number is given up. */
  forget(peer: number): void {
    this.#since.delete(peer);
  }
}
