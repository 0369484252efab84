// The seam between the protocol and what moves its packets: bursts go out, batches of received packets come in.
import type { ControlChannel, ControlFrame } from '../../meeting/control-channel.ts';
import { copyMemory } from '../../native/libc.ts';
import type { Doorbell } from '../../native/readiness.ts';
import type { Settings } from '../../settings/settings.ts';
import type { Region } from '../engine/region.ts';
import type { TransportEngine } from '../engine/transport-engine.ts';
import type { RangeList } from '../send/range-list.ts';

/**
 * Consecutive packets for one peer on one path: each is a header of `headerBytes` from the arena and a payload by
 * reference. All payloads have `payloadBytes`, only the last may be shorter, so that the burst is one send with
 * segmentation offload. One object serves all bursts: read it before `send` returns, keep nothing of it.
 */
export interface Burst {
  /** The peer as the I/O named it in ConnectionOptions. */
  peer: number;
  path: number;
  /** Packets: 1 to PacketIo.burstSegments. */
  count: number;
  /** Where in PacketIo.arena the first header begins; the others follow without gap. */
  headerOffset: number;
  headerBytes: number;
  /** Where the payload lies; undefined if the packets are headers only (acks, control, probes). */
  region: Region | undefined;
  payloadOffset: number;
  payloadBytes: number;
  lastPayloadBytes: number;
  /**
   * Of a scattered write, one packet: its payload is the sources of these ranges of the region, from `firstRange` to before
   * `endRange`, one behind the other; `payloadOffset` means nothing. Undefined for all others.
   */
  ranges: RangeList | undefined;
  firstRange: number;
  endRange: number;
  /** Acks and control packets: small, and better sent before data. */
  urgent: boolean;
}

/**
 * Consecutive segments of one received packet that belong side by side: take `count` payloads out of the batch and put
 * them one behind the other into the region. The engine has checked all bounds. One object serves all runs.
 */
export interface PlacementRun {
  /** The batch's memory. */
  source: Uint8Array;
  /** First payload in `source`. */
  sourceOffset: number;
  /** Distance between the beginnings of two payloads in `source`. */
  sourceStride: number;
  region: Region;
  regionOffset: number;
  count: number;
  payloadBytes: number;
  lastPayloadBytes: number;
}

/** What was read of a region when `PacketIo.readersOf` was called; bursts that were sent later do not count. */
export interface MemoryReaders {
  /** True once nothing of that is read any more. It does not wait, and is to be asked until it is, which is bounded in time. */
  areThrough(): boolean;
}

/** What the engine needs of sockets, or of a simulated network. The engine calls it only inside `onTimer`. */
export interface PacketIo {
  /** Memory for headers and control packets; at least 64 KiB. What lies in it stays until the next `flush` returns. */
  readonly arena: Uint8Array;
  /** Most packets of a burst: 1 without segmentation offload, at most 64. */
  readonly burstSegments: number;
  /** Most bytes of a burst, headers included; at most 65507. */
  readonly burstBytes: number;
  /** Native address of memory that bursts will refer to; missing where plain memory is read. */
  addressOf?(bytes: Uint8Array): number;
  /** How many more bursts `send` takes before `flush`; 0 while the socket is full, then the engine asks again later. */
  room(): number;
  /** Takes a burst. It may be lost on the way, like any packet. */
  send(burst: Burst): void;
  /** Sends what was taken and is not yet sent; afterwards the engine writes over the arena. */
  flush(): void;
  /** Copies payload to its final place; called inside `onPackets`. `placeRun` does it for plain memory. */
  place(run: PlacementRun): void;
  /** A region that bursts will refer to, for an I/O that must prepare its memory. Fails with WL_CAPACITY. */
  adopt?(region: Region): void;
  /** No burst refers to the region any more, and nothing reads it: see `readersOf`. */
  abandon?(region: Region): void;
  /**
   * Where memory of bursts is read after `flush` has returned: what of the region is read now, by bursts to one peer or to
   * all; undefined if nothing is. For requests that end before the peer has everything, since their memory is then the
   * caller's again.
   */
  readersOf?(region: Region, peer?: number): MemoryReaders | undefined;
}

/**
 * Received packets, as arrays that the I/O fills and uses again. Each entry is one datagram, or several of one sender
 * and path that the kernel has joined: `segmentBytes` is then the size of each but the last.
 */
export interface ReceivedBatch {
  /** The memory that all packets of the batch lie in. Best the same object each time. */
  bytes: Uint8Array;
  count: number;
  readonly offset: Uint32Array;
  readonly length: Uint32Array;
  /** 0 for a single datagram. */
  readonly segmentBytes: Uint32Array;
  /** 1 if the network marked the packet (ECN congestion experienced). */
  readonly marked: Uint8Array;
  /** 1 if the payload of a single data packet already lies where `payloadAddress` said; here is only its header. */
  readonly placed: Uint8Array;
  /** The sender as the I/O names it; -1 where it cannot tell. A packet of another peer than the connection's is dropped. */
  readonly peer: Int32Array;
}

/** An empty batch with room for `capacity` packets that lie in `bytes`. */
export function createReceivedBatch(bytes: Uint8Array, capacity: number): ReceivedBatch {
  return {
    bytes,
    count: 0,
    offset: new Uint32Array(capacity),
    length: new Uint32Array(capacity),
    segmentBytes: new Uint32Array(capacity),
    marked: new Uint8Array(capacity),
    placed: new Uint8Array(capacity),
    peer: new Int32Array(capacity).fill(-1),
  };
}

/** PacketIo.place for packets that lie in native memory from `address` on, as `bytes`. */
export function placeNative(run: PlacementRun, bytes: Uint8Array, address: number): void {
  const { region, payloadBytes } = run;
  if (region.address === 0 || run.source !== bytes) {
    placeRun(run);
    return;
  }
  let from = address + run.sourceOffset;
  let to = region.address + run.regionOffset;
  for (let left = run.count; left > 1; left -= 1) {
    copyMemory(to, from, payloadBytes);
    from += run.sourceStride;
    to += payloadBytes;
  }
  copyMemory(to, from, run.lastPayloadBytes);
}

/** PacketIo.place for regions that are plain memory of this process. */
export function placeRun(run: PlacementRun): void {
  const { source, region, payloadBytes } = run;
  let from = run.sourceOffset;
  let to = run.regionOffset;
  for (let left = run.count; left > 0; left--) {
    const bytes = left === 1 ? run.lastPayloadBytes : payloadBytes;
    region.bytes.set(source.subarray(from, from + bytes), to);
    from += run.sourceStride;
    to += bytes;
  }
}

/** Copies the payload of packet number `packet` of a burst, out of plain memory. Returns how many bytes it is. */
export function copyPayload(burst: Burst, packet: number, target: Uint8Array, at: number): number {
  const { region, ranges, payloadBytes } = burst;
  if (region === undefined) return 0;
  const bytes = packet === burst.count - 1 ? burst.lastPayloadBytes : payloadBytes;
  if (ranges === undefined) {
    const from = burst.payloadOffset + packet * payloadBytes;
    target.set(region.bytes.subarray(from, from + bytes), at);
    return bytes;
  }
  let to = at;
  for (let index = burst.firstRange; index < burst.endRange; index++) {
    const from = ranges.sources[index]!;
    const length = ranges.lengths[index]!;
    target.set(region.bytes.subarray(from, from + length), to);
    to += length;
  }
  return bytes;
}

export interface PacketLoopOptions {
  /** Makes the engine over the I/O. */
  readonly engine: (io: PacketIo) => TransportEngine;
  readonly settings: Settings;
}

/** One engine with its I/O on one thread: takes packets in, lets the engine send, sleeps when nothing happens. */
export interface PacketLoop extends Disposable {
  readonly engine: TransportEngine;
  /** Rung by other threads to end a sleep. */
  readonly doorbell: Doorbell;
  /** Peers that are found to be gone, for the owner to take out. */
  readonly refused: number[];
  /** How that shows, for errors: "its UDP ports are closed". */
  readonly refusal: string;
  /** Sends that were not taken, by reason. */
  readonly failures: Readonly<Record<string, number>>;
  /** `peer` is a small number that no other peer has. The loop closes the endpoint. */
  addPeer(peer: number, endpoint: PathEndpoint): void;
  removePeer(peer: number): void;
  /** Hot path. Takes in what has arrived, sends what is due. False if there was nothing to do. */
  step(): boolean;
  /** True once so little happens that the thread had better sleep. */
  readonly isIdle: boolean;
  /** Sleeps until a packet comes, the engine's next deadline, the doorbell, or `most` microseconds are over. */
  sleep(most?: number): void;
  /** To be called before requests are posted: the engine then knows what time it is, and the loop polls for a while. */
  touch(): void;
  /** Missing where the threads that meet a peer make the ends of its paths themselves. */
  readonly ends?: EndMaker;
}

/** Ends of paths that belong to the thread of their engine from the begin: it makes them before the peer is known. */
export interface EndMaker {
  /** Makes ends. Returns their numbers, and what the peer must know of them. */
  open(plan: EndsPlan): MadeEnds;
  /** Joins ends with those that the peer's engine offers. Fails with WL_PROTOCOL. */
  connect(join: EndsJoin): void;
  /** Sends probes of several sizes over the first of the ends. Returns the largest that it sent. */
  probe(probe: EndsProbe): number;
  /** The largest probe with this secret that has arrived so far; 0 for none. */
  probed(probe: EndsProbe): number;
  /** Ends that have become nobody's. Those that addPeer got end with the peer. */
  close(ends: readonly number[]): void;
}

export interface EndsPlan {
  readonly count: number;
  /** The first so many of the engine's ports are used in turn. */
  readonly rails: number;
}

export interface MadeEnds {
  readonly ends: readonly number[];
  readonly offer: ControlFrame;
}

export interface EndsJoin {
  readonly ends: readonly number[];
  /** The `offer` of the peer's engine, which has been checked for nothing. */
  readonly offer: unknown;
}

export interface EndsProbe {
  readonly ends: readonly number[];
  readonly secret: bigint;
}

/** The engine of a lane: its EndMaker, called from the thread that meets the peer. */
export type EngineEnds = { readonly [Name in keyof EndMaker]: EndCall<EndMaker[Name]> };

type EndCall<Method> = Method extends (argument: infer Argument) => infer Result
  ? (argument: Argument) => Promise<Result>
  : never;

/** This side's ends of the paths to a peer, for the engine's thread: plain data. */
export interface PathEndpoint {
  /** By path: the descriptor of a socket, or the number of an end that the engine has made. */
  readonly ends: readonly number[];
  /** Path p leaves by rail p modulo this. */
  readonly rails: number;
  /** Most segments that one send is cut into on its way; 1 if it must not be. */
  readonly segments: number;
}

export interface PathOptions {
  /** Bytes of a packet; 0: as large as reaches the peer. */
  readonly segmentBytes: number;
  readonly bufferBytes: number;
  /** False sends every packet by itself. */
  readonly segmentationOffload: boolean;
  /** This side's engines, by lane. */
  readonly engines: readonly EngineEnds[];
}

/** How many paths lead to a peer, and from where. */
export interface PathPlan {
  /** Engines that the connection uses, and paths of each. */
  readonly lanes: number;
  readonly paths: number;
  /** Addresses as `PacketIoKind.rails` has them; path p of each lane goes over rail p modulo their number. */
  readonly rails: readonly string[];
}

/** Two addresses between which packets go. */
export interface RailPair {
  readonly local: string;
  readonly remote: string;
}

/** This side's ends of the paths to a peer while the two meet. Disposed by its owner, unless the engines' threads got them. */
export interface PeerPaths extends Disposable {
  /** Of all lanes together. */
  readonly count: number;
  /** What the peer must know of them, fields of a frame. */
  readonly offer: ControlFrame;
  /** Connects them with what the peer offers. Fails with WL_PROTOCOL. */
  connect(peerOffer: ControlFrame): void | Promise<void>;
  /** This side's rails with those of the peer; known once connected. */
  readonly rails: readonly RailPair[];
  /**
   * Both sides find out by packets what reaches the other, and take the smaller. `secret` tells their packets from others.
   * Returns the bytes of a packet. Fails with WL_TIMEOUT if nothing passes.
   */
  agree(secret: bigint): Promise<number>;
  /** True once `agree` has found that large sends are cut into packets on the way. */
  readonly cutsSends: boolean;
  endpoint(lane: number): PathEndpoint;
}

export interface PacketIoKind {
  /** Both sides must carry packets in the same way. */
  readonly name: string;
  /**
   * Addresses of this host that the settings name for packets, one for each rail; none: packets go where the control channel
   * goes, or over the best port. Fails with WL_CONFIG, and with WL_UNSUPPORTED where there is nothing to carry them.
   */
  rails(settings: Settings): readonly string[];
  openLoop(options: PacketLoopOptions): PacketLoop;
  /** Paths to the peer that the channel leads to. Fails with WL_CONFIG for rails that cannot lead there. */
  openPaths(channel: ControlChannel, plan: PathPlan, options: PathOptions): PeerPaths | Promise<PeerPaths>;
  /** How many paths and rails an offer is for. Fails with WL_PROTOCOL if it is none. */
  countsOf(offer: ControlFrame): { readonly paths: number; readonly rails: number };
}

// When the engine of a loop has its turn, and when the loop may sleep: the same whatever carries the packets.

/** Nothing is missed by a longer sleep, but a thread that sleeps cannot be ended from outside. */
const MAX_SLEEP_MICROSECONDS = 100_000;
const STALE_MICROSECONDS = 1000;

export class EngineTurns {
  readonly #engine: TransportEngine;
  readonly #spinUs: number;
  #lastWork = 0;
  #lastTimer = 0;

  constructor(engine: TransportEngine, spinUs: number) {
    this.#engine = engine;
    this.#spinUs = spinUs;
  }

  /** Hot path. Lets the engine send if packets came (`isBusy`) or something is due. False if there was nothing to do. */
  take(now: number, isBusy: boolean): boolean {
    if (this.#engine.nextDeadline() > now && !isBusy) return false;
    this.#runTimer(now);
    this.#lastWork = now;
    return true;
  }

  /** True once so little happens that the thread had better sleep. */
  get isIdle(): boolean {
    return microseconds() - this.#lastWork >= this.#spinUs;
  }

  /** How many microseconds, at most `most`, the loop may sleep; 0 or less if the engine has something to do. */
  sleepTime(most: number = MAX_SLEEP_MICROSECONDS): number {
    return Math.min(this.#engine.nextDeadline() - microseconds(), most, MAX_SLEEP_MICROSECONDS);
  }

  /** As PacketLoop.touch says. */
  touch(): void {
    const now = microseconds();
    // The engine counts the silence of peers from the time it was last told.
    if (now - this.#lastTimer > STALE_MICROSECONDS) this.#runTimer(now);
    this.#lastWork = now;
  }

  #runTimer(now: number): void {
    this.#engine.onTimer(now);
    this.#lastTimer = now;
  }
}

/** The clock of the loops of this thread. */
export function microseconds(): number {
  return performance.now() * 1000;
}
