// One end of a connection between hosts with several engines: which lane carries what is decided as on a real host.
import { WeftlineError } from '../../core/errors.ts';
import { FlowOrder } from '../../transport/lanes/flow-order.ts';
import { NONE } from '../../transport/lanes/gates.ts';
import { LaneChoice, type LanePart, type Spread } from '../../transport/lanes/lane-choice.ts';
import type { Region } from '../../transport/engine/region.ts';
import type {
  ConnectionStatistics,
  EngineHandle,
  MessageOptions,
  RemoteOptions,
  ScatterOptions,
  SignalOptions,
  TransportConnection,
} from '../../transport/engine/transport-engine.ts';
import type { SimulatedHost } from './simulated-host.ts';

interface LaneConnectionOptions {
  readonly host: SimulatedHost;
  /** Number of the connection on its host. */
  readonly number: number;
  /** By lane, which is also the number of the engine. */
  readonly lanes: readonly TransportConnection[];
  readonly spread: Spread;
}

/** Requests are numbers of the host. */
export class LaneConnection {
  readonly #host: SimulatedHost;
  readonly #number: number;
  readonly #lanes: readonly TransportConnection[];
  readonly #choice: LaneChoice;
  readonly #order: FlowOrder;
  #isOver = false;
  /** Of the lane that ended first. */
  #reason: WeftlineError | undefined;

  constructor({ host, number, lanes, spread }: LaneConnectionOptions) {
    this.#host = host;
    this.#number = number;
    this.#lanes = lanes;
    this.#choice = new LaneChoice(lanes.length, spread);
    this.#order = new FlowOrder(host.gates);
  }

  get peerName(): string {
    return this.#lanes[0]!.peerName;
  }

  get payloadBytes(): number {
    return this.#lanes[0]!.payloadBytes;
  }

  get error(): WeftlineError | undefined {
    return this.#reason ?? this.#lanes.find(({ error }) => error !== undefined)?.error;
  }

  /** The counters of all lanes together, and the paths of each. */
  get statistics(): ConnectionStatistics {
    return this.#lanes.map(({ statistics }) => statistics).reduce(add);
  }

  has(lane: TransportConnection): boolean {
    return this.#lanes.includes(lane);
  }

  postSend(options: MessageOptions): number {
    return this.#message(options, true);
  }

  postReceive(options: MessageOptions): number {
    return this.#message(options, false);
  }

  write(options: RemoteOptions): number {
    this.#check();
    const { offset, bytes, flow = 0 } = options;
    const choice = this.#choice;
    const order = choice.flow(flow);
    choice.oneSided(order, bytes);
    const leavesHome = choice.count > 1 || choice.parts[0]!.lane !== order.home;
    const gate = leavesHome ? this.#order.gateFor(flow) : NONE;
    if (leavesHome && gate === NONE) choice.refused(order, bytes);
    return this.#post(options.region, (share) => {
      const whole = share.bytes === bytes ? undefined : { partOffset: share.offset, bytes };
      const part = { ...options, offset: offset + share.offset, bytes: share.bytes, whole };
      const held = share.lane === order.home ? NONE : gate;
      if (held !== NONE) this.#host.gates.enter(held, 1);
      return { gate: held, post: (connection, region) => connection.write({ ...part, region }) };
    });
  }

  read(options: RemoteOptions): number {
    this.#check();
    const { offset, bytes, remoteOffset, flow = 0 } = options;
    this.#choice.oneSided(this.#choice.flow(flow), bytes);
    return this.#post(options.region, (share) => {
      const place = { offset: offset + share.offset, bytes: share.bytes, remoteOffset: remoteOffset + share.offset };
      return { gate: NONE, post: (connection, region) => connection.read({ ...options, ...place, region }) };
    });
  }

  /** Small ranges stay on the home lane. */
  scatter(options: ScatterOptions): number {
    this.#check();
    this.#choice.refused(this.#choice.flow(options.flow ?? 0), 0);
    return this.#post(options.region, () => ({
      gate: NONE,
      post: (connection, region) => connection.scatter({ ...options, region }),
    }));
  }

  signal(options: SignalOptions): number {
    return this.#fence(options.flow ?? 0, (connection) => connection.signal(options));
  }

  flush(flow = 0): number {
    return this.#fence(flow, (connection) => connection.flush(flow));
  }

  cancel(request: number): boolean {
    return this.#host.cancel(request);
  }

  close(): void {
    this.end();
    for (const lane of this.#lanes) lane.close();
  }

  /** A lane has ended: so have the others, for the same reason, and what was held back. */
  end(reason?: WeftlineError): void {
    if (this.#isOver) return;
    this.#isOver = true;
    this.#reason = reason;
    this.#order.close();
    if (reason !== undefined) {
      this.#host.noteReason(this.#lanes, reason);
      for (const lane of this.#lanes) if (lane.error === undefined) lane.close();
    }
    const error = reason ?? new WeftlineError('WL_CLOSED', `The connection to ${this.peerName} was closed`);
    for (const held of this.#host.held) for (const { slot } of held.end(this.#number)) this.#host.failHeld(slot, error);
  }

  #message(options: MessageOptions, isSend: boolean): number {
    this.#check();
    const { offset, bytes, flow = 0 } = options;
    const order = this.#choice.flow(flow);
    this.#choice.message(order, isSend ? order.sends : order.receives, bytes);
    const request = this.#post(options.region, (share) => {
      if (!isSend) return { gate: NONE, post: (connection, region) => connection.postReceive({ ...options, region }) };
      const whole = share.bytes === bytes ? undefined : { partOffset: share.offset, bytes };
      const part = { ...options, offset: offset + share.offset, bytes: share.bytes, whole };
      return { gate: NONE, post: (connection, region) => connection.postSend({ ...part, region }) };
    });
    if (isSend) order.sends += 1;
    else order.receives += 1;
    return request;
  }

  /** Signals and flushes go to the flow's home lane, which holds them until earlier writes on other lanes are done. */
  #fence(flow: number, post: (connection: TransportConnection) => EngineHandle): number {
    this.#check();
    const host = this.#host;
    const { home } = this.#choice.flow(flow);
    const gate = this.#order.fence(flow);
    const request = host.open(1, gate);
    if (gate !== NONE) {
      host.gates.wait(gate, home);
      this.#order.pass(flow);
    }
    const connection = this.#lanes[home]!;
    const begin = (): void => host.put(request, { lane: home, gate: NONE, connection, post: () => post(connection) });
    const fence = { slot: request, connection: this.#number, flow, post: begin };
    const held = host.held[home]!;
    if (held.mustHold(fence, gate)) held.hold(fence, gate);
    else begin();
    return request;
  }

  /** A request of the parts that were chosen last. */
  #post(region: Region, prepare: (share: LanePart) => PreparedPart): number {
    const host = this.#host;
    const { count, parts } = this.#choice;
    const request = host.open(count, NONE);
    for (const share of parts.slice(0, count)) {
      const { lane } = share;
      const { gate, post } = prepare(share);
      const connection = this.#lanes[lane]!;
      const here = host.regionOf(region, lane);
      host.put(request, { lane, gate, connection, post: () => post(connection, here) });
    }
    return request;
  }

  #check(): void {
    const { error } = this;
    if (error !== undefined) throw error;
  }
}

interface PreparedPart {
  /** That the part holds shut. */
  readonly gate: number;
  readonly post: (connection: TransportConnection, region: Region) => EngineHandle;
}

function add(sum: ConnectionStatistics, other: ConnectionStatistics): ConnectionStatistics {
  const { paths, ...counters } = sum;
  const names = Object.keys(counters) as (keyof typeof counters)[];
  const sums = Object.fromEntries(names.map((name) => [name, sum[name] + other[name]])) as typeof counters;
  return { ...sums, paths: [...paths, ...other.paths] };
}
