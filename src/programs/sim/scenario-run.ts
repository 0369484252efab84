// Runs a scenario and finds out whether the transport kept its promises.
import { type ErrorCode, WeftlineError } from '../../core/errors.ts';
import { settingsTable } from '../../settings/settings.ts';
import type { ConnectionStatistics } from '../../transport/engine/transport-engine.ts';
import type { LaneConnection } from './lane-connection.ts';
import {
  beginOperation,
  memoryOf,
  mustFail,
  nameOf,
  postReceive,
  prepareOperation,
  type Role,
  type RunningOperation,
} from './running-operation.ts';
import type { Cancellation, Closing, Scenario } from './scenario.ts';
import { type BufferRange, firstWrongByte, ScenarioBuffers } from './scenario-buffers.ts';
import { keyOf, SignalCounters } from './signal-counters.ts';
import type { RequestEnd, SimulatedHost } from './simulated-host.ts';
import { type RunEnd, Simulation } from './simulation.ts';

export interface ScenarioResult {
  /** Promises that were broken, in words; empty if all were kept. */
  readonly problems: readonly string[];
  readonly end: RunEnd;
  readonly microseconds: number;
  readonly events: number;
  readonly mostPackets: number;
  readonly statistics: readonly ConnectionStatistics[];
}

/** Simulated time within which everything must have ended, in microseconds. */
const LONGEST = 600_000_000;
const MAX_EVENTS = 20_000_000;

export function runScenario(scenario: Scenario): ScenarioResult {
  return new ScenarioRun(scenario).run();
}

/** A request that was posted and has not ended. */
interface Pending {
  readonly running: RunningOperation;
  readonly role: Role;
  readonly postedAt: number;
}

class ScenarioRun {
  readonly #scenario: Scenario;
  readonly #simulation: Simulation;
  readonly #operations: readonly RunningOperation[];
  readonly #buffers: readonly ScenarioBuffers[];
  readonly #ends: readonly (readonly [LaneConnection, LaneConnection])[];
  readonly #problems: string[] = [];
  /** Connections that one end has closed. */
  readonly #closed = new Set<number>();
  readonly #counters = new SignalCounters(this.#problems);
  /** Of each host. */
  readonly #pending: readonly Map<number, Pending>[];
  #unposted = 0;
  #waiting = 0;

  constructor(scenario: Scenario) {
    this.#scenario = scenario;
    this.#simulation = new Simulation(scenario);
    const { hosts } = this.#simulation;
    this.#ends = scenario.connections.map(([a, b]) => this.#simulation.connect(a, b));
    const bytes = scenario.operations.reduce((sum, operation) => sum + memoryOf(operation), 0);
    const ranges = 2 * scenario.operations.length;
    this.#buffers = hosts.map((host) => new ScenarioBuffers(host, { bytes, ranges }));
    this.#pending = hosts.map(() => new Map());
    const counter = this.#counters.take.bind(this.#counters);
    const plan = { scenario, ends: this.#ends, buffers: this.#buffers, counter };
    this.#operations = scenario.operations.map((_, index) => prepareOperation(plan, index));
  }

  run(): ScenarioResult {
    const { faults, deaths, cancellations, closings } = this.#scenario;
    const simulation = this.#simulation;
    for (const host of simulation.hosts) {
      host.onEnd = (end) => this.#ended(host, end);
      host.afterRound = () => this.#counters.look(host.index, this.#operations);
    }
    for (const { link, at, recoversAt } of faults) {
      simulation.at(at, () => simulation.network.fail(link));
      if (recoversAt !== undefined) simulation.at(recoversAt, () => simulation.network.recover(link, simulation.now));
    }
    for (const { host, at } of deaths) simulation.at(at, () => this.#kill(host));
    for (const running of this.#operations) this.#schedule(running);
    // At the same time as what they undo, these come after it.
    for (const cancellation of cancellations) simulation.at(cancellation.at, () => this.#cancel(cancellation));
    for (const closing of closings) simulation.at(closing.at, () => this.#close(closing));
    const done = (): boolean => this.#unposted === 0 && this.#waiting === 0;
    let end = simulation.run({ until: LONGEST, events: MAX_EVENTS, done });
    if (end === 'done') end = this.#windDown();
    else this.#problems.push(`requests pending, "${end}" at ${simulation.now.toFixed(0)} µs:`, ...this.#dump());
    return {
      problems: this.#problems,
      end,
      microseconds: simulation.now,
      events: simulation.events,
      mostPackets: simulation.packets.most,
      statistics: this.#ends.flat().map(({ statistics }) => statistics),
    };
  }

  /** Everything has ended: nothing may be written any more, and nobody may stay awake. */
  #windDown(): RunEnd {
    const simulation = this.#simulation;
    const end = simulation.run({ until: LONGEST * 2, events: 1_000_000, done: () => false });
    if (end !== 'quiet') this.#problems.push(`engines do not come to rest: ${end} at ${simulation.now.toFixed(0)} µs`);
    else if (simulation.packets.used > 0) this.#problems.push(`${simulation.packets.used} packets were not given back`);
    for (const [host, buffers] of this.#buffers.entries()) {
      for (const problem of buffers.problems()) this.#problems.push(`host ${host}: ${problem}`);
    }
    if (this.#scenario.settings.transportAuthentication === true) this.#checkDrops();
    const segments = this.#scenario.settings.transportWindowSegments ?? settingsTable.transportWindowSegments.default;
    // Both ways: data, as many copies and acknowledgements, and some control packets.
    const bound = this.#ends.length * (this.#scenario.engines ?? 1) * (6 * segments + 2000);
    if (simulation.packets.most > bound) {
      this.#problems.push(`${simulation.packets.most} packets were under way at once, more than ${bound}`);
    }
    return end;
  }

  /** Where packets are authenticated, none that was changed on the way is taken in, and each that was not is recognised. */
  #checkDrops(): void {
    for (const { node, io, engine } of this.#simulation.hosts.flatMap(({ engines }) => engines)) {
      const { short, version, kind, connection, tag, checksum, secret, length } = engine.drops;
      // A late packet may find that its connection is over and forgotten.
      const refused = short + version + kind + tag;
      if (refused > io.corrupted || refused + connection < io.corrupted || checksum + secret + length > 0) {
        const drops = JSON.stringify(engine.drops);
        this.#problems.push(`engine ${node}: ${io.corrupted} changed packets came, dropped: ${drops}`);
      }
    }
  }

  #schedule(running: RunningOperation): void {
    const { operation, near, far } = running;
    if (operation.kind === 'signal') this.#counters.expect(running);
    this.#postAt(operation.at, near, () => this.#note(running, near, () => beginOperation(running)));
    if (operation.kind !== 'message') return;
    this.#postAt(operation.receiveAt, far, () =>
      this.#note(running, far, () => ({ role: 'receive', handle: postReceive(running) })),
    );
  }

  #postAt(at: number, host: number, post: () => void): void {
    const simulation = this.#simulation;
    this.#unposted += 1;
    simulation.at(at, () => {
      this.#unposted -= 1;
      if (!(simulation.hosts[host] as SimulatedHost).alive) return;
      post();
      simulation.wake(host);
    });
  }

  #note(running: RunningOperation, host: number, post: () => { role: Role; handle: number }): void {
    try {
      const { role, handle } = post();
      this.#pending[host]?.set(handle, { running, role, postedAt: this.#simulation.now });
      this.#waiting += 1;
    } catch (error) {
      // The connection has ended before.
      if (!(error instanceof WeftlineError)) throw error;
      this.#checkError(running, 'posting', error);
    }
  }

  #ended(host: SimulatedHost, { request: handle, error, bytes }: RequestEnd): void {
    const pending = this.#pending[host.index]?.get(handle);
    if (pending === undefined) {
      this.#problems.push(`host ${host.index}: request ${handle} ended, but it is not pending`);
      return;
    }
    this.#pending[host.index]?.delete(handle);
    this.#waiting -= 1;
    const { running, role } = pending;
    if (error !== undefined) {
      this.#checkError(running, role, error);
      // Nothing may come for it any more.
      if (role === 'receive' || role === 'read') this.#buffers[host.index]?.poison(running.target as BufferRange);
      return;
    }
    if (mustFail(running.operation)) {
      this.#problems.push(`${nameOf(running)}: ${role} should have failed`);
      return;
    }
    if (role === 'receive') this.#checkSize(running, bytes);
    this.#checkDone(running, role);
  }

  #checkSize(running: RunningOperation, bytes: number): void {
    const { operation } = running;
    if (operation.kind !== 'message' || bytes === operation.bytes) return;
    this.#problems.push(`${nameOf(running)}: receive says ${bytes} bytes`);
  }

  #checkDone(running: RunningOperation, role: Role): void {
    const { near, far, source } = running;
    switch (role) {
      case 'receive':
        this.#arrived(running);
        return;
      case 'send':
        this.#buffers[near]?.poison(source as BufferRange);
        return;
      case 'write':
        this.#arrived(running);
        this.#buffers[near]?.poison(source as BufferRange);
        return;
      case 'read':
        this.#arrived(running);
        this.#buffers[far]?.poison(source as BufferRange);
        return;
      case 'signal':
        this.#counters.look(far, this.#operations);
        if (!running.arrived) this.#problems.push(`${nameOf(running)}: done before it was added`);
        return;
      case 'flush':
        this.#checkFlush(running);
    }
  }

  /** All bytes must be in their place now; afterwards nobody may touch them. */
  #arrived(running: RunningOperation): void {
    if (running.arrived) return;
    running.arrived = true;
    const { index, operation, near, far } = running;
    const target = running.target as BufferRange;
    const wrong = firstWrongByte({ ...target, bytes: (running.source as BufferRange).bytes }, index);
    const now = this.#simulation.now.toFixed(1);
    if (wrong !== -1) this.#problems.push(`${nameOf(running)}: byte ${wrong} is wrong at ${now} µs`);
    this.#buffers[operation.kind === 'read' ? near : far]?.poison(target);
  }

  /** A flush is done: so are the writes and signals that were posted on its flow before. */
  #checkFlush(flush: RunningOperation): void {
    for (const { running } of this.#pending[flush.near]?.values() ?? []) {
      const { operation, index } = running;
      if (index > flush.index || keyOf(operation) !== keyOf(flush.operation)) continue;
      if (operation.kind !== 'write' && operation.kind !== 'signal') continue;
      this.#problems.push(`${nameOf(flush)}: done before ${nameOf(running)}`);
    }
  }

  #checkError(running: RunningOperation, what: string, error: WeftlineError | undefined): void {
    if (error !== undefined && this.#allowedErrors(running).includes(error.code)) return;
    this.#problems.push(`${nameOf(running)}: ${what} failed with ${error?.code}: ${error?.message}`);
  }

  #allowedErrors({ operation, near, far, cancelled }: RunningOperation): readonly ErrorCode[] {
    const dead = [near, far].some((host) => !(this.#simulation.hosts[host] as SimulatedHost).alive);
    const lost: readonly ErrorCode[] = dead ? ['WL_PEER_LOST', 'WL_TIMEOUT'] : [];
    const closed: readonly ErrorCode[] = this.#closed.has(operation.connection) ? ['WL_CLOSED', 'WL_PEER_LOST'] : [];
    const withdrawn: readonly ErrorCode[] = cancelled ? ['WL_CLOSED', 'WL_PEER_FAILED'] : [];
    const refused: readonly ErrorCode[] = mustFail(operation) ? ['WL_CAPACITY', 'WL_UNAUTHORIZED'] : [];
    return [...lost, ...closed, ...withdrawn, ...refused];
  }

  #cancel({ operation, by }: Cancellation): void {
    const running = this.#operations[operation] as RunningOperation;
    const [host, end] = by === 'near' ? [running.near, running.nearEnd] : [running.far, running.farEnd];
    const found = [...(this.#pending[host] ?? [])].find(([, pending]) => pending.running === running);
    if (found === undefined) return;
    running.cancelled = true;
    if (!end.cancel(found[0])) this.#problems.push(`${nameOf(running)}: is pending, but cannot be cancelled`);
    this.#simulation.wake(host);
  }

  #close({ connection, end }: Closing): void {
    const host = this.#scenario.connections[connection]?.[end] as number;
    if (!(this.#simulation.hosts[host] as SimulatedHost).alive) return;
    this.#closed.add(connection);
    this.#ends[connection]?.[end].close();
    this.#simulation.wake(host);
  }

  #kill(host: number): void {
    this.#simulation.kill(host);
    const pending = this.#pending[host] as Map<number, Pending>;
    this.#waiting -= pending.size;
    pending.clear();
  }

  /** Who waits for what, and how the connections stand. */
  #dump(): string[] {
    const { hosts, network } = this.#simulation;
    const waits = this.#pending.flatMap((requests, host) =>
      [...requests.values()].map(
        ({ running, role, postedAt }) =>
          `  host ${host} waits for its ${role} since ${postedAt.toFixed(0)} µs: ${nameOf(running)}`,
      ),
    );
    const connections = this.#ends.flatMap((ends, index) =>
      ends.map((end) => `  connection ${index} ${describe(end)}`),
    );
    const engines = hosts.flatMap((host) =>
      host.engines.map(
        ({ node, engine }) =>
          `  engine ${node} of host ${host.index}, ${host.alive ? 'alive' : 'dead'}: due ${engine.nextDeadline().toFixed(1)} µs, drops ${JSON.stringify(engine.drops)}`,
      ),
    );
    return [...waits, ...connections, ...engines, `  network: ${JSON.stringify(network.counts)}`];
  }
}

function describe({ peerName, error, statistics }: LaneConnection): string {
  const { paths, ...counts } = statistics;
  const inFlight = paths.reduce((sum, path) => sum + path.inFlightBytes, 0);
  const alive = paths.filter((path) => path.alive).length;
  return `to ${peerName}: ${error?.message ?? 'open'}; ${alive} paths alive, ${inFlight} bytes in flight, ${JSON.stringify(counts)}`;
}
