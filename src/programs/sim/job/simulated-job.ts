// Ranks on simulated hosts, one each, that run the library's code as processes would: agents, transports and engines that
// ship over a simulated network, groups whose store is this process, and time that goes on when nobody has anything to do.
import { WeftlineError } from '../../../core/errors.ts';
import { Agent } from '../../../agent/agent.ts';
import type { BackendPeer } from '../../../agent/backend.ts';
import type { NamedBackend } from '../../../agent/backends/backend-table.ts';
import { MultipathLink, MultipathRegion, OutMessages } from '../../../agent/backends/multipath/multipath-link.ts';
import type { CpuDevice } from '../../../device/cpu/cpu-device.ts';
import { SharedAgent } from '../../../group/network/shared-agent.ts';
import { readSettings, type Settings } from '../../../settings/settings.ts';
import { WakeWord } from '../../../threads/wake-word.ts';
import { transportSettings } from '../../../transport/engine/transport-settings.ts';
import type { WatchedChannel } from '../../../transport/host/connection.ts';
import type { Meeting } from '../../../transport/host/greeting.ts';
import type { Reserved } from '../../../transport/host/engine-group.ts';
import { Transport } from '../../../transport/host/transport.ts';
import type { PeerPaths } from '../../../transport/io/packet-io-kind.ts';
import { type FirstCauseOptions, type RankGroup, Topology } from '../../../world/rank-group.ts';
import { filePrefixOf } from '../../../world/shared-memory-files.ts';
import type { Store } from '../../../world/store.ts';
import { type RunEnd, Simulation, type SimulationOptions } from '../simulation.ts';
import type { PeerEnd } from '../simulated-host.ts';
import { HostedEngines } from './hosted-engines.ts';
import { VirtualClock } from './virtual-clock.ts';

export interface JobOptions extends Omit<SimulationOptions, 'openEngine'> {
  /** Ranks, on the first hosts of the network. */
  readonly ranks: number;
  /** Microseconds from a ring of an engine until the rank looks, and until the end of a process shows at its peers. */
  readonly wakeDelay: number;
  readonly hangUpDelay: number;
}

export class SimulatedJob implements AsyncDisposable {
  readonly simulation: Simulation;
  readonly clock: VirtualClock;
  readonly ranks: readonly SimulatedRank[];
  readonly options: JobOptions;
  /** Changes whenever code of a rank has done something, or may have to. */
  activity = 0;
  /** Code of a rank may have to run before time goes on. */
  isDue = false;
  readonly #gatherings = new Map<string, Gathering>();
  readonly #ports: (readonly [number, number])[] = [];

  /** `devices`: by rank. The job's clock is that of this process until the job is disposed. */
  constructor(options: JobOptions, devices: readonly CpuDevice[]) {
    this.options = options;
    const engines = options.engines ?? 1;
    const seats = Array.from({ length: options.ranks }, (_, rank) => {
      const settings = readSettings({ ...options.settings, transportEngines: engines, transportThread: true }, {});
      const wake = new SimulatedWake(this, rank);
      const around = {
        simulation: () => this.simulation,
        otherEnd: (port: number, host: number): PeerEnd => this.#otherEnd(port, host),
        noteActivity: () => this.noteActivity(),
      };
      return { settings, wake, engines: new HostedEngines(settings, wake, around) };
    });
    this.simulation = new Simulation({ ...options, openEngine: (place) => seats[place.host]?.engines.open(place) });
    for (const [rank, { engines: hosted }] of seats.entries()) {
      const host = this.simulation.hosts[rank]!;
      host.beforeRound = (lane) => hosted.takeCommands(lane);
      host.afterRound = (lane) => hosted.endRound(lane);
    }
    this.clock = new VirtualClock(
      () => this.simulation.now,
      (time, action) =>
        this.simulation.at(time, () => {
          this.noteActivity();
          action();
        }),
    );
    this.ranks = seats.map((seat, rank) => new SimulatedRank(this, { ...seat, rank, device: devices[rank]! }));
  }

  noteActivity(): void {
    this.activity++;
    this.isDue = true;
  }

  /** Resolves after so many microseconds. */
  sleep(microseconds: number): Promise<void> {
    return new Promise((resolve) => void this.clock.after(microseconds, resolve));
  }

  /** Lets time go on until `done`. */
  async run(until: number, events: number, done: () => boolean): Promise<RunEnd> {
    const { simulation } = this;
    const last = simulation.events + events;
    for (;;) {
      await this.#settle();
      if (done()) return 'done';
      const limits = { until, events: last - simulation.events, done: () => this.isDue };
      const end = simulation.run(limits);
      if (end !== 'done') return end;
    }
  }

  /** Returns what `work` comes to, during which no time passes: it waits for nothing of the network. */
  async atOnce<T>(work: () => Promise<T>): Promise<T> {
    const state = { isOver: false };
    const result = work().finally(() => {
      state.isOver = true;
    });
    // It may fail while others are still at work.
    result.catch(() => {});
    for (let turn = 0; !state.isOver && turn < MOST_TURNS; turn++) await nextTurn();
    if (state.isOver) return result;
    throw new WeftlineError('WL_INTERNAL', 'What should need no time did not end');
  }

  /** A rank's process ends. If its host does as well, nobody tells the peers. */
  kill(rank: number, withHost: boolean): void {
    const victim = this.ranks[rank]!;
    victim.isAlive = false;
    this.simulation.kill(rank);
    if (!withHost) for (const channel of victim.channels) channel.hangUp();
  }

  /** All ranks together: result[r] is the value of rank r. */
  gather<T>(name: string, rank: number, value: T): Promise<T[]> {
    this.noteActivity();
    const gathering = this.#gatherings.get(name) ?? { values: [], missing: this.ranks.length, resolve: [] };
    this.#gatherings.set(name, gathering);
    gathering.values[rank] = JSON.stringify(value) ?? 'null';
    gathering.missing--;
    const all = new Promise<readonly string[]>((resolve) => gathering.resolve.push(resolve));
    if (gathering.missing === 0) {
      this.#gatherings.delete(name);
      for (const resolve of gathering.resolve) resolve(gathering.values);
    }
    return all.then((texts) => texts.map((text) => JSON.parse(text) as T));
  }

  /** Connects two ranks, whose control channel would be a TCP connection; returns the link of the first. */
  async link(from: number, to: number): Promise<MultipathLink> {
    const [near, far] = [this.ranks[from]!, this.ranks[to]!];
    const port = this.#ports.push([from, to]) - 1;
    const { simulation, options } = this;
    const lanes = Array.from({ length: options.engines ?? 1 }, () => ({
      secret: simulation.newSecret(),
      keys: simulation.newKeys(),
    }));
    const names = [new Told<readonly Reserved[]>(), new Told<readonly Reserved[]>()] as const;
    const { receiverCredits } = transportSettings(near.settings);
    const { transportEagerBytes: eagerBytes, transportSpread: spread } = near.settings;
    const meet =
      (side: 0 | 1) =>
      async (own: readonly Reserved[]): Promise<Meeting> => {
        names[side].tell(own);
        const theirs = await names[1 - side]!.heard;
        return {
          paths: this.#paths(port, lanes.length),
          peerName: `rank ${side === 0 ? to : from}`,
          lanes: lanes.map(({ secret, keys }, lane) => ({
            localId: own[lane]!.id,
            remoteId: theirs[lane]!.id,
            secret,
            packetKeys: keys?.[side === 0 ? 'caller' : 'listener'],
            receiverCredits,
            eagerBytes,
          })),
          spread,
          hello: undefined,
          segmentBytes: options.segmentBytes,
        };
      };
    const [here, there] = channelPair(this, near, far);
    const [connection] = await Promise.all([near.transport.join(here, meet(0)), far.transport.join(there, meet(1))]);
    const { transport } = near;
    const messages = new OutMessages(`rank ${to}`);
    const messageRegion = await transport.register(messages.bytes, { write: true });
    // No notifications are sent.
    const inbox = { region: 0, key: 0 };
    return MultipathLink.open({ transport, connection, messages, messageRegion, inbox, onClose: () => {} });
  }

  /** Whatever these ranks wait for fails, and time goes on until they are over, or for so long. */
  release(ranks: readonly SimulatedRank[], time: number, events: number, areOver: () => boolean): Promise<RunEnd> {
    for (const rank of ranks) rank.revive();
    return this.run(this.simulation.now + time, events, areOver);
  }

  /** The ranks' processes end in good order. */
  async close(): Promise<void> {
    await this.atOnce(() => Promise.all(this.ranks.map((rank) => rank.close())));
  }

  /** The process has its own clock again. */
  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
    this.clock[Symbol.dispose]();
  }

  #otherEnd(port: number, host: number): PeerEnd {
    const [a, b] = this.#ports[port]!;
    return { host: host === a ? b : a, port };
  }

  /** What two sides would have found out of the paths between them. */
  #paths(port: number, lanes: number): PeerPaths {
    const { topology, paths, segmentBytes } = this.options;
    const rails = Math.min(topology.rails, paths);
    return {
      count: lanes * paths,
      offer: {},
      rails: Array.from({ length: rails }, (_, rail) => ({ local: `here ${rail}`, remote: `there ${rail}` })),
      cutsSends: false,
      connect: () => {},
      agree: () => Promise.resolve(segmentBytes),
      endpoint: () => ({ ends: Array.from({ length: paths }, () => port), rails, segments: 1 }),
      [Symbol.dispose]: () => {},
    };
  }

  /** Returns when no code of a rank has anything to do before time goes on. */
  async #settle(): Promise<void> {
    this.isDue = false;
    // A wait that has news looks again after a turn of the event loop, which may come behind this one's.
    for (let turn = 0, quiet = 0; quiet < QUIET_TURNS; turn++) {
      const before = this.activity;
      await nextTurn();
      quiet = this.activity === before ? quiet + 1 : 0;
      if (turn < POLLING_TURNS) continue;
      // A wait polls on, as it does right before its deadline: that takes time.
      this.simulation.at(this.simulation.now + POLLING_MICROSECONDS, () => this.noteActivity());
      break;
    }
    this.isDue = false;
  }
}

const QUIET_TURNS = 2;
const POLLING_TURNS = 32;
const POLLING_MICROSECONDS = 50;
const MOST_TURNS = 100_000;

function nextTurn(): Promise<void> {
  return new Promise((resolve) => void setImmediate(resolve));
}

interface Gathering {
  readonly values: string[];
  missing: number;
  readonly resolve: ((values: readonly string[]) => void)[];
}

/** What one side tells and the other waits for. */
class Told<T> {
  tell: (value: T) => void = () => {};
  readonly heard: Promise<T> = new Promise((resolve) => {
    this.tell = resolve;
  });
}

// One rank: what it is to the library.

interface Seat {
  readonly rank: number;
  readonly device: CpuDevice;
  readonly settings: Settings;
  readonly wake: SimulatedWake;
  readonly engines: HostedEngines;
}

export class SimulatedRank {
  readonly rank: number;
  readonly device: CpuDevice;
  readonly settings: Settings;
  readonly transport: Transport;
  readonly group: SimulatedGroup;
  /** Control channels of its connections. */
  readonly channels: SimulatedChannel[] = [];
  isAlive = true;
  readonly #wake: SimulatedWake;
  readonly #agent: Agent;
  #giveBack: (() => void) | undefined;
  readonly #job: SimulatedJob;
  readonly #revival = new Told<void>();

  constructor(job: SimulatedJob, { rank, device, settings, wake, engines }: Seat) {
    this.#job = job;
    this.rank = rank;
    this.device = device;
    this.settings = settings;
    this.#wake = wake;
    this.transport = Transport.over(engines.group(), settings, `rank ${rank}`);
    this.#agent = Agent.simulated(`rank-${rank}`, { settings, wake, backend: simulatedBackend(job, this) });
    this.group = new SimulatedGroup(job, rank, settings);
    this.#giveBack = SharedAgent.lend(settings, this.#agent);
  }

  /** Objects that use the agent close it with the last of them. */
  leaveAgent(): void {
    this.#giveBack?.();
    this.#giveBack = undefined;
  }

  /** Resolves after so many microseconds; of a rank that was killed, when it goes on. */
  async pause(microseconds: number): Promise<void> {
    await this.#job.sleep(microseconds);
    if (!this.isAlive) await this.#revival.heard;
  }

  /** A killed one goes on, for its memory to be given back: everything it waits for fails. */
  revive(): void {
    this.isAlive = true;
    this.#revival.tell();
    this.group.lose(new WeftlineError('WL_PEER_LOST', 'This rank was killed'));
    this.#wake.ring();
  }

  close(): Promise<void> {
    this.leaveAgent();
    return this.#agent.close();
  }
}

function simulatedBackend(job: SimulatedJob, of: SimulatedRank): NamedBackend {
  const links: MultipathLink[] = [];
  return {
    name: 'multipath',
    connectionInfo: Uint8Array.of(of.rank),
    lanes: job.options.engines ?? 1,
    whyNotMemory: () => undefined,
    whyNotPeer: () => undefined,
    whyNotRemote: () => undefined,
    register: async ({ view }) =>
      new MultipathRegion(await of.transport.register(view as Uint8Array, { read: true, write: true })),
    connect: async ({ connectionInfo }: BackendPeer) => {
      const link = await job.link(of.rank, connectionInfo[0]!);
      links.push(link);
      return link;
    },
    poll: () => {
      job.noteActivity();
      let hasNews = false;
      for (const link of links) if (link.poll()) hasNews = true;
      return hasNews;
    },
    prepareSleep: () => Number.POSITIVE_INFINITY,
    close: async () => {
      await Promise.all(links.map((link) => link.close()));
      await of.transport.close();
    },
  };
}

/** A word that the rank sleeps on in simulated time. A rank that was killed sleeps on. */
class SimulatedWake extends WakeWord {
  readonly #job: SimulatedJob;
  readonly #rank: number;
  #sleepers: (() => void)[] = [];
  #isRung = false;

  constructor(job: SimulatedJob, rank: number) {
    super();
    this.#job = job;
    this.#rank = rank;
  }

  override ring(): void {
    super.ring();
    if (this.#isRung || this.#sleepers.length === 0) return;
    this.#isRung = true;
    const { clock, options } = this.#job;
    clock.after(options.wakeDelay, () => {
      this.#isRung = false;
      if (!this.#job.ranks[this.#rank]!.isAlive) return;
      for (const wake of this.#sleepers.splice(0)) wake();
    });
  }

  override sleep(seen: number, milliseconds: number): Promise<void> {
    const job = this.#job;
    job.noteActivity();
    if (this.seen !== seen) return Promise.resolve();
    return new Promise((resolve) => {
      const timer = job.clock.after(milliseconds * 1000, () => {
        if (job.ranks[this.#rank]!.isAlive) wake();
      });
      const wake = (): void => {
        timer.isOver = true;
        this.#sleepers = this.#sleepers.filter((sleeper) => sleeper !== wake);
        resolve();
      };
      this.#sleepers.push(wake);
    });
  }
}

/** All ranks of the job, which have met: their store is the job itself. */
class SimulatedGroup implements RankGroup {
  readonly rank: number;
  readonly worldRank: number;
  readonly machineRank: number;
  readonly size: number;
  readonly ranks: readonly number[];
  readonly topology: Topology;
  readonly settings: Settings;
  readonly filePrefix: string = filePrefixOf(`simulation ${process.pid}`);
  readonly #job: SimulatedJob;
  readonly #lost = new AbortController();

  constructor(job: SimulatedJob, rank: number, settings: Settings) {
    this.rank = rank;
    this.worldRank = rank;
    this.machineRank = rank;
    this.#job = job;
    this.ranks = Array.from({ length: job.options.ranks }, (_, other) => other);
    this.size = this.ranks.length;
    const hosts = this.ranks.map((other) => `host ${other}`);
    this.topology = new Topology(rank, hosts);
    this.settings = settings;
  }

  get store(): Store {
    throw new WeftlineError('WL_UNSUPPORTED', 'A simulated job has no store');
  }

  get peerLost(): AbortSignal {
    return this.#lost.signal;
  }

  /** The world says that a rank is gone. */
  lose(reason: WeftlineError): void {
    this.#lost.abort(reason);
  }

  firstCause(error: unknown, { told }: FirstCauseOptions = {}): Promise<unknown> {
    return Promise.resolve(told?.() ?? error);
  }

  async barrier(name: string): Promise<void> {
    await this.allGather(name, 0);
  }

  allGather<T>(name: string, value: T): Promise<T[]> {
    return this.#job.gather(name, this.rank, value);
  }

  split(): Promise<RankGroup> {
    throw new WeftlineError('WL_UNSUPPORTED', 'Groups of simulated ranks are not split');
  }

  group(): Promise<RankGroup> {
    return this.split();
  }

  shrink(): Promise<RankGroup> {
    return this.split();
  }
}

/** One end of what would be a TCP connection, which says how the other end went. */
class SimulatedChannel implements WatchedChannel {
  readonly localAddress: string;
  readonly remoteAddress: string;
  other: SimulatedChannel | undefined;
  readonly #job: SimulatedJob;
  readonly #rank: SimulatedRank;
  #onEnd: (farewell: boolean) => void = () => {};
  #isOver = false;

  constructor(job: SimulatedJob, rank: SimulatedRank, remote: SimulatedRank) {
    this.#job = job;
    this.#rank = rank;
    this.localAddress = `host ${rank.rank}`;
    this.remoteAddress = `host ${remote.rank}`;
    rank.channels.push(this);
  }

  watch(onEnd: (farewell: boolean) => void): void {
    this.#onEnd = onEnd;
  }

  unref(): void {}

  close(): void {
    this.#tell(true);
  }

  hangUp(): void {
    this.#tell(false);
  }

  #tell(farewell: boolean): void {
    if (this.#isOver) return;
    this.#isOver = true;
    const { other } = this;
    this.#job.clock.after(this.#job.options.hangUpDelay, () => {
      if (other === undefined || other.#isOver || !other.#rank.isAlive) return;
      other.#isOver = true;
      other.#onEnd(farewell);
    });
  }
}

function channelPair(job: SimulatedJob, near: SimulatedRank, far: SimulatedRank): [SimulatedChannel, SimulatedChannel] {
  const pair: [SimulatedChannel, SimulatedChannel] = [
    new SimulatedChannel(job, near, far),
    new SimulatedChannel(job, far, near),
  ];
  [pair[0].other, pair[1].other] = [pair[1], pair[0]];
  return pair;
}
