// Runs a collective's schedule between simulated hosts: messages of the real transport, begun as others come.
import type { WeftlineError } from '../../../core/errors.ts';
import type { Region } from '../../../transport/engine/region.ts';
import type { LaneConnection } from '../lane-connection.ts';
import type { NetworkCounts } from '../link.ts';
import { type RunEnd, Simulation, type SimulationOptions } from '../simulation.ts';
import { oneWayDelay, wireBytes } from '../theory.ts';
import type { CollectiveSchedule } from './collective-schedule.ts';

export interface CollectiveOptions extends SimulationOptions {
  readonly schedule: CollectiveSchedule;
  /** Of the largest message. */
  readonly largestBytes: number;
  /** Of a host, all its rails together. */
  readonly hostGigabitsPerSecond: number;
  /** Longest simulated time, in microseconds. */
  readonly until: number;
}

export interface CollectiveRunResult {
  readonly end: RunEnd;
  readonly messages: number;
  readonly arrived: number;
  /** Simulated time until the last message came. */
  readonly microseconds: number;
  /** Payload of the host that sent most, and of the one that got most. */
  readonly mostSentBytes: number;
  readonly mostReceivedBytes: number;
  /** No network of these links takes less: the bytes of the busiest host at its rate; the messages that wait for each other. */
  readonly bounds: { readonly bytesMicroseconds: number; readonly stepsMicroseconds: number };
  /** Before any link but the hosts' own. */
  readonly longestQueueBytes: number;
  readonly network: NetworkCounts;
  readonly events: number;
}

/** Two hosts, and messages that are under way between them. */
interface Pair {
  readonly ends: readonly [LaneConnection, LaneConnection];
  underWay: number;
}

interface Pending {
  readonly source: number;
  readonly destination: number;
  readonly tag: number;
  /** Ends that are not over: of the send, of the receive. */
  left: number;
}

export function runCollective(options: CollectiveOptions): CollectiveRunResult {
  return new CollectiveRun(options).run();
}

class CollectiveRun {
  readonly #options: CollectiveOptions;
  readonly #simulation: Simulation;
  readonly #regions: readonly Region[];
  /** By the lower host and the higher one. */
  readonly #pairs = new Map<number, Pair>();
  /** Of each host: by request, the message, and whether it is the receiving end. */
  readonly #requests: readonly Map<number, readonly [Pending, isReceive: boolean]>[];
  readonly #sent: { readonly bytes: Float64Array; readonly wire: Float64Array };
  readonly #received: { readonly bytes: Float64Array; readonly wire: Float64Array };
  #arrived = 0;
  #lastAt = 0;
  #failure: WeftlineError | undefined;

  constructor(options: CollectiveOptions) {
    this.#options = options;
    const { largestBytes } = options;
    this.#simulation = new Simulation(options);
    const { hosts } = this.#simulation;
    const bytes = new Uint8Array(largestBytes);
    this.#regions = hosts.map((host) => host.register({ bytes }));
    this.#requests = hosts.map(() => new Map());
    const counts = (): Float64Array => new Float64Array(hosts.length);
    this.#sent = { bytes: counts(), wire: counts() };
    this.#received = { bytes: counts(), wire: counts() };
  }

  run(): CollectiveRunResult {
    const { schedule, until } = this.#options;
    const simulation = this.#simulation;
    for (const host of simulation.hosts) {
      host.onConnectionEnd = (_connection, error) => {
        this.#failure ??= error;
      };
      host.onEnd = ({ request, error }) => this.#ended(host.index, request, error);
    }
    schedule.begin(this.#send);
    const done = (): boolean => this.#arrived === schedule.messages || this.#failure !== undefined;
    const end = schedule.messages === 0 ? 'done' : simulation.run({ until, events: Number.POSITIVE_INFINITY, done });
    if (this.#failure !== undefined) throw this.#failure;
    const { network, events, fabricLinks } = simulation;
    return {
      end,
      messages: schedule.messages,
      arrived: this.#arrived,
      microseconds: this.#lastAt,
      mostSentBytes: Math.max(...this.#sent.bytes),
      mostReceivedBytes: Math.max(...this.#received.bytes),
      bounds: this.#bounds(),
      longestQueueBytes: fabricLinks.reduce(
        (most, link) => Math.max(most, network.linkLoad(link).longestQueueBytes),
        0,
      ),
      network: { ...network.counts },
      events,
    };
  }

  readonly #send = (source: number, destination: number, bytes: number, tag: number): void => {
    const { segmentBytes } = this.#options;
    const { sender, receiver } = this.#connection(source, destination);
    const pending: Pending = { source, destination, tag, left: 2 };
    const part = { offset: 0, bytes, flow: 0 };
    // At the same moment on both hosts: the clear-to-send is on its way first.
    const receive = receiver.postReceive({ ...part, region: this.#regions[destination]! });
    this.#requests[destination]!.set(receive, [pending, true]);
    const send = sender.postSend({ ...part, region: this.#regions[source]! });
    this.#requests[source]!.set(send, [pending, false]);
    const wire = wireBytes(bytes, segmentBytes);
    this.#sent.bytes[source]! += bytes;
    this.#received.bytes[destination]! += bytes;
    this.#sent.wire[source]! += wire;
    this.#received.wire[destination]! += wire;
    this.#simulation.wake(source);
    this.#simulation.wake(destination);
  };

  #connection(
    source: number,
    destination: number,
  ): { readonly sender: LaneConnection; readonly receiver: LaneConnection } {
    const [low, high] = [Math.min(source, destination), Math.max(source, destination)];
    const key = low * this.#simulation.hosts.length + high;
    let pair = this.#pairs.get(key);
    if (pair === undefined) {
      pair = { ends: this.#simulation.connect(low, high), underWay: 0 };
      this.#pairs.set(key, pair);
    }
    pair.underWay++;
    const [first, second] = pair.ends;
    return source === low ? { sender: first, receiver: second } : { sender: second, receiver: first };
  }

  #ended(host: number, request: number, error: WeftlineError | undefined): void {
    this.#failure ??= error;
    const found = this.#requests[host]!.get(request);
    if (found === undefined || this.#failure !== undefined) return;
    this.#requests[host]!.delete(request);
    const [pending, isReceive] = found;
    pending.left--;
    if (pending.left === 0) this.#release(pending);
    if (!isReceive) return;
    this.#arrived++;
    this.#lastAt = this.#simulation.now;
    this.#options.schedule.arrived(pending.source, pending.destination, pending.tag, this.#send);
  }

  #release({ source, destination }: Pending): void {
    const [low, high] = [Math.min(source, destination), Math.max(source, destination)];
    const key = low * this.#simulation.hosts.length + high;
    const pair = this.#pairs.get(key)!;
    pair.underWay--;
    if (pair.underWay > 0 || !this.#options.schedule.usesConnectionsOnce) return;
    this.#pairs.delete(key);
    const simulation = this.#simulation;
    // Not within the engine's own call.
    simulation.at(simulation.now, () => simulation.disconnect(low, high, pair.ends));
  }

  #bounds(): CollectiveRunResult['bounds'] {
    const { topology, schedule, segmentBytes, hostGigabitsPerSecond } = this.#options;
    const most = Math.max(...this.#sent.wire, ...this.#received.wire);
    const near = { source: 0, destination: 1 };
    const { count, bytes } = schedule.steps;
    const perStep = oneWayDelay(topology, near, Math.min(bytes, segmentBytes));
    const rest = Math.max(0, wireBytes(bytes, segmentBytes) - segmentBytes) / (hostGigabitsPerSecond * 125);
    return { bytesMicroseconds: most / (hostGigabitsPerSecond * 125), stepsMicroseconds: count * (perStep + rest) };
  }
}
