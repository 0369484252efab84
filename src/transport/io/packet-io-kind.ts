// What a way to carry packets offers to the transport: the loop of the engine's thread, and how two sides prepare paths.
import type { ControlChannel, ControlFrame } from '../../meeting/control-channel.ts';
import type { Doorbell } from '../../native/readiness.ts';
import type { Settings } from '../../settings/settings.ts';
import type { TransportEngine } from '../engine/transport-engine.ts';
import type { PacketIo } from './packet-io.ts';

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
  /** Must be called before requests are posted: the engine then knows what time it is, and the loop polls for a while. */
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
  /** The descriptor of a socket, or the number of an end that the engine has made, for each path. */
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
  /** Number of paths of all lanes together. */
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

  /** Does what PacketLoop.touch says. */
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
