// A connection as the user sees it: requests are posted here, their ends are taken from the transport.
import { decodeError, type EncodedError, encodeError, WeftlineError } from '../../core/errors.ts';
import { addMeter, addSamples, type Meters, type Sample } from '../../core/metric-table.ts';
import type { ControlChannel } from '../../meeting/control-channel.ts';
import type { ConnectionStatistics } from '../engine/transport-engine.ts';
import type { RailPair } from '../io/packet-io-kind.ts';
import { homeLane, type Spread } from '../lanes/lane-choice.ts';
import type { ChannelParts, ChannelPool } from './channel.ts';
import type { EngineGroup, LaneEnd } from './engine-group.ts';
import type { LaneStatistics } from './engine-host.ts';
import { LanePosts, LaneTransfers } from './lane-posts.ts';
import type { MemoryRegion } from './memory-region.ts';
import type { RequestSlots } from './request-slots.ts';

/** What a connection needs of its control channel once both sides have met. */
export type WatchedChannel = Pick<
  ControlChannel,
  'localAddress' | 'remoteAddress' | 'watch' | 'unref' | 'close' | 'hangUp'
>;

interface ConnectionParts {
  readonly group: EngineGroup;
  readonly slots: RequestSlots;
  readonly channels: ChannelPool;
  readonly channel: WatchedChannel;
  /** Ends in the order of lanes. */
  readonly ends: readonly LaneEnd[];
  readonly spread: Spread;
  readonly isRegistered: (region: MemoryRegion) => boolean;
  readonly peerName: string;
  readonly rails: readonly RailPair[];
  readonly paths: number;
  readonly segmentBytes: number;
  readonly cutsSends: boolean;
  readonly hello: unknown;
  readonly onClose: (connection: Connection) => void;
}

/**
 * After its goodbye, how long a peer's last packets may still be taken in: by threads that may get no processor for a while.
 * Lanes that hear of the end themselves do not wait for it.
 */
const FAREWELL_MS = 1_000;

/**
 * Posting never waits: it returns a request, whose end `transport.wait` takes. Requests fail with WL_PEER_LOST when the
 * peer's process ended or fell silent, with WL_CLOSED when either side closed, with WL_INVALID_ARGUMENT for ranges outside
 * their region, with WL_UNAUTHORIZED for a wrong key.
 */
export class Connection extends LanePosts implements AsyncDisposable {
  /** UDP sockets on each side, of all lanes. */
  readonly paths: number;
  /** Engines of each side that it uses: large messages, reads and prepared transfers are spread over them. */
  readonly lanes: number;
  /** @internal Bytes of a full packet. */
  readonly segmentBytes: number;
  /** @internal True if the kernel cuts large sends into packets. */
  readonly cutsSends: boolean;
  /** What the application of the peer said when they met. */
  readonly hello: unknown;
  /** @internal Numeric address. */
  readonly localHost: string;
  /** @internal Numeric address. */
  readonly peerHost: string;
  readonly #group: EngineGroup;
  readonly #channel: WatchedChannel;
  readonly #ends: readonly LaneEnd[];
  /** @internal */
  readonly transfers: LaneTransfers;
  readonly #channels: ChannelPool;
  readonly #rails: RailStates;
  readonly #onClose: (connection: Connection) => void;
  readonly #unmeter: () => void;
  readonly #unsample: () => void;
  /** Engines whose lanes the peer has ended. */
  readonly #endedLanes = new Set<number>();
  /** Why nothing more can be posted, though requests may still end. */
  #leaving: WeftlineError | undefined;
  #error: WeftlineError | undefined;
  #ending: Promise<void> | undefined;

  /** @internal */
  constructor({ group, slots, channels, channel, ends, onClose, ...facts }: ConnectionParts) {
    super({ slots, ends, ...facts });
    this.paths = facts.paths;
    this.lanes = ends.length;
    this.segmentBytes = facts.segmentBytes;
    this.cutsSends = facts.cutsSends;
    this.hello = facts.hello;
    this.localHost = channel.localAddress;
    this.peerHost = channel.remoteAddress;
    this.#group = group;
    this.#channel = channel;
    this.#ends = ends;
    this.transfers = new LaneTransfers({ group, ends, posts: this });
    this.#channels = channels;
    this.#rails = new RailStates(facts.rails, ends.length, facts.paths);
    this.#onClose = onClose;
    this.#unmeter = addMeter(() => this.#counted());
    this.#unsample = addSamples(async () => connectionSamples(this.peerName, (await this.statistics()).connection));
    channel.watch((farewell) => {
      if (farewell) setTimeout(() => void this.end(this.#closedByPeer()), FAREWELL_MS).unref();
      else void this.end(this.#lost());
    });
    channel.unref();
  }

  /** Why the connection is over; undefined while it is not. */
  get error(): WeftlineError | undefined {
    return this.#error;
  }

  /** @internal The peer has said that it closes; requests that are under way may still end well. */
  get isLeaving(): boolean {
    return this.#leaving !== undefined;
  }

  /** Between which addresses its packets go, and whether they pass. */
  get rails(): readonly RailState[] {
    // Some of what engines have told may wait to be read.
    this.#group.readEvents();
    return this.#rails.all;
  }

  /** @internal Which lane carries the flow's signals, and what a channel of the flow posts. */
  homeLane(flow: number): number {
    return homeLane(flow, this.lanes);
  }

  /** @internal Hot path. False if what is under way goes on within calls of this thread alone. */
  get hasThreads(): boolean {
    return this.#group.hasThreads;
  }

  /** @internal What a channel of a flow, which nothing else uses, is made of. It stays on the flow's home lane. */
  channelParts(flow: number): ChannelParts {
    this.requireOpen();
    return {
      group: this.#group,
      pool: this.#channels,
      end: this.#ends[this.homeLane(flow)] as LaneEnd,
      flow,
      connection: this,
    };
  }

  /** What this connection and its engines have counted. */
  async statistics(): Promise<HostStatistics> {
    const lanes = this.#ends.map(({ engine, number }) => this.#group.call(engine, 'statistics', number));
    return addStatistics(await Promise.all(lanes));
  }

  /** Pending requests fail with WL_CLOSED, here and at the peer. Idempotent. */
  close(): Promise<void> {
    this.#error ??= new WeftlineError('WL_CLOSED', `The connection to ${this.peerName} was closed`);
    this.#ending ??= this.#end(this.#error, true);
    return this.#ending;
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }

  /** @internal Ends the connection for a reason, which its pending requests carry. */
  end(error: WeftlineError): Promise<void> {
    this.#error ??= error;
    this.#ending ??= this.#end(this.#error, false);
    return this.#ending;
  }

  /** @internal The engine's path has died at that time, or lives again: 0. */
  notePath(engine: number, path: number, deadSince: number): void {
    this.#rails.note(
      this.#ends.findIndex((end) => end.engine === engine),
      path,
      deadSince,
    );
  }

  /**
   * @internal What an engine says of its lane's end. When the peer has closed, the other lanes may still bring
   * acknowledgements: requests there fail when their own lane ends, or after FAREWELL_MS.
   */
  endWith(engine: number, error: EncodedError): void {
    const reason = decodeError(error);
    this.#endedLanes.add(engine);
    if (reason.code !== 'WL_CLOSED' || this.#endedLanes.size === this.#ends.length) return void this.end(reason);
    this.#leaving ??= reason;
    setTimeout(() => void this.end(reason), FAREWELL_MS).unref();
  }

  async #end(error: WeftlineError, farewell: boolean): Promise<void> {
    this.#onClose(this);
    this.#unmeter();
    this.#unsample();
    // An engine that is gone has ended it already; its call fails at once.
    const encoded = encodeError(error);
    await Promise.allSettled(
      this.#ends.map(({ engine, number }) => this.#group.call(engine, 'end', { connection: number, error: encoded })),
    );
    if (farewell) this.#channel.close();
    else this.#channel.hangUp();
  }

  async #counted(): Promise<Partial<Meters>> {
    const { sentBytes, receivedBytes, sentSegments, retransmittedSegments } = (await this.statistics()).connection;
    return { sentBytes, receivedBytes, sentPackets: sentSegments, retransmittedPackets: retransmittedSegments };
  }

  /** @internal */
  override requireOpen(): void {
    const reason = this.#error ?? this.#leaving;
    if (reason !== undefined) throw reason;
  }

  #lost(): WeftlineError {
    return new WeftlineError('WL_PEER_LOST', `${this.peerName} is gone: its process ended or its connection broke`, {
      details: { peer: this.peerName },
    });
  }

  #closedByPeer(): WeftlineError {
    return new WeftlineError('WL_CLOSED', `${this.peerName} closed the connection`, {
      details: { peer: this.peerName },
    });
  }
}

/** The sums over the engines of a connection, with the paths of all of them, and each by itself. */
export interface HostStatistics extends LaneStatistics {
  /** One entry per engine that the connection uses (lane). */
  readonly lanes: readonly LaneStatistics[];
}

/** `lanes`: at least one. Paths of later lanes are numbered on. */
function addStatistics(lanes: readonly LaneStatistics[]): HostStatistics {
  const paths = lanes.flatMap(({ connection }) => connection.paths);
  return {
    connection: {
      ...(addCounters(lanes.map(({ connection }) => connection)) as Omit<ConnectionStatistics, 'paths'>),
      paths: paths.map((statistics, path) => ({ ...statistics, path })),
    },
    drops: addCounters(lanes.map(({ drops }) => drops)) as LaneStatistics['drops'],
    failures: addCounters(lanes.map(({ failures }) => failures)),
    lanes,
  };
}

function addCounters(objects: readonly object[]): Record<string, number> {
  const sums: Record<string, number> = {};
  for (const object of objects) {
    for (const [name, value] of Object.entries(object)) {
      if (typeof value === 'number') sums[name] = (sums[name] ?? 0) + value;
    }
  }
  return sums;
}

function connectionSamples(peer: string, { sentBytes, receivedBytes, paths }: ConnectionStatistics): readonly Sample[] {
  return [
    { name: 'weftline_transport_sent_bytes_total', labels: [peer], value: sentBytes },
    { name: 'weftline_transport_received_bytes_total', labels: [peer], value: receivedBytes },
    ...paths.flatMap(({ path, smoothedRtt, sentSegments, lostSegments }): Sample[] => {
      const labels = [peer, String(path)];
      const rtt: Sample = { name: 'weftline_transport_rtt_seconds', labels, value: smoothedRtt / 1e6 };
      return [
        { name: 'weftline_transport_packets_total', labels, value: sentSegments },
        { name: 'weftline_transport_retransmits_total', labels, value: lostSegments },
        // Zero before the first measurement.
        ...(smoothedRtt > 0 ? [rtt] : []),
      ];
    }),
  ];
}

/** Two addresses between which packets go, and whether they pass. */
export interface RailState extends RailPair {
  /** False while every path of it is dead: nothing that went there was answered, and only probes go there. */
  readonly isUp: boolean;
  /** The time since which it is not up, as far as this side has tried to send; left out while it is up. */
  readonly deadSince?: Date;
  /** UDP sockets or queue pairs of each side, over all engines. */
  readonly paths: number;
  readonly livePaths: number;
}

export class RailStates {
  readonly #rails: readonly RailPair[];
  /** Paths of each lane: path p goes by rail p modulo the number of rails. */
  readonly #pathsOfLane: number;
  /** Time at which each path died, by lane and path, in ms; 0 while it lives. */
  readonly #deadSince: Float64Array;

  constructor(rails: readonly RailPair[], lanes: number, paths: number) {
    this.#rails = rails;
    this.#pathsOfLane = paths / lanes;
    this.#deadSince = new Float64Array(paths);
  }

  /** `deadSince`: 0 if the path lives again. */
  note(lane: number, path: number, deadSince: number): void {
    this.#deadSince[lane * this.#pathsOfLane + path] = deadSince;
  }

  get all(): readonly RailState[] {
    const count = this.#rails.length;
    return this.#rails.map((pair, rail) => {
      const deaths = [...this.#deadSince].filter((_, path) => (path % this.#pathsOfLane) % count === rail);
      const livePaths = deaths.filter((since) => since === 0).length;
      const facts = { ...pair, isUp: livePaths > 0, paths: deaths.length, livePaths };
      return facts.isUp || deaths.length === 0 ? facts : { ...facts, deadSince: new Date(Math.max(...deaths)) };
    });
  }
}
