// The world of a simulation: one clock, one network, and hosts that are transport engines over simulated cards.
import type { WeftlineError } from '../../core/errors.ts';
import { seededRandom } from '../../core/seeded-random.ts';
import { readSettings, type Settings } from '../../settings/settings.ts';
import { PACKET_KEY_BYTES, type PacketKeys, splitSessionKey } from '../../transport/authentication/packet-guard.ts';
import { Engine } from '../../transport/engine/engine.ts';
import type { TransportConnection } from '../../transport/engine/transport-engine.ts';
import type { ReceivedBatch } from '../../transport/io/packet-io.ts';
import { EventQueue, Network, PacketPool } from './network.ts';
import {
  LaneConnection,
  type SimulatedEngine,
  SimulatedHost,
  type RailOptions,
  SimulatedIo,
} from './simulated-host.ts';
import type { NetworkTopology } from './topology.ts';

export interface SimulationOptions {
  readonly topology: NetworkTopology;
  readonly seed: number;
  /** Bytes of a full packet, header included. */
  readonly segmentBytes: number;
  readonly rail: RailOptions;
  /** Microseconds from the arrival of a packet at an idle host to the moment when its engine looks. */
  readonly pollDelay: number;
  readonly settings: Partial<Settings>;
  /** Paths of each lane of a connection. */
  readonly paths: number;
  /** Engines of each host; each connection has a lane on each of them. One if missing. */
  readonly engines?: number;
  /** Makes an engine of a host whose connections are not the simulation's own; undefined for others. */
  readonly openEngine?: (place: EnginePlace) => Engine | undefined;
}

/** Where an engine is, and what it works with. */
export interface EnginePlace {
  readonly host: number;
  readonly lane: number;
  readonly io: SimulatedIo;
  readonly seed: number;
}

/** How a run ended: as asked, with nothing left to happen, at its last moment, or after too many events. */
export type RunEnd = 'done' | 'quiet' | 'deadline' | 'events';

interface RunLimits {
  /** Simulated time at which to stop, in microseconds. */
  readonly until: number;
  readonly events: number;
  /** Looked at after each event. */
  readonly done: () => boolean;
}

const ARRIVAL = 0;
const POLL = 1;
const TIMER = 2;
const ACTION = 3;

/** Shortest pause between two rounds of an engine that has more to do, in microseconds. */
const ROUND = 0.2;

export class Simulation {
  readonly topology: NetworkTopology;
  readonly network: Network;
  readonly packets: PacketPool;
  readonly hosts: readonly SimulatedHost[];
  /** All links but those from hosts. */
  readonly fabricLinks: readonly number[];
  now = 0;
  events = 0;
  readonly #options: SimulationOptions;
  readonly #queue = new EventQueue();
  readonly #actions: (() => void)[] = [];
  readonly #freeActions: number[] = [];
  /** When each engine will run next by its own wish, or because packets wait. */
  readonly #timerAt: Float64Array;
  readonly #pollAt: Float64Array;
  readonly #engines: number;
  readonly #settings: Settings;
  /** The connections of each host. */
  readonly #connections: readonly Set<LaneConnection>[];
  readonly #consume: ((batch: ReceivedBatch) => void)[];
  readonly #secrets: () => number;

  constructor(options: SimulationOptions) {
    const { topology, seed, segmentBytes } = options;
    this.#options = options;
    this.topology = topology;
    this.packets = new PacketPool(segmentBytes);
    this.network = new Network({
      topology,
      events: this.#queue,
      packets: this.packets,
      random: seededRandom(seed),
      arrivalKind: ARRIVAL,
    });
    this.#secrets = seededRandom(seed ^ 0x5ec2e7);
    this.#settings = readSettings(options.settings, {});
    this.#engines = options.engines ?? 1;
    const nodes = topology.hosts * this.#engines;
    this.#timerAt = new Float64Array(nodes).fill(Number.POSITIVE_INFINITY);
    this.#pollAt = new Float64Array(nodes).fill(Number.POSITIVE_INFINITY);
    this.hosts = Array.from({ length: topology.hosts }, (_, index) => this.#createHost(index));
    this.#connections = this.hosts.map(() => new Set());
    const own = new Set(this.hosts.flatMap(({ engines }) => engines[0]!.io.uplinks));
    this.fabricLinks = topology.links.map((_, link) => link).filter((link) => !own.has(link));
    this.#consume = this.hosts
      .flatMap(({ engines }) => engines)
      .map(
        ({ engine }) =>
          (batch) =>
            engine.onPackets(batch, this.now),
      );
  }

  /** Connects two hosts; element 0 is the end of host `a`. */
  connect(a: number, b: number): [LaneConnection, LaneConnection] {
    const lanes = Array.from({ length: this.#engines }, (_, lane) => this.#connectLane(a, b, lane));
    const spread = this.#settings.transportSpread;
    const ends = [a, b].map((index, end) => {
      const connection = new LaneConnection({
        host: this.#host(index),
        lanes: lanes.map((lane) => lane[end]!),
        spread,
      });
      this.#connections[index]!.add(connection);
      return connection;
    });
    return ends as [LaneConnection, LaneConnection];
  }

  /** The secret of a connection's packets. */
  newSecret(): bigint {
    const word = (): bigint => BigInt(Math.floor(this.#secrets() * 2 ** 32));
    // Segments are numbered from the upper half on: two of three connections soon reach an end of the numbers.
    const end = [2n ** 31n, 2n ** 32n, word()][Math.floor(this.#secrets() * 3)] as bigint;
    return BigInt.asUintN(64, ((end - (word() >> 25n)) << 32n) | word());
  }

  #connectLane(a: number, b: number, lane: number): [TransportConnection, TransportConnection] {
    const [first, second] = [this.#host(a).engines[lane]!, this.#host(b).engines[lane]!];
    const secret = this.newSecret();
    const ids = [first.engine.reserveConnectionId(), second.engine.reserveConnectionId()] as const;
    const { segmentBytes, paths } = this.#options;
    const rails = Math.min(this.topology.rails, paths);
    const shared = { secret, paths, rails, segmentBytes, keepsPlaces: this.#engines > 1 };
    const keys = this.newKeys();
    return [
      first.engine.createConnection({
        ...shared,
        packetKeys: keys?.caller,
        peer: b,
        peerName: `host ${b}`,
        localId: ids[0],
        remoteId: ids[1],
      }),
      second.engine.createConnection({
        ...shared,
        packetKeys: keys?.listener,
        peer: a,
        peerName: `host ${a}`,
        localId: ids[1],
        remoteId: ids[0],
      }),
    ];
  }

  /** Calls `action` at a time; whatever it posts at a host is carried out after `wake`. */
  at(time: number, action: () => void): void {
    const index = this.#freeActions.pop() ?? this.#actions.length;
    this.#actions[index] = action;
    this.#queue.push(Math.max(time, this.now), ACTION, index);
  }

  /** Something was posted at the host: its engines run as soon as the present event is over. */
  wake(host: number): void {
    for (const { node } of this.#host(host).engines) this.#runAt(node, this.now);
  }

  /** The same for one engine. */
  wakeEngine(host: number, lane: number): void {
    this.#runAt(this.#host(host).engines[lane]!.node, this.now);
  }

  /** A host stops: what arrives is lost, nothing is sent any more. */
  kill(host: number): void {
    const victim = this.#host(host);
    victim.alive = false;
    for (const { io } of victim.engines) io.discard();
  }

  run({ until, events, done }: RunLimits): RunEnd {
    const queue = this.#queue;
    const last = this.events + events;
    while (!done()) {
      if (!queue.pop()) return 'quiet';
      if (queue.time > until) {
        queue.push(queue.time, queue.kind, queue.subject);
        return 'deadline';
      }
      if (this.events === last) return 'events';
      this.events += 1;
      this.now = queue.time;
      this.#handle(queue.kind, queue.subject);
    }
    return 'done';
  }

  #handle(kind: number, subject: number): void {
    switch (kind) {
      case ARRIVAL:
        if (this.network.arrive(subject, this.now)) this.#deliver(subject);
        return;
      case POLL:
        this.#poll(subject);
        return;
      case TIMER:
        // An earlier wish replaced this one.
        if (this.#timerAt[subject] !== this.now) return;
        this.#timerAt[subject] = Number.POSITIVE_INFINITY;
        this.#runEngine(subject);
        return;
      default: {
        const action = this.#actions[subject] as () => void;
        this.#freeActions.push(subject);
        action();
      }
    }
  }

  #deliver(packet: number): void {
    const { engines, alive } = this.#host(this.packets.destinations[packet]!);
    if (!alive) {
      this.packets.release(packet);
      return;
    }
    const { io, node } = engines[this.packets.lanes[packet]!]!;
    io.receive(packet);
    if (this.#pollAt[node] !== Number.POSITIVE_INFINITY) return;
    this.#pollAt[node] = this.now + this.#options.pollDelay;
    this.#queue.push(this.#pollAt[node], POLL, node);
  }

  #poll(node: number): void {
    const { alive, engines } = this.#hostOf(node);
    const { io } = engines[node % this.#engines]!;
    this.#pollAt[node] = Number.POSITIVE_INFINITY;
    if (!alive) return;
    io.now = this.now;
    io.poll(this.#consume[node] as (batch: ReceivedBatch) => void);
    this.#runEngine(node);
  }

  #runEngine(node: number): void {
    const host = this.#hostOf(node);
    if (!host.alive) return;
    const lane = node % this.#engines;
    const { engine, io } = host.engines[lane]!;
    io.now = this.now;
    host.beforeRound(lane);
    engine.onTimer(this.now);
    host.afterRound(lane);
    const due = engine.nextDeadline();
    if (due === Number.POSITIVE_INFINITY) return;
    if (due > this.now) this.#runAt(node, due);
    else this.#runAt(node, Math.max(this.now + ROUND, io.whenRoom()));
  }

  #runAt(node: number, time: number): void {
    if (this.#timerAt[node]! <= time) return;
    this.#timerAt[node] = time;
    this.#queue.push(time, TIMER, node);
  }

  #createHost(index: number): SimulatedHost {
    const { topology, rail, paths } = this.#options;
    const other = index === 0 ? 1 : 0;
    const uplinks = new Set(Array.from({ length: 256 }, (_, path) => topology.firstLink(index, other, path)));
    const engines = Array.from({ length: this.#engines }, (_, lane): SimulatedEngine => {
      const io = new SimulatedIo({
        ...rail,
        host: index,
        lane,
        lanePaths: paths,
        network: this.network,
        packets: this.packets,
        uplinks: [...uplinks],
      });
      const node = index * this.#engines + lane;
      const seed = (Math.imul(this.#options.seed, 0x9e37_79b1) + node) >>> 0;
      const engine = this.#options.openEngine?.({ host: index, lane, io, seed }) ?? this.#createEngine(node, io, seed);
      return { node, io, engine };
    });
    const host = new SimulatedHost(index, engines, (action) =>
      this.at(this.now, () => {
        action();
        this.wake(index);
      }),
    );
    return host;
  }

  #createEngine(node: number, io: SimulatedIo, seed: number): Engine {
    return new Engine({
      io,
      settings: this.#settings,
      engines: this.#engines,
      seed,
      onCompletion: (handle, status) => this.#hostOf(node).ended(node % this.#engines, handle, status),
      onConnectionEnd: (lane, error) => this.#laneEnded(this.#hostOf(node), lane, error),
    });
  }

  /** One lane takes the others with it. */
  #laneEnded(host: SimulatedHost, lane: TransportConnection, error: WeftlineError): void {
    host.onConnectionEnd(lane, error);
    this.at(this.now, () => {
      [...this.#connections[host.index]!].find((connection) => connection.has(lane))?.end(error);
      this.wake(host.index);
    });
  }

  #hostOf(node: number): SimulatedHost {
    return this.hosts[Math.floor(node / this.#engines)] as SimulatedHost;
  }

  /** The keys of both ends of a connection, if packets are authenticated. */
  newKeys(): Record<'caller' | 'listener', PacketKeys> | undefined {
    if (this.#options.settings.transportAuthentication !== true) return undefined;
    const session = new Uint8Array(PACKET_KEY_BYTES).map(() => Math.floor(this.#secrets() * 256));
    return { caller: splitSessionKey(session, 'caller'), listener: splitSessionKey(session, 'listener') };
  }

  #host(index: number): SimulatedHost {
    return this.hosts[index] as SimulatedHost;
  }
}

/**
 * For hosts of this rate, all their rails together. Twice the time that a burst of 64 KiB takes on a rail may be spent in
 * queues: 10 µs at 100 Gbps. Receivers grant what keeps each rail busy for a round trip.
 */
export function usualSettings(gigabitsPerSecond: number, rails = 1): Partial<Settings> {
  return {
    transportLinkGbps: gigabitsPerSecond,
    transportTargetDelayUs: Math.max(10, (1000 * rails) / gigabitsPerSecond),
    transportCtsBytes: Math.round(524_288 * Math.max(1, rails / 2, gigabitsPerSecond / 100)),
    transportMinRtoUs: 200,
    transportAckDelayUs: 10,
    transportChecksum: 'none',
  };
}
