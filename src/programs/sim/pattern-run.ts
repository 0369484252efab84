// Runs a traffic pattern between simulated hosts: posts receives and sends as time goes on, and takes times and samples.
import { DATA_HEADER_BYTES } from '../../transport/wire/packet-layout.ts';
import { invalidArgument, type WeftlineError } from '../../core/errors.ts';
import { quantile } from '../../core/quantile.ts';
import { randomCycle, seededRandom } from '../../core/seeded-random.ts';
import type { Settings } from '../../settings/settings.ts';
import type { Region } from '../../transport/engine/region.ts';
import { type LaneConnection, type SimulatedHost, type RailOptions, WIRE_OVERHEAD_BYTES } from './simulated-host.ts';
import { type RunEnd, Simulation } from './simulation.ts';
import { type NetworkTopology, railLinks, routeOf, type TopologyName } from './topology.ts';

export interface PatternOptions {
  readonly pattern: PatternName;
  readonly topology: NetworkTopology;
  /** The rate of one host, all its links together. */
  readonly hostGigabitsPerSecond: number;
  readonly seed: number;
  /** Flows of a sending host, messages of a flow, receives that a flow keeps posted, bytes of a message. */
  readonly flows: number;
  readonly messages: number;
  readonly outstanding: number;
  readonly messageBytes: number;
  /** Paths of each lane of a connection. */
  readonly paths: number;
  /** Engines of each host; one if missing. */
  readonly engines?: number;
  readonly segmentBytes: number;
  /** Share of the hosts' rate that is offered, at random times; 1 offers all messages at once. */
  readonly load: number;
  readonly pollDelay: number;
  readonly rail: RailOptions;
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

export type PatternResult = ReturnType<typeof runPattern>;

export function runPattern(options: PatternOptions) {
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
  /** What had been sent by path and by rail when the last sample was taken. */
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

  run() {
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

  #result(end: RunEnd) {
    const { messageBytes, messages, paths, engines = 1, outage } = this.#options;
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
      /** Simulated time until the last message arrived. */
      microseconds,
      /** Payload of all flows over that time. */
      goodputGbps: rate(this.#times.length, microseconds),
      /** Jain's index of the flows' goodput: 1 if all are alike, 1/n if one has all. */
      fairness: jainFairness(flows.map((flow) => rate(flow.received, flow.endedAt))),
      /** Microseconds from the offer of a message to its arrival; undefined if none arrived. */
      completion: completionTimes(this.#times),
      theory: theory({ ...this.#options, messages: flows.length * messages, paths: paths * engines }),
      /** Bytes that all hosts sent by each rail, headers of all layers included. */
      railBytes: this.#railBytes(),
      outage: outage && outageEffect(outage, this.#points, Math.min(...flows.map(({ endedAt }) => endedAt))),
      network: { ...simulation.network.counts },
      /** Sums over all connections' sending ends; `duplicates`: arrived more than once. */
      transport: {
        segments: sum((one) => one.sentSegments),
        retransmitted: sum((one) => one.retransmittedSegments),
        duplicates: sum((one) => one.duplicateSegments),
        timeouts: sum((one) => one.timeouts),
        acks: sum((one) => one.sentAcks),
      },
      events: simulation.events,
      /** The longest queue before any link but the hosts' own. */
      longestQueueBytes: simulation.fabricLinks.reduce(
        (most, link) => Math.max(most, simulation.network.linkLoad(link).longestQueueBytes),
        0,
      ),
      /** Most packets that were under way together. */
      mostPackets: simulation.packets.most,
      samples: this.#samples as readonly Sample[],
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

// What a run of a traffic pattern found: how fast, how fair, what was lost, and what theory would allow.

/** The state at one moment; rates are those since the sample before. */
interface Sample {
  /** Microseconds. */
  readonly at: number;
  /** Gbps of payload of each pair of source and destination. */
  readonly goodputGbps: readonly number[];
  /** The window of the same pairs, all paths together; null if unlimited. */
  readonly windowBytes: readonly (number | null)[];
  /** The mean of the smoothed round trips of the same pairs' paths, in microseconds. */
  readonly roundTrip: readonly number[];
  /** Gbps of full packets that all senders together gave to each path, those sent again included. */
  readonly pathGbps: readonly number[];
  /** Gbps that all hosts together sent by each rail, headers of all layers included. */
  readonly railGbps: readonly number[];
  /** Longest queue before any link but the hosts' own. */
  readonly queueBytes: number;
}

function completionTimes(times: readonly number[]) {
  if (times.length === 0) return undefined;
  const sorted = times.toSorted((a, b) => a - b);
  return { p50: quantile(sorted, 0.5), p99: quantile(sorted, 0.99), max: quantile(sorted, 1) };
}

export function jainFairness(rates: readonly number[]): number {
  const sum = rates.reduce((total, rate) => total + rate, 0);
  const squares = rates.reduce((total, rate) => total + rate * rate, 0);
  return squares === 0 ? 1 : (sum * sum) / (rates.length * squares);
}

// The messages of each pattern, with sender, receiver and time: pair, incast, permutation and all-to-all.

export const patternNames = ['pair', 'incast', 'permutation', 'all-to-all'] as const;

export type PatternName = (typeof patternNames)[number];

/** The network that suits a pattern if none is named. */
export const usualTopology: Readonly<Record<PatternName, TopologyName>> = {
  pair: 'pair',
  incast: 'star',
  permutation: 'leaf-spine',
  'all-to-all': 'leaf-spine',
};

/** Every pair of hosts has a connection: 128 hosts take 4.6 GB. */
const MAX_ALL_TO_ALL_HOSTS = 128;

interface TrafficOptions {
  readonly pattern: PatternName;
  readonly hosts: number;
  /** Flows of each pair of a sender and a receiver. */
  readonly flows: number;
  /** Messages of each flow. */
  readonly messages: number;
  /** Messages that a flow offers per microsecond, at random times (Poisson); Infinity offers all at once. */
  readonly messagesPerMicrosecond: number;
  readonly random: () => number;
}

/** `offered`: microseconds at which each message is offered, flow-major: message m of flow f is element f * messages + m. */
export function makeTraffic(options: TrafficOptions) {
  const { hosts, flows: perHost, messages, messagesPerMicrosecond, random } = options;
  if (hosts < 2) throw invalidArgument('hosts', hosts, 'at least 2');
  if (options.pattern === 'all-to-all' && hosts > MAX_ALL_TO_ALL_HOSTS) {
    throw invalidArgument('hosts of an all-to-all', hosts, `at most ${MAX_ALL_TO_ALL_HOSTS}`);
  }
  const flows = pairsOf(options).flatMap((pair) => Array.from({ length: perHost }, () => pair));
  const offered = new Float64Array(flows.length * messages);
  if (messagesPerMicrosecond === Number.POSITIVE_INFINITY) return { flows, offered };
  for (let flow = 0; flow < flows.length; flow += 1) {
    let time = 0;
    for (let message = 0; message < messages; message += 1) {
      time -= Math.log(1 - random()) / messagesPerMicrosecond;
      offered[flow * messages + message] = time;
    }
  }
  return { flows, offered };
}

function pairsOf({
  pattern,
  hosts,
  random,
}: TrafficOptions): { readonly source: number; readonly destination: number }[] {
  switch (pattern) {
    case 'pair':
      return [{ source: 0, destination: 1 }];
    case 'incast':
      return Array.from({ length: hosts - 1 }, (_, source) => ({ source, destination: hosts - 1 }));
    case 'all-to-all':
      // Every host sends to another one in each turn.
      return Array.from({ length: hosts - 1 }, (_, turn) => turn + 1).flatMap((step) =>
        Array.from({ length: hosts }, (_, source) => ({ source, destination: (source + step) % hosts })),
      );
    case 'permutation':
    default:
      return randomCycle(hosts, random).map((destination, source) => ({ source, destination }));
  }
}

// What a network could do at best: bytes on the wire, fair shares, and times that no transport can beat.

/** Bytes that a message takes on each link of its route, headers of all layers included. */
export function wireBytes(messageBytes: number, segmentBytes: number): number {
  const packets = Math.max(1, Math.ceil(messageBytes / (segmentBytes - DATA_HEADER_BYTES)));
  return messageBytes + packets * (DATA_HEADER_BYTES + WIRE_OVERHEAD_BYTES);
}

/** Microseconds from the first bit of a packet leaving its source to the last one reaching the destination, on idle links. */
export function oneWayDelay(
  topology: NetworkTopology,
  { source, destination }: { readonly source: number; readonly destination: number },
  packetBytes: number,
): number {
  let time = 0;
  for (const link of routeOf(topology, source, destination, 0)) {
    const { delay, gigabitsPerSecond } = topology.links[link] as NetworkTopology['links'][number];
    time += delay + (packetBytes + WIRE_OVERHEAD_BYTES) / (gigabitsPerSecond * 125);
  }
  return time;
}

/** A rail that is down for all hosts from one time to another. */
interface RailOutage {
  readonly from: number;
  /** Infinity if it never recovers. */
  readonly to: number;
}

interface TheoryOptions {
  readonly pattern: PatternName;
  readonly topology: NetworkTopology;
  readonly messageBytes: number;
  readonly segmentBytes: number;
  /** All messages of all flows. */
  readonly messages: number;
  /** Paths of a connection: with fewer than there are rails, some rails are idle. */
  readonly paths: number;
  /** Gbps of one host, all its links together. */
  readonly hostGigabitsPerSecond: number;
  readonly outage?: RailOutage;
}

const hostsAtBothEnds: ReadonlySet<PatternName> = new Set(['permutation', 'all-to-all']);

export function theory(options: TheoryOptions) {
  const { pattern, topology, messageBytes, segmentBytes, messages, paths, hostGigabitsPerSecond, outage } = options;
  const wire = wireBytes(messageBytes, segmentBytes);
  const efficiency = messageBytes / wire;
  const areAll = hostsAtBothEnds.has(pattern);
  const receivers = areAll ? topology.hosts : 1;
  const senders = areAll ? topology.hosts : pattern === 'incast' ? topology.hosts - 1 : 1;
  const rails = Math.min(paths, topology.rails);
  const railRate = (hostGigabitsPerSecond * 125) / topology.rails;
  const goodputGbps = (receivers * hostGigabitsPerSecond * efficiency * rails) / topology.rails;
  const farthest = { source: 0, destination: topology.hosts - 1 };
  const head = oneWayDelay(topology, farthest, Math.min(segmentBytes, messageBytes + DATA_HEADER_BYTES));
  // The first packet's own time on the first link is part of both.
  const rest = Math.max(0, wire / rails - segmentBytes - WIRE_OVERHEAD_BYTES) / railRate;
  const others = ((messages / receivers - 1) * wire) / (rails * railRate);
  return {
    /** Most payload that all receivers together can get while all rails are up, in Gbps. */
    goodputGbps,
    /** The part of one sending host. */
    fairShareGbps: goodputGbps / senders,
    /** One message alone in the network, without asking the receiver first. */
    messageMicroseconds: head + rest,
    /** All messages, if they were offered at once and the narrowest place never idled. */
    totalMicroseconds: delayedBy(outage, head + rest + others, (rails - 1) / rails),
  };
}

/** When work that takes so long with all rails is over, if `share` of the rails work during the outage. */
function delayedBy(outage: RailOutage | undefined, microseconds: number, share: number): number {
  if (outage === undefined || microseconds <= outage.from) return microseconds;
  const left = microseconds - outage.from;
  const done = share * (outage.to - outage.from);
  if (share > 0 && left <= done) return outage.from + left / share;
  return Number.isFinite(outage.to) ? outage.to + left - done : Number.POSITIVE_INFINITY;
}

// A rail that dies, and perhaps comes back: what the hosts received before, while it was dead, and afterwards.

/** Payload of all hosts since the point before. */
interface GoodputPoint {
  /** Microseconds. */
  readonly at: number;
  readonly gbps: number;
}

/** Between two points. */
const OUTAGE_STEP = 1000;
const SETTLED = 100_000;

/**
 * Means, in Gbps of payload; undefined where the run was over before.
 * @param end When the first flow had all its messages; what comes after it says nothing of the network.
 */
function outageEffect(outage: RailOutage & { readonly rail: number }, points: readonly GoodputPoint[], end: number) {
  const { from, to } = outage;
  // A point tells of the time before it.
  const within = (begin: number, finish: number): number[] =>
    points.filter(({ at }) => at - OUTAGE_STEP >= begin && at <= Math.min(finish, end)).map(({ gbps }) => gbps);
  const later = within(from, Number.POSITIVE_INFINITY);
  return {
    ...outage,
    /** Goodput in the second half of the time before it died. */
    before: mean(within(from / 2, from)),
    /** The worst millisecond from then on. */
    worst: later.length === 0 ? undefined : Math.min(...later),
    /** Goodput from 100 ms after it died until it came back, or until the end. */
    during: mean(within(from + SETTLED, to)),
    /** Goodput from 100 ms after it came back until the end. */
    after: mean(within(to + SETTLED, Number.POSITIVE_INFINITY)),
  };
}

function mean(values: readonly number[]): number | undefined {
  return values.length === 0 ? undefined : values.reduce((sum, value) => sum + value, 0) / values.length;
}
