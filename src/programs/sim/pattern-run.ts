// Runs a traffic pattern between simulated hosts: posts receives and sends as time goes on, and takes times and samples.
import type { WeftlineError } from '../../core/errors.ts';
import { seededRandom } from '../../core/seeded-random.ts';
import type { Settings } from '../../settings/settings.ts';
import type { Region } from '../../transport/engine/region.ts';
import type { LaneConnection } from './lane-connection.ts';
import { type GoodputPoint, OUTAGE_STEP, outageEffect } from './outage.ts';
import { completionTimes, jainFairness, type PatternResult, type Sample } from './pattern-result.ts';
import type { NicOptions } from './simulated-io.ts';
import type { SimulatedHost } from './simulated-host.ts';
import { type RunEnd, Simulation } from './simulation.ts';
import { type RailOutage, theory, wireBytes } from './theory.ts';
import { railLinks } from './rails.ts';
import type { NetworkTopology } from './topology.ts';
import { makeTraffic, type PatternName } from './traffic.ts';

export interface PatternOptions {
  readonly pattern: PatternName;
  readonly topology: NetworkTopology;
  /** Of one host, all its links together. */
  readonly hostGigabitsPerSecond: number;
  readonly seed: number;
  /** Flows of a sending host, messages of a flow, receives that a flow keeps posted, bytes of a message. */
  readonly flows: number;
  readonly messages: number;
  readonly outstanding: number;
  readonly messageBytes: number;
  /** Of each lane of a connection. */
  readonly paths: number;
  /** Of each host; one if missing. */
  readonly engines?: number;
  readonly segmentBytes: number;
  /** Share of the hosts' rate that is offered, at random times; 1 offers all messages at once. */
  readonly load: number;
  readonly pollDelay: number;
  readonly nic: NicOptions;
  readonly settings: Partial<Settings>;
  readonly faults?: readonly LinkFault[];
  /** A rail of all hosts that dies. */
  readonly outage?: RailOutage & { readonly rail: number };
  /** Take samples this often, in microseconds; none if missing. */
  readonly sampleEvery?: number;
  /** Longest simulated time, in microseconds. */
  readonly until: number;
}

/** A link fails, for ever if it does not recover. */
export interface LinkFault {
  readonly link: number;
  readonly at: number;
  readonly recoversAt?: number;
}

export function runPattern(options: PatternOptions): PatternResult {
  return new PatternRun(options).run();
}

interface RunningFlow {
  readonly source: number;
  readonly destination: number;
  /** The ends of the connection, and the flow's number in it. */
  readonly sender: LaneConnection;
  readonly receiver: LaneConnection;
  readonly number: number;
  /** When each message is offered. */
  readonly offered: Float64Array;
  sendsPosted: number;
  sendsEnded: number;
  receivesPosted: number;
  received: number;
  endedAt: number;
  /** Whether the next offer will come by itself. */
  awaitsOffer: boolean;
}

/** One way of one connection, which may carry several flows. */
interface Direction {
  readonly sender: LaneConnection;
  readonly receiver: LaneConnection;
  /** What had been received when the last sample was taken. */
  bytesBefore: number;
}

class PatternRun {
  readonly #options: PatternOptions;
  readonly #simulation: Simulation;
  readonly #flows: readonly RunningFlow[];
  readonly #directions = new Map<string, Direction>();
  /** Bytes are not looked at here, only times: all messages of a host share one buffer. */
  readonly #regions: Region[];
  /** Each host's pending requests: the flow of a send; the flow and the number of the message of a receive. */
  readonly #sends: Map<number, RunningFlow>[];
  readonly #receives: Map<number, readonly [RunningFlow, number]>[];
  readonly #times: number[] = [];
  readonly #samples: Sample[] = [];
  /** By path and by rail, what had been sent when the last sample was taken. */
  #pathSegmentsBefore: readonly number[] = [];
  #railBytesBefore: readonly number[] = [];
  readonly #points: GoodputPoint[] = [];
  #receivedBefore = 0;
  #failure: WeftlineError | undefined;

  constructor(options: PatternOptions) {
    this.#options = options;
    this.#simulation = new Simulation(options);
    const { hosts } = this.#simulation;
    const bytes = new Uint8Array(options.messageBytes);
    this.#regions = hosts.map((host) => host.register({ bytes }));
    this.#sends = hosts.map(() => new Map());
    this.#receives = hosts.map(() => new Map());
    this.#flows = this.#makeFlows();
  }

  run(): PatternResult {
    const { messages, sampleEvery, until, outage } = this.#options;
    const simulation = this.#simulation;
    for (const host of simulation.hosts) this.#listen(host);
    for (const { link, at, recoversAt } of this.#faults()) {
      simulation.at(at, () => simulation.network.fail(link));
      if (recoversAt !== undefined) simulation.at(recoversAt, () => simulation.network.recover(link, simulation.now));
    }
    for (const flow of this.#flows) {
      this.#postReceives(flow);
      this.#postSends(flow);
    }
    if (sampleEvery !== undefined) this.#sampleAt(sampleEvery, sampleEvery);
    if (outage !== undefined) this.#pointAt(OUTAGE_STEP);
    const all = this.#flows.length * messages;
    const done = (): boolean => this.#times.length === all || this.#failure !== undefined;
    const end = simulation.run({ until, events: Number.POSITIVE_INFINITY, done });
    if (this.#failure !== undefined) throw this.#failure;
    return this.#result(end);
  }

  #faults(): readonly LinkFault[] {
    const { topology, faults = [], outage } = this.#options;
    if (outage === undefined) return faults;
    const { rail, from: at, to: recoversAt } = outage;
    const dying = railLinks(topology, rail);
    return [...faults, ...dying.map((link) => (Number.isFinite(recoversAt) ? { link, at, recoversAt } : { link, at }))];
  }

  #makeFlows(): RunningFlow[] {
    const { pattern, topology, seed, flows, messages, messageBytes, segmentBytes, load } = this.#options;
    const flowsOfSender = pattern === 'all-to-all' ? flows * (topology.hosts - 1) : flows;
    const perSender = (load * this.#options.hostGigabitsPerSecond * 125) / wireBytes(messageBytes, segmentBytes);
    const traffic = makeTraffic({
      pattern,
      hosts: topology.hosts,
      flows,
      messages,
      messagesPerMicrosecond: load === 1 ? Number.POSITIVE_INFINITY : perSender / flowsOfSender,
      random: seededRandom(seed + 1),
    });
    const numbers = new Map<string, number>();
    return traffic.flows.map(({ source, destination }, index) => {
      const there = `${source} ${destination}`;
      const { sender, receiver } = this.#direction(source, destination);
      const number = numbers.get(there) ?? 0;
      numbers.set(there, number + 1);
      return {
        source,
        destination,
        sender,
        receiver,
        number,
        offered: traffic.offered.subarray(index * messages, (index + 1) * messages),
        sendsPosted: 0,
        sendsEnded: 0,
        receivesPosted: 0,
        received: 0,
        endedAt: 0,
        awaitsOffer: false,
      };
    });
  }

  #direction(source: number, destination: number): Direction {
    const known = this.#directions.get(`${source} ${destination}`);
    if (known !== undefined) return known;
    const back = this.#directions.get(`${destination} ${source}`);
    const [sender, receiver] = back ? [back.receiver, back.sender] : this.#simulation.connect(source, destination);
    const direction = { sender, receiver, bytesBefore: 0 };
    this.#directions.set(`${source} ${destination}`, direction);
    return direction;
  }

  #listen(host: SimulatedHost): void {
    const sends = this.#sends[host.index] as Map<number, RunningFlow>;
    const receives = this.#receives[host.index] as Map<number, readonly [RunningFlow, number]>;
    host.onConnectionEnd = (_connection, error) => {
      this.#failure ??= error;
    };
    host.onEnd = ({ request: handle, error }) => {
      this.#failure ??= error;
      const sending = sends.get(handle);
      if (sending !== undefined) {
        sends.delete(handle);
        sending.sendsEnded += 1;
        this.#postSends(sending);
        return;
      }
      const receiving = receives.get(handle);
      if (receiving === undefined) return;
      receives.delete(handle);
      const [flow, message] = receiving;
      this.#times.push(this.#simulation.now - flow.offered[message]!);
      flow.received += 1;
      flow.endedAt = this.#simulation.now;
      this.#postReceives(flow);
    };
  }

  #postReceives(flow: RunningFlow): void {
    const { messages, messageBytes, outstanding } = this.#options;
    const region = this.#regions[flow.destination] as Region;
    while (flow.receivesPosted < Math.min(messages, flow.received + outstanding)) {
      const handle = flow.receiver.postReceive({ region, offset: 0, bytes: messageBytes, flow: flow.number });
      this.#receives[flow.destination]?.set(handle, [flow, flow.receivesPosted]);
      flow.receivesPosted += 1;
    }
    this.#simulation.wake(flow.destination);
  }

  /** Posts what has been offered, but no more than keeps the flow busy. */
  #postSends(flow: RunningFlow): void {
    const { messages, messageBytes, outstanding } = this.#options;
    const simulation = this.#simulation;
    const region = this.#regions[flow.source] as Region;
    while (flow.sendsPosted < Math.min(messages, flow.sendsEnded + 2 * outstanding)) {
      const at = flow.offered[flow.sendsPosted]!;
      if (at > simulation.now) {
        if (!flow.awaitsOffer) this.#awaitOffer(flow, at);
        break;
      }
      const handle = flow.sender.postSend({ region, offset: 0, bytes: messageBytes, flow: flow.number });
      this.#sends[flow.source]?.set(handle, flow);
      flow.sendsPosted += 1;
    }
    simulation.wake(flow.source);
  }

  #awaitOffer(flow: RunningFlow, at: number): void {
    flow.awaitsOffer = true;
    this.#simulation.at(at, () => {
      flow.awaitsOffer = false;
      this.#postSends(flow);
    });
  }

  #pointAt(at: number): void {
    this.#simulation.at(at, () => {
      const received = [...this.#directions.values()].reduce(
        (sum, { receiver }) => sum + receiver.statistics.receivedBytes,
        0,
      );
      this.#points.push({ at, gbps: ((received - this.#receivedBefore) * 8) / (OUTAGE_STEP * 1000) });
      this.#receivedBefore = received;
      this.#pointAt(at + OUTAGE_STEP);
    });
  }

  #sampleAt(at: number, every: number): void {
    this.#simulation.at(at, () => {
      this.#samples.push(this.#sample(every));
      this.#sampleAt(at + every, every);
    });
  }

  #sample(every: number): Sample {
    const { network, fabricLinks, now } = this.#simulation;
    const directions = [...this.#directions.values()];
    const goodputGbps = directions.map((direction) => {
      const bytes = direction.receiver.statistics.receivedBytes;
      const rate = ((bytes - direction.bytesBefore) * 8) / (every * 1000);
      direction.bytesBefore = bytes;
      return rate;
    });
    const paths = directions.map(({ sender }) => sender.statistics.paths);
    const pathSegments = sumsByPath(paths);
    const railBytes = this.#railBytes();
    const gbps = (counts: readonly number[], before: readonly number[], bytes: number): number[] =>
      counts.map((count, index) => ((count - (before[index] ?? 0)) * bytes * 8) / (every * 1000));
    const pathGbps = gbps(pathSegments, this.#pathSegmentsBefore, this.#options.segmentBytes);
    const railGbps = gbps(railBytes, this.#railBytesBefore, 1);
    this.#pathSegmentsBefore = pathSegments;
    this.#railBytesBefore = railBytes;
    return {
      at: now,
      goodputGbps,
      windowBytes: paths.map((each) => {
        const window = each.reduce((sum, path) => sum + path.windowBytes, 0);
        return Number.isFinite(window) ? window : null;
      }),
      roundTrip: paths.map((each) => each.reduce((sum, path) => sum + path.smoothedRtt, 0) / each.length),
      pathGbps,
      railGbps,
      queueBytes: fabricLinks.reduce((most, link) => Math.max(most, network.queuedBytes(link, now)), 0),
    };
  }

  #result(end: RunEnd): PatternResult {
    const {
      pattern,
      topology,
      messageBytes,
      segmentBytes,
      messages,
      paths,
      engines = 1,
      hostGigabitsPerSecond,
      outage,
    } = this.#options;
    const simulation = this.#simulation;
    const flows = this.#flows;
    const microseconds = flows.reduce((latest, flow) => Math.max(latest, flow.endedAt), 0);
    const rate = (count: number, time: number): number => (time === 0 ? 0 : (count * messageBytes * 8) / (time * 1000));
    const ends = new Set([...this.#directions.values()].flatMap(({ sender, receiver }) => [sender, receiver]));
    const statistics = [...ends].map((connection) => connection.statistics);
    const sum = (pick: (one: (typeof statistics)[number]) => number): number =>
      statistics.reduce((total, one) => total + pick(one), 0);
    return {
      end,
      messages: flows.length * messages,
      completed: this.#times.length,
      microseconds,
      goodputGbps: rate(this.#times.length, microseconds),
      fairness: jainFairness(flows.map((flow) => rate(flow.received, flow.endedAt))),
      completion: completionTimes(this.#times),
      theory: theory({
        pattern,
        topology,
        messageBytes,
        segmentBytes,
        messages: flows.length * messages,
        paths: paths * engines,
        hostGigabitsPerSecond,
        ...(outage === undefined ? {} : { outage }),
      }),
      railBytes: this.#railBytes(),
      outage: outage && outageEffect(outage, this.#points, Math.min(...flows.map(({ endedAt }) => endedAt))),
      network: { ...simulation.network.counts },
      transport: {
        segments: sum((one) => one.sentSegments),
        retransmitted: sum((one) => one.retransmittedSegments),
        duplicates: sum((one) => one.duplicateSegments),
        timeouts: sum((one) => one.timeouts),
        acks: sum((one) => one.sentAcks),
      },
      events: simulation.events,
      longestQueueBytes: simulation.fabricLinks.reduce(
        (most, link) => Math.max(most, simulation.network.linkLoad(link).longestQueueBytes),
        0,
      ),
      mostPackets: simulation.packets.most,
      samples: this.#samples,
    };
  }
  #railBytes(): number[] {
    const { topology, hosts, network } = this.#simulation;
    const bytes = Array.from({ length: topology.rails }, () => 0);
    for (const link of hosts.flatMap(({ engines }) => engines[0]!.io.uplinks)) {
      const rail = topology.railOf(link);
      bytes[rail] = bytes[rail]! + network.linkLoad(link).bytes;
    }
    return bytes;
  }
}

function sumsByPath(paths: readonly (readonly { readonly path: number; readonly sentSegments: number }[])[]): number[] {
  const sums: number[] = [];
  for (const { path, sentSegments } of paths.flat()) sums[path] = (sums[path] ?? 0) + sentSegments;
  return Array.from(sums, (sum) => sum ?? 0);
}
