// Runs a scenario and finds out whether the transport kept its promises.
import { type ErrorCode, WeftlineError } from '../../core/errors.ts';
import { seededRandom } from '../../core/seeded-random.ts';
import { settingsTable } from '../../settings/settings.ts';
import { MAX_RANGE_BYTES, RangeList } from '../../transport/send/range-list.ts';
import type { Region } from '../../transport/engine/region.ts';
import type { RemoteRange, ScatterOptions } from '../../transport/engine/transport-engine.ts';
import type { LaneConnection, RequestEnd, SimulatedHost } from './simulated-host.ts';
import type { Cancellation, Closing, Scenario, ScenarioOperation } from './scenario.ts';
import { type RunEnd, Simulation } from './simulation.ts';

// Memory of a scenario's hosts in which every wrong byte shows: known content, guards between ranges, poison after use.

const GUARD = 0x5a;
const POISON = 0xa5;
/** Bytes before and behind each range. */
const GUARD_BYTES = 16;

/** Random bytes that all contents are cut from; a prime, so that a shift by a round number shows. */
const SAMPLE_BYTES = 1_048_573;
let sample: Uint8Array | undefined;

function sampleBytes(): Uint8Array {
  if (sample !== undefined) return sample;
  const random = seededRandom(0x5a3b1e);
  sample = new Uint8Array(SAMPLE_BYTES);
  for (let at = 0; at < SAMPLE_BYTES; at += 1) sample[at] = random() * 256;
  return sample;
}

interface BufferRange {
  readonly region: Region;
  readonly offset: number;
  readonly bytes: number;
}

/** One region of a host, cut into ranges. */
class ScenarioBuffers {
  readonly #region: Region;
  readonly #poisoned: BufferRange[] = [];
  readonly #ranges: BufferRange[] = [];
  #used = GUARD_BYTES;

  /** `bytes` for all ranges together, `ranges` of them at most. */
  constructor(host: SimulatedHost, { bytes, ranges }: { readonly bytes: number; readonly ranges: number }) {
    const memory = new Uint8Array(bytes + (ranges + 1) * (GUARD_BYTES + 8)).fill(GUARD);
    this.#region = host.register({ bytes: memory, remote: { read: true, write: true } });
  }

  /** A range that begins at an odd place, or at a multiple of eight. */
  take(bytes: number, aligned = false): BufferRange {
    const offset = aligned ? Math.ceil(this.#used / 8) * 8 : this.#used;
    this.#used = offset + bytes + GUARD_BYTES;
    const range = { region: this.#region, offset, bytes };
    this.#ranges.push(range);
    return range;
  }

  /** The range's request is over: nobody may touch it any more. */
  poison(range: BufferRange): void {
    bytesOf(range).fill(POISON);
    this.#poisoned.push(range);
  }

  /** What is wrong now: written guards, and ranges that were written after their request was over. */
  problems(): string[] {
    const found: string[] = [];
    let at = 0;
    for (const { region, offset, bytes } of this.#ranges) {
      if (!isFilled(region.bytes.subarray(at, offset), GUARD)) found.push(`bytes before ${offset} written`);
      at = offset + bytes;
    }
    if (!isFilled(this.#region.bytes.subarray(at), GUARD)) found.push(`bytes from ${at} on written`);
    for (const range of this.#poisoned) {
      if (!isFilled(bytesOf(range), POISON)) {
        found.push(`${range.bytes} bytes at ${range.offset} written after their request was over`);
      }
    }
    return found;
  }
}

function bytesOf({ region, offset, bytes }: BufferRange): Uint8Array {
  return region.bytes.subarray(offset, offset + bytes);
}

const filled = { [GUARD]: new Uint8Array(65_536).fill(GUARD), [POISON]: new Uint8Array(65_536).fill(POISON) };

function isFilled(bytes: Uint8Array, value: keyof typeof filled): boolean {
  for (let at = 0; at < bytes.length; at += 65_536) {
    const part = bytes.subarray(at, at + 65_536);
    if (Buffer.compare(part, filled[value].subarray(0, part.length)) !== 0) return false;
  }
  return true;
}

/** Writes the content that `number` stands for. */
function fillContent(range: BufferRange, number: number): void {
  const target = bytesOf(range);
  let from = startOf(number);
  for (let at = 0; at < target.length;) {
    const part = Math.min(target.length - at, SAMPLE_BYTES - from);
    target.set(sampleBytes().subarray(from, from + part), at);
    at += part;
    from = 0;
  }
}

/** Position of the first byte of the range that is not the content of `number`; -1 if all are. */
function firstWrongByte(range: BufferRange, number: number): number {
  const got = bytesOf(range);
  let from = startOf(number);
  for (let at = 0; at < got.length;) {
    const part = Math.min(got.length - at, SAMPLE_BYTES - from);
    const expected = sampleBytes().subarray(from, from + part);
    if (Buffer.compare(got.subarray(at, at + part), expected) !== 0) {
      return at + expected.findIndex((byte, index) => byte !== got[at + index]);
    }
    at += part;
    from = 0;
  }
  return -1;
}

function startOf(number: number): number {
  return (Math.imul(number + 1, 0x9e37_79b1) >>> 0) % SAMPLE_BYTES;
}

// The counters of a scenario's signals: what they must show, and which writes must lie in their places by then.

interface Counter {
  readonly range: BufferRange;
  /** The counter's signals in order, and what it shows when each has been added. */
  readonly signals: RunningOperation[];
  readonly sums: number[];
  /** How many of them have been seen. */
  seen: number;
}

/** One counter for all signals of a connection's end and flow. */
class SignalCounters {
  readonly #counters = new Map<string, Counter>();
  readonly #problems: string[];

  constructor(problems: string[]) {
    this.#problems = problems;
  }

  take(operation: ScenarioOperation, buffers: ScenarioBuffers): BufferRange {
    const key = keyOf(operation);
    const known = this.#counters.get(key);
    if (known !== undefined) return known.range;
    const range = buffers.take(8, true);
    bytesOf(range).fill(0);
    this.#counters.set(key, { range, signals: [], sums: [], seen: 0 });
    return range;
  }

  /** Signals must be given in the order of posting. */
  expect(signal: RunningOperation): void {
    const counter = this.#counters.get(keyOf(signal.operation)) as Counter;
    const add = signal.operation.kind === 'signal' ? signal.operation.add : 0;
    counter.sums.push((counter.sums.at(-1) ?? 0) + add);
    counter.signals.push(signal);
  }

  /** A host's counters may have grown: all writes before the signals that they show must be there. */
  look(host: number, operations: readonly RunningOperation[]): void {
    for (const counter of this.#counters.values()) {
      if (counter.signals[0]?.far !== host) continue;
      const value = counterValue(counter.range);
      if (value === (counter.sums[counter.seen - 1] ?? 0)) continue;
      while (counter.seen < counter.signals.length && counter.sums[counter.seen]! <= value) {
        const signal = counter.signals[counter.seen] as RunningOperation;
        counter.seen += 1;
        signal.arrived = true;
        this.#checkWrites(signal, operations);
      }
      const sum = counter.sums[counter.seen - 1] ?? 0;
      if (sum === value) continue;
      this.#problems.push(`host ${host}: a counter shows ${value}, its first ${counter.seen} signals add up to ${sum}`);
    }
  }

  #checkWrites(signal: RunningOperation, operations: readonly RunningOperation[]): void {
    for (const earlier of operations.slice(0, signal.index)) {
      const { operation } = earlier;
      if (operation.kind !== 'write' || operation.badKey || earlier.arrived || earlier.cancelled) continue;
      if (keyOf(operation) !== keyOf(signal.operation)) continue;
      const wrong = firstWrongByte(earlier.target as BufferRange, earlier.index);
      if (wrong === -1) continue;
      this.#problems.push(`${nameOf(signal)}: visible before byte ${wrong} of ${nameOf(earlier)}`);
    }
  }
}

/** Names the end and the flow of an operation. */
function keyOf({ connection, from, flow }: ScenarioOperation): string {
  return `${connection} ${from} ${flow}`;
}

/** Simulated time within which everything must have ended, in microseconds. */
const LONGEST = 600_000_000;
const MAX_EVENTS = 20_000_000;

export function runScenario(scenario: Scenario) {
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
  /** The pending requests of each host. */
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

  run() {
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
    // These come after what they undo, if both are at the same time.
    for (const cancellation of cancellations) simulation.at(cancellation.at, () => this.#cancel(cancellation));
    for (const closing of closings) simulation.at(closing.at, () => this.#close(closing));
    const done = (): boolean => this.#unposted === 0 && this.#waiting === 0;
    let end = simulation.run({ until: LONGEST, events: MAX_EVENTS, done });
    if (end === 'done') end = this.#windDown();
    else this.#problems.push(`requests pending, "${end}" at ${simulation.now.toFixed(0)} µs:`, ...this.#dump());
    return {
      /** Promises that were broken, in words; empty if all were kept. */
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

  /** An engine that authenticates packets takes none in that was changed on the way, and recognises each that was not. */
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

  /** Tells who waits for what, and how the connections stand. */
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

// One operation of a scenario while it runs: its ends, its memory, and the requests that carry it out.

interface RunningOperation {
  /** The number in the scenario, which also determines the content. */
  readonly index: number;
  readonly operation: ScenarioOperation;
  /** The hosts that begin it and answer it, and their ends of the connection. */
  readonly near: number;
  readonly far: number;
  readonly nearEnd: LaneConnection;
  readonly farEnd: LaneConnection;
  /** Places from which the bytes come and to which they go; a signal has the counter, a flush none. */
  readonly source: BufferRange | undefined;
  readonly target: BufferRange | undefined;
  /** The bytes lie in the target, and the target has been checked. */
  arrived: boolean;
  /** One of its ends was withdrawn. */
  cancelled: boolean;
}

/** What a request is to its operation. */
type Role = 'send' | 'receive' | 'write' | 'read' | 'signal' | 'flush';

/** Bytes that operation and answer need on a host, all together. */
function memoryOf(operation: ScenarioOperation): number {
  if (operation.kind === 'message') return operation.bytes + operation.room;
  return 'bytes' in operation ? 2 * operation.bytes : 8;
}

/** The operation asks for what may not be done. */
function mustFail(operation: ScenarioOperation): boolean {
  if (operation.kind === 'message') return operation.room < operation.bytes;
  return 'badKey' in operation && operation.badKey;
}

interface OperationPlan {
  readonly scenario: Scenario;
  readonly ends: readonly (readonly [LaneConnection, LaneConnection])[];
  /** The buffers of each host. */
  readonly buffers: readonly ScenarioBuffers[];
  /** Takes the counter of a flow. */
  readonly counter: (operation: ScenarioOperation, buffers: ScenarioBuffers) => BufferRange;
}

function prepareOperation({ scenario, ends, buffers, counter }: OperationPlan, index: number): RunningOperation {
  const operation = scenario.operations[index] as ScenarioOperation;
  const [a, b] = scenario.connections[operation.connection] as readonly [number, number];
  const pair = ends[operation.connection] as readonly [LaneConnection, LaneConnection];
  const [near, far] = operation.from === 0 ? [a, b] : [b, a];
  const [nearEnd, farEnd] = operation.from === 0 ? pair : [pair[1], pair[0]];
  const [here, there] = [buffers[near] as ScenarioBuffers, buffers[far] as ScenarioBuffers];
  const base = { index, operation, near, far, nearEnd, farEnd, arrived: false, cancelled: false };
  switch (operation.kind) {
    case 'message':
      return { ...base, source: here.take(operation.bytes), target: there.take(operation.room) };
    case 'write':
      return { ...base, source: here.take(operation.bytes), target: there.take(operation.bytes) };
    case 'read':
      return { ...base, source: there.take(operation.bytes), target: here.take(operation.bytes) };
    case 'signal':
      return { ...base, source: undefined, target: counter(operation, there) };
    case 'flush':
    default:
      return { ...base, source: undefined, target: undefined };
  }
}

/** Fills the source and posts the request of the near end. */
function beginOperation(running: RunningOperation): { readonly role: Role; readonly handle: number } {
  const { index, operation, nearEnd } = running;
  const { flow } = operation;
  const source = running.source as BufferRange;
  const target = running.target as BufferRange;
  if (source !== undefined) fillContent(source, index);
  switch (operation.kind) {
    case 'message':
      return { role: 'send', handle: nearEnd.postSend({ ...source, flow }) };
    case 'write':
      return { role: 'write', handle: write(running, source, target) };
    case 'read':
      return { role: 'read', handle: read(running, source, target) };
    case 'signal':
      return { role: 'signal', handle: nearEnd.signal({ ...remote(target, false), add: operation.add, flow }) };
    case 'flush':
    default:
      return { role: 'flush', handle: nearEnd.flush(flow) };
  }
}

/** Writes one range, or, every other time, many small ones, the last one first. */
function write(running: RunningOperation, source: BufferRange, target: BufferRange): number {
  const { operation, nearEnd } = running;
  const place = remote(target, 'badKey' in operation && operation.badKey);
  if (!goesInChunks(running, source)) return nearEnd.write({ ...source, ...place, flow: operation.flow });
  return nearEnd.scatter(smallRanges(running, source, place));
}

/** The same for reads. */
function read(running: RunningOperation, source: BufferRange, target: BufferRange): number {
  const { operation, nearEnd } = running;
  const place = remote(source, 'badKey' in operation && operation.badKey);
  if (!goesInChunks(running, target)) return nearEnd.read({ ...target, ...place, flow: operation.flow });
  return nearEnd.gather(smallRanges(running, target, place));
}

function goesInChunks({ index }: RunningOperation, { bytes }: BufferRange): boolean {
  return index % 2 === 1 && bytes > 0;
}

/** Ranges of one length between a range here and one at the peer. */
function smallRanges(
  { index, operation: { flow } }: RunningOperation,
  { region, offset, bytes }: BufferRange,
  { remoteRegion, remoteKey, remoteOffset }: RemoteRange,
): ScatterOptions {
  const length = 1 + ((index * 37) % Math.min(MAX_RANGE_BYTES, bytes));
  const count = Math.ceil(bytes / length);
  // As rows of one range each, or all whole ones as one row of as many.
  const isRun = index % 4 === 3 && count > 1;
  const starts = Float64Array.from({ length: isRun ? 2 : count }, (_, at) =>
    isRun && at === 1 ? 0 : (count - 1 - at) * length,
  );
  const columns = {
    sources: starts.map((start) => offset + start),
    targets: starts.map((start) => remoteOffset + start),
    lengths: starts.map((start) => Math.min(length, bytes - start)),
  };
  const strides = new Float64Array(starts.length).fill(length);
  const repeats = { ranges: Uint32Array.of(1, count - 1), sourceStrides: strides, targetStrides: strides };
  const ranges = new RangeList(columns, 0, starts.length, isRun ? repeats : undefined);
  return { region, ranges, remoteRegion, remoteKey, flow };
}

/** Posts the request of the far end of a message. */
function postReceive({ operation, farEnd, target }: RunningOperation): number {
  return farEnd.postReceive({ ...(target as BufferRange), flow: operation.flow });
}

/** What a counter holds. */
function counterValue(cell: BufferRange): number {
  const { buffer, byteOffset } = bytesOf(cell);
  return Number(new DataView(buffer, byteOffset, 8).getBigUint64(0, true));
}

/** The operation as error messages name it. */
function nameOf({ index, operation, near, far }: RunningOperation): string {
  const bytes = 'bytes' in operation ? ` of ${operation.bytes} bytes` : '';
  return `operation ${index} (${operation.kind}${bytes}, host ${near} to ${far}, flow ${operation.flow})`;
}

function remote({ region, offset }: BufferRange, badKey: boolean): RemoteRange {
  return { remoteRegion: region.id, remoteKey: badKey ? (region.key ^ 1) >>> 0 : region.key, remoteOffset: offset };
}
