// The world of ranks: join() finds the others through the job's store and agrees with them on who shares a host.
import { checkOptions, type OptionNames } from '../core/check-options.ts';
import { type CallWait, remaining, startCall, waitOptionNames } from '../core/deadline.ts';
import { WeftlineError } from '../core/errors.ts';
import { quote } from '../core/quote.ts';
import { signalOnParentDeath } from '../native/libc.ts';
import { noteReachedAddress } from '../meeting/route.ts';
import { hostInterfaces, listRails } from '../rails/rail-list.ts';
import { readSettings, type Settings, settingsTable } from '../settings/settings.ts';
import { startMetrics } from '../metrics/start-metrics.ts';
import { addSamples } from '../core/metric-table.ts';
import { startTracing } from '../tracing/start-tracing.ts';
import { type Environment, type RankEnvironment, readEnvironment, uniqueJobId } from './environment.ts';
import { hostIdentity, machineIdentity, ranksOfHosts } from './host-identity.ts';
import { type GroupContext, JobGroup } from './job-group.ts';
import type { MembershipView } from './membership.ts';
import type { RankGroup } from './rank-group.ts';
import { filePrefixOf, removeStaleFiles } from './shared-memory-files.ts';
import { decodeJson, encodeJson, LinkedStore } from './store.ts';
import { meet, type Rendezvous } from './rendezvous.ts';
import { explainRankOnSignal } from './watching/job-text.ts';

/** All ranks of one job. Obtained with `join()`; the caller owns it and closes it. */
export interface World extends RankGroup, AsyncDisposable {
  /** topology.scaleUpIndex. */
  readonly localRank: number;
  readonly localSize: number;
  /** topology.hostIndex. */
  readonly nodeRank: number;
  readonly nodeCount: number;
  /** The ranks that share this host's memory, ascending, this rank included. */
  readonly localRanks: readonly number[];
  /** How often this rank was started before, in a job that starts ranks again (`weftline run --elastic`); else 0. */
  readonly life: number;
  /** The ranks that are there, as last heard from the store. In a job that starts no rank again: all ranks, epoch 0. */
  readonly view: MembershipView;
  /** [a-z0-9]{1,32}, the same on all ranks and unique to the job. It is no secret. */
  readonly jobId: string;
  /**
   * 64 hexadecimal digits, the same on all ranks and of this job alone, which no other process can know: the token of
   * whatever the ranks of a job open to each other. It is in no name, argument, log or store.
   */
  readonly secret: string;
  /**
   * Says goodbye; ranks that still wait for this one fail at once. With an error, they fail with WL_PEER_FAILED and its
   * text. Where rank 0 serves the store, it stays until the others are gone, at most `timeoutMs`. Idempotent.
   */
  close(error?: unknown): Promise<void>;
}

/** How join() finds the job, and for how long it tries. */
export interface JoinOptions {
  /** The variables of the launcher; process.env by default. */
  readonly environment?: Environment;
  /** Wins over the environment. */
  readonly settings?: Partial<Settings>;
  /** How long to wait for all ranks, in ms; by default the setting `timeoutMs`. */
  readonly timeoutMs?: number;
  readonly signal?: AbortSignal;
}

const joinOptionNames: OptionNames<JoinOptions> = { ...waitOptionNames, environment: true, settings: true };

/**
 * Joins the job that this process was started for, and waits until all its ranks have. Without a launcher it is a world
 * of one rank, which needs no socket and no thread. Fails with WL_CONFIG (a variable), WL_TIMEOUT (names the ranks that
 * are missing), WL_RANK_TAKEN, WL_CONFIG_MISMATCH (another world size), WL_UNAUTHORIZED, WL_PROTOCOL.
 * @param options Where the variables are, settings, how long to wait.
 */
export async function join(options: JoinOptions = {}): Promise<World> {
  checkOptions(options, joinOptionNames, 'options of join');
  const environment = readEnvironment(options.environment);
  const settings = readSettings(options.settings, options.environment);
  requireHostsOfEnvironment(settings, environment, options.environment);
  startTracing(settings, environment);
  const wait = startCall(options, settings.timeoutMs);
  const rails = listRails(settings.transportRails, hostInterfaces()).map(({ name }) => name);
  if (environment.size > 1) endWithLauncher(environment.launcherPid);
  if (environment.source !== 'single') explainRankOnSignal(environment.rank);
  const rendezvous = await meet(environment, {
    settings,
    jobId: uniqueJobId(environment.jobPrefix),
    deadline: wait.deadline,
    ...(options.signal === undefined ? {} : { signal: options.signal }),
  });
  try {
    const places = await exchangePlaces(environment, rendezvous, { ...options, settings }, wait);
    const job: GroupContext = {
      ...places,
      worldRank: environment.rank,
      filePrefix: filePrefixOf(environment.jobPrefix),
      settings,
      rails,
      link: rendezvous.link,
      peers: rendezvous.peers,
      groupCalls: 0,
    };
    const { rank } = environment;
    await startMetrics(settings, { rank, machineRank: places.machineRank, jobId: rendezvous.jobId });
    const world = new JoinedWorld(job, rendezvous);
    if (environment.size > 1 && world.localRank === 0) removeStaleFiles();
    return world;
  } catch (error) {
    await rendezvous.close(0, error);
    throw error;
  }
}

/** Agents, windows and devices of a rank, in all its threads, must live on the same pretended host. Fails with WL_CONFIG. */
function requireHostsOfEnvironment(settings: Settings, { size }: RankEnvironment, environment?: Environment): void {
  const { hosts } = readSettings({}, environment);
  if (settings.hosts !== hosts) {
    const advice = `set ${settingsTable.hosts.env} in the environment of all ranks instead, where their agents read it too`;
    throw new WeftlineError(
      'WL_CONFIG',
      `Invalid setting hosts: got ${quote(settings.hosts)} from join(), expected ${quote(hosts)}; ${advice}`,
      {
        details: { setting: 'hosts', value: settings.hosts, expected: hosts },
      },
    );
  }
  if (size === 1) ranksOfHosts(hosts, size);
}

/** What ranks tell each other of where they live. */
interface Place {
  readonly host: string;
  readonly machine: string;
  readonly hosts: string;
  /** Address at which it has called the store. */
  readonly calledAt: string;
}

/** Collective: who lives where. Fails with WL_CONFIG and WL_CONFIG_MISMATCH for the setting `hosts`. */
async function exchangePlaces(
  { rank, size }: RankEnvironment,
  { link, life, calledAt = '127.0.0.1' }: Rendezvous,
  { environment, settings }: JoinOptions & { readonly settings: Settings },
  wait: CallWait,
): Promise<Pick<GroupContext, 'hosts' | 'machineRank'>> {
  const store = new LinkedStore(link, { timeoutMs: settings.timeoutMs, maxValueBytes: settings.storeMaxValueBytes });
  const own: Place = { host: hostIdentity(environment), machine: machineIdentity(), hosts: settings.hosts, calledAt };
  const parts =
    life === undefined
      ? await store.allGather('weftline/join', encodeJson(own), remaining(wait))
      : await exchangeByKeys(store, { rank, size, own: encodeJson(own) }, wait);
  const places = parts.map((part) => decodeJson(part) as Place);
  const other = places.findIndex(({ hosts }) => hosts !== places[0]!.hosts);
  if (other !== -1) {
    throw new WeftlineError(
      'WL_CONFIG_MISMATCH',
      `The ranks have different settings hosts: ${places[0]!.hosts} on rank 0, ${places[other]!.hosts} on rank ${other}; set ${settingsTable.hosts.env} alike on all`,
      { details: { rank: other, rank0: places[0]!.hosts, other: places[other]!.hosts } },
    );
  }
  noteReachedAddress(
    places.map((place) => place.calledAt),
    calledAt,
  );
  return {
    hosts: places.map(({ host }) => host),
    machineRank: places.slice(0, rank).filter(({ machine }) => machine === own.machine).length,
  };
}

/** Exchanges places in an elastic world: a rank that joins again finds what the others wrote, and nobody has to come. */
async function exchangeByKeys(
  store: LinkedStore,
  { rank, size, own }: { readonly rank: number; readonly size: number; readonly own: Uint8Array },
  wait: CallWait,
): Promise<Uint8Array[]> {
  const keys = Array.from({ length: size }, (_, of) => `weftline/join/${of}`);
  await store.set(keys[rank]!, own);
  return Promise.all(keys.map((key, of) => store.get(key, { ...remaining(wait), from: [of] })));
}

class JoinedWorld extends JobGroup implements World {
  readonly jobId: string;
  readonly life: number;
  readonly #rendezvous: Rendezvous;
  readonly #unsample: () => void;
  #closing: Promise<void> | undefined;

  constructor(job: GroupContext, rendezvous: Rendezvous) {
    super(job, [...job.hosts.keys()]);
    this.jobId = rendezvous.jobId;
    this.life = rendezvous.life ?? 0;
    this.#rendezvous = rendezvous;
    this.#unsample = addSamples(() =>
      this.ranks.map((rank) => ({
        name: 'weftline_rank_active',
        labels: [String(rank)],
        value: Number(rendezvous.peers.isThere(rank)),
      })),
    );
  }

  get view(): MembershipView {
    return this.#rendezvous.peers.view ?? { epoch: 0, members: this.ranks };
  }

  get localRank(): number {
    return this.topology.scaleUpIndex;
  }

  get localSize(): number {
    return this.localRanks.length;
  }

  get nodeRank(): number {
    return this.topology.hostIndex;
  }

  get nodeCount(): number {
    return this.topology.hosts.length;
  }

  get localRanks(): readonly number[] {
    return this.topology.scaleUpRanks;
  }

  /** A getter on the prototype: a world that is printed does not show it. */
  get secret(): string {
    return this.#rendezvous.secret;
  }

  close(error?: unknown): Promise<void> {
    // Nobody will come to an orderly end after a failure: stay just long enough for the others to hear of it.
    const waitMs = error === undefined ? this.settings.timeoutMs : this.settings.graceMs;
    this.#unsample();
    this.#closing ??= this.#rendezvous.close(waitMs, error);
    return this.#closing;
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }
}

/** The kernel ends this process with its launcher, should that be killed. */
function endWithLauncher(launcherPid: number | undefined): void {
  if (process.platform !== 'linux' || launcherPid === undefined || process.ppid !== launcherPid) return;
  signalOnParentDeath(9);
  // It may have ended just before.
  if (process.ppid === launcherPid) return;
  throw new WeftlineError('WL_LAUNCH', `The launcher, process ${launcherPid}, ended before this rank joined`);
}
