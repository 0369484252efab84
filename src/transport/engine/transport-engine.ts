// What the transport offers: an engine that owns connections, and connections that carry messages, writes and reads.
import type { WeftlineError } from '../../core/errors.ts';
import type { Settings } from '../../settings/settings.ts';
import type { PacketKeys } from '../authentication/packet-guard.ts';
import type { PacketIo, ReceivedBatch } from '../io/packet-io.ts';
import type { RangeList } from '../send/range-list.ts';
import type { Region, RegionOptions } from './region.ts';

/** Microseconds of the caller's clock; only differences count, and it never goes back. */
export type Microseconds = number;

/** Names a request of an engine; used again only after many others, so that a late look at it finds `unknown`. */
export type EngineHandle = number;

/** `unknown`: released, or never given. */
export const requestStatus = { unknown: 0, pending: 1, done: 2, failed: 3 } as const;
export type RequestStatus = (typeof requestStatus)[keyof typeof requestStatus];

/** What an engine is made of; `new Engine(options)` of engine.ts. */
export interface EngineOptions {
  readonly io: PacketIo;
  /** Settings, of which those whose names begin with `transport` count. */
  readonly settings: Settings;
  /** Number of engines of this host, which share what bounds all that it receives; 1 if missing. */
  readonly engines?: number;
  /** Determines every choice of the engine: same packets, same times, same seed, same behaviour. 0 if missing. */
  readonly seed?: number;
  /** Called inside `onPackets` or `onTimer` when a request has ended; `forget` is not needed then. Must not throw. */
  readonly onCompletion?: (handle: EngineHandle, status: RequestStatus) => void;
  /** Called inside `onPackets` when signals of a peer were added to cells of this side. Must not throw. */
  readonly onSignal?: () => void;
  /** Called inside `onPackets` or `onTimer` when a connection has failed or the peer has closed it. Must not throw. */
  readonly onConnectionEnd?: (connection: TransportConnection, error: WeftlineError) => void;
  /** A path has died, or answers again. */
  readonly onPath?: (connection: TransportConnection, path: number, isAlive: boolean) => void;
}

/** Both ends hold one; each learns the other's `localId` and paths, and both share `secret`, before the first packet. */
export interface ConnectionOptions {
  /** The I/O's name for the peer; comes back in every burst. */
  readonly peer: number;
  /** How errors call the peer, such as "rank 3 (10.0.0.7:4000)". */
  readonly peerName: string;
  /** A number from `reserveConnectionId` of this engine. */
  readonly localId: number;
  /** The same of the peer's engine. */
  readonly remoteId: number;
  /** 64 random bits, chosen by one side. */
  readonly secret: bigint;
  /** If both sides authenticate their packets: the peer holds the same keys the other way round. */
  readonly packetKeys?: PacketKeys | undefined;
  /** The peer gives credits, and this side gives it some. Both sides agree; without it the setting counts. */
  readonly receiverCredits?: boolean | undefined;
  /**
   * Messages of at most so many bytes go before the receiver has offered memory for them. Both sides agree; without it the
   * setting counts.
   */
  readonly eagerBytes?: number | undefined;
  /** How many paths there are, 1 to 256. Both sides agree. */
  readonly paths: number;
  /** How many network cards of this host they leave by: path p by rail p modulo this. At most `paths`; 1 if missing. */
  readonly rails?: number | undefined;
  /** Bytes of a full packet on every path, header included. A multiple of 8, 512 to 65472. Both sides agree. */
  readonly segmentBytes: number;
  /**
   * Messages and receives that are cancelled keep their places in their flow: what meets them fails as well, where
   * otherwise it would meet the next. Needed where both sides count them. Both sides agree; false if missing.
   */
  readonly keepsPlaces?: boolean | undefined;
}

/** Memory of this side that a request sends from or receives into. */
export interface LocalRange {
  readonly region: Region;
  readonly offset: number;
  readonly bytes: number;
}

export interface MessageOptions extends LocalRange {
  /** Messages of a flow meet receives of the same flow in the order of posting. 0 to 65535; 0 if missing. */
  readonly flow?: number;
  /** Present if a send is a part of a message that is spread over several engines. All its receives have its full size. */
  readonly whole?: WholeRequest | undefined;
}

/** A range of a region that the peer has registered and told about. */
export interface RemoteRange {
  readonly remoteRegion: number;
  readonly remoteKey: number;
  readonly remoteOffset: number;
}

export interface RemoteOptions extends LocalRange, RemoteRange {
  readonly flow?: number;
}

/** What a request is a part of, whose other parts go through other engines. */
interface WholeRequest {
  /** Place in it at which the part begins. */
  readonly partOffset: number;
  readonly bytes: number;
}

export interface ScatterOptions extends Omit<RemoteRange, 'remoteOffset'> {
  readonly region: Region;
  /** Ranges that fit into packets share them; each is below 512 MiB. */
  readonly ranges: RangeList;
  readonly flow?: number;
}

export interface SignalOptions extends RemoteRange {
  readonly flow?: number;
  /** What is added to the 64-bit cell at `remoteOffset`, which is a multiple of 8; 0 to 2^53 - 1. */
  readonly add: number;
}

/** A connection to one peer. Every call only notes what to do; the engine's next `onTimer` does it. */
export interface TransportConnection {
  readonly id: number;
  readonly peerName: string;
  /** Bytes of a full packet behind its header. */
  readonly payloadBytes: number;
  /** Why the connection is no longer usable; undefined while it is. */
  readonly error: WeftlineError | undefined;
  /** Offers memory for the next message of the flow. Done when a message lies in it: `receivedBytes` tells its size. */
  postReceive(options: MessageOptions): EngineHandle;
  /** Sends a message to the next receive of the flow. Waits for that receive; done when every byte has arrived. */
  postSend(options: MessageOptions): EngineHandle;
  /** Writes into a region of the peer. Done when every byte lies there. */
  write(options: RemoteOptions): EngineHandle;
  /** Writes many small ranges into a region of the peer, several in a packet. Done when all lie there. */
  scatter(options: ScatterOptions): EngineHandle;
  /** Reads many small ranges of a region of the peer: `targets` are theirs, `sources` the places here. Done when all lie here. */
  gather(options: ScatterOptions): EngineHandle;
  /** Reads from a region of the peer. Done when every byte lies here. */
  read(options: RemoteOptions): EngineHandle;
  /** Adds to a counter of the peer after the data of all earlier writes of the flow. Done when it is added. */
  signal(options: SignalOptions): EngineHandle;
  /** Done when all writes and signals posted before on the flow (0 if missing) are. */
  flush(flow?: number): EngineHandle;
  /**
   * Withdraws a pending request: it fails with WL_CLOSED, here and for the message's other end. False if it has ended. A
   * message that was sent before its receive was known ends once the peer has said whether it was delivered.
   */
  cancel(handle: EngineHandle): boolean;
  /** Ends the connection: pending requests fail with WL_CLOSED, and the peer is told. */
  close(): void;
  readonly statistics: ConnectionStatistics;
}

/** Counters since the connection began, updated as it runs. */
export interface ConnectionStatistics {
  readonly sentSegments: number;
  readonly sentBytes: number;
  /** Segments that were sent again. */
  readonly retransmittedSegments: number;
  readonly receivedSegments: number;
  readonly receivedBytes: number;
  readonly duplicateSegments: number;
  readonly sentAcks: number;
  readonly receivedAcks: number;
  /** Paths that were silent for their retransmission timeout. */
  readonly timeouts: number;
  readonly probes: number;
  /** One entry per path. */
  readonly paths: readonly PathStatistics[];
}

export interface PathStatistics {
  readonly path: number;
  readonly alive: boolean;
  readonly smoothedRtt: Microseconds;
  readonly sentSegments: number;
  readonly lostSegments: number;
  readonly inFlightBytes: number;
  /** What congestion control admits; Infinity without. */
  readonly windowBytes: number;
}

/**
 * The engine. Its loop belongs to the caller:
 *
 *     for (;;) {
 *       wait until packets are there, or engine.nextDeadline(), or a post;
 *       engine.onPackets(batch, now);   // as often as there are batches
 *       engine.onTimer(now);            // sends; then flushes the I/O
 *     }
 *
 * No call throws because of what a packet holds. Not re-entrant: `onCompletion` may post, but not call the loop's methods.
 */
export interface TransportEngine {
  /** A name for a connection to be, to tell the peer before `createConnection`. */
  reserveConnectionId(): number;
  /** Takes back a reservation that came to no connection. */
  releaseConnectionId(id: number): void;
  /** Fails with WL_INVALID_ARGUMENT for options out of range. */
  createConnection(options: ConnectionOptions): TransportConnection;
  register(options: RegionOptions): Region;
  /** The region of an id, signed or unsigned; undefined once it was released. */
  findRegion(id: number): Region | undefined;
  /**
   * The region's memory is the caller's again; pending requests that use it fail with WL_CLOSED. False while a device still
   * reads it, which ends soon: then it is to be called again.
   */
  release(region: Region): boolean;
  /**
   * Hot path. Of a packet that waits to be received: the native address where its payload belongs, so that the kernel can put
   * it there, or 0 if it must be received whole and looked at first. `bytes` holds its header at `at`, `length` is all of it.
   * Where it was put there, ReceivedBatch.placed says so.
   */
  payloadAddress(bytes: Uint8Array, at: number, length: number, peer: number): number;
  /** Takes in received packets; answers are sent by the next `onTimer`. */
  onPackets(batch: ReceivedBatch, now: Microseconds): void;
  /** Sends what is due, then calls `flush` of the I/O. */
  onTimer(now: Microseconds): void;
  /** When `onTimer` is next due: in the past if there is work now, Infinity if nothing is outstanding. */
  nextDeadline(): Microseconds;
  /** True while requests of the connection have failed whose memory a device still reads: they end when it does not. */
  hasReaders(connection: TransportConnection): boolean;
  /** How a request stands. */
  poll(handle: EngineHandle): RequestStatus;
  /** Bytes of the message that a finished receive holds. */
  receivedBytes(handle: EngineHandle): number;
  /** Why a failed request failed. */
  requestError(handle: EngineHandle): WeftlineError | undefined;
  /** Gives the handle of an ended request back; needed once per request unless there is an `onCompletion`. */
  forget(handle: EngineHandle): void;
  /** Packets that were not taken in, by reason. */
  readonly drops: DropCounters;
}

/** Why packets were dropped. */
export const dropReasons = [
  'short',
  'version',
  'kind',
  'connection',
  'secret',
  'peer',
  'checksum',
  'length',
  'window',
  'target',
  'bounds',
  'stale',
  'tag',
  'replay',
] as const;
export type DropReason = (typeof dropReasons)[number];
export type DropCounters = Readonly<Record<DropReason, number>>;
