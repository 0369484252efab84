// The world of ranks: join() finds the others through rank 0's store and agrees with them on who shares a host.
import { setMaxListeners } from 'node:events';
import { randomBytes } from 'node:crypto';
import { remaining, startCall } from '../core/deadline.ts';
import { WeftlineError } from '../core/errors.ts';
import { signalOnParentDeath } from '../native/libc.ts';
import { readSettings, type Settings } from '../settings/settings.ts';
import { type Environment, type RankEnvironment, readEnvironment } from './environment.ts';
import { hostIdentity, placeRanks, type Placement } from './host-identity.ts';
import { filePrefixOf, removeStaleFiles } from './shared-memory-files.ts';
import { decodeJson, encodeJson, LinkedStore, type Store } from './store.ts';
import { type WaitOptions } from '../core/deadline.ts';
import { type Rendezvous, meet } from './rendezvous.ts';

/** The ranks of one job. Obtained with `join()`; the caller owns it and closes it. */
export interface World extends AsyncDisposable {
  readonly rank: number;
  readonly size: number;
  /** Position of this rank in `localRanks`. */
  readonly localRank: number;
  readonly localSize: number;
  /** Hosts are numbered by their lowest rank. */
  readonly nodeRank: number;
  readonly nodeCount: number;
  /** [a-z0-9]{1,32}, the same on all ranks and unique to the job. It is no secret. */
  readonly jobId: string;
  /**
   * 64 hexadecimal digits, the same on all ranks and of this job alone, which no other process can know: the token of
   * whatever the ranks of a job open to each other. It is in no name, argument, log or store.
   */
  readonly secret: string;
  /** @internal What names of this job's files in /dev/shm begin with, on this host. It tells nothing of the job. */
  readonly filePrefix: string;
  /** The ranks that share this host's memory, ascending, this rank included. */
  readonly localRanks: readonly number[];
  readonly store: Store;
  readonly settings: Settings;
  /** Aborted, with WL_PEER_LOST or WL_PEER_FAILED as reason, once any rank is gone that did not close its world. */
  readonly peerLost: AbortSignal;
  /** Collective: returns once every rank has called it with this name; a name may be used again and again. */
  barrier(name: string, options?: WaitOptions): Promise<void>;
  /** Collective: result[r] is the value of rank r. Values are JSON and fit `storeMaxValueBytes` together. */
  allGather<T>(name: string, value: T, options?: WaitOptions): Promise<T[]>;
  /**
   * Says goodbye; ranks that still wait for this one fail at once. With an error, they fail with WL_PEER_FAILED and its
   * text. Rank 0 stays, at most `timeoutMs`, until the others are gone, because it serves the store. Idempotent.
   */
  close(error?: unknown): Promise<void>;
}

export interface JoinOptions {
  /** Where the variables of the launcher are; process.env by default. */
  readonly environment?: Environment;
  /** Wins over the environment. */
  readonly settings?: Partial<Settings>;
  /** How long to wait for all ranks, in ms; by default the setting `timeoutMs`. */
  readonly timeoutMs?: number;
  readonly signal?: AbortSignal;
}

/** Environment wins over the platform's random part: 20 characters at most come before these. */
const UNIQUE_BYTES = 5;

/**
 * Joins the job that this process was started for, and waits until all its ranks have. Without a launcher it is a world
 * of one rank, which needs no socket and no thread. Fails with WL_CONFIG (a variable), WL_TIMEOUT (names the ranks that
 * are missing), WL_RANK_TAKEN, WL_CONFIG_MISMATCH (another world size), WL_UNAUTHORIZED, WL_PROTOCOL.
 */
export async function join(options: JoinOptions = {}): Promise<World> {
  const environment = readEnvironment(options.environment);
  const settings = readSettings(options.settings, options.environment);
  const wait = startCall(options, settings.timeoutMs);
  if (environment.size > 1) endWithLauncher(environment.launcherPid);
  const rendezvous = await meet(environment, {
    settings,
    jobId: environment.jobPrefix + randomBytes(UNIQUE_BYTES).toString('hex'),
    deadline: wait.deadline,
    ...(options.signal === undefined ? {} : { signal: options.signal }),
  });
  try {
    const { maxValueBytes } = { maxValueBytes: settings.storeMaxValueBytes };
    const store = new LinkedStore(rendezvous.link, { timeoutMs: settings.timeoutMs, maxValueBytes });
    const identities = await store.allGather('weftline/join', encodeJson(hostIdentity()), remaining(wait));
    const placement = placeRanks(environment.rank, identities.map(String));
    if (environment.size > 1 && placement.localRank === 0) removeStaleFiles();
    return new JoinedWorld(environment, { rendezvous, store, settings, placement });
  } catch (error) {
    await rendezvous.close(0, error);
    throw error;
  }
}

interface WorldParts {
  readonly rendezvous: Rendezvous;
  readonly store: Store;
  readonly settings: Settings;
  readonly placement: Placement;
}

class JoinedWorld implements World {
  readonly rank: number;
  readonly size: number;
  readonly localRank: number;
  readonly localSize: number;
  readonly nodeRank: number;
  readonly nodeCount: number;
  readonly jobId: string;
  readonly localRanks: readonly number[];
  readonly store: Store;
  readonly settings: Settings;
  readonly peerLost: AbortSignal;
  readonly filePrefix: string;
  readonly #rendezvous: Rendezvous;
  #closing: Promise<void> | undefined;

  constructor(environment: RankEnvironment, { rendezvous, store, settings, placement }: WorldParts) {
    this.rank = environment.rank;
    this.size = environment.size;
    this.localRank = placement.localRank;
    this.localSize = placement.localRanks.length;
    this.nodeRank = placement.nodeRank;
    this.nodeCount = placement.nodeCount;
    this.jobId = rendezvous.jobId;
    this.filePrefix = filePrefixOf(environment.jobPrefix);
    this.localRanks = Object.freeze(placement.localRanks);
    this.store = store;
    this.settings = settings;
    this.peerLost = rendezvous.peerLost;
    // Every collective object listens; any number of them is no leak.
    setMaxListeners(0, this.peerLost);
    this.#rendezvous = rendezvous;
  }

  /** On the prototype: a world that is printed does not show it. */
  get secret(): string {
    return this.#rendezvous.secret;
  }

  barrier(name: string, options?: WaitOptions): Promise<void> {
    return this.store.barrier(name, options);
  }

  async allGather<T>(name: string, value: T, options?: WaitOptions): Promise<T[]> {
    const parts = await this.store.allGather(name, encodeJson(value), options);
    return parts.map((part) => decodeJson(part) as T);
  }

  close(error?: unknown): Promise<void> {
    // After a failure nobody will come to an orderly end: stay just long enough for the others to hear of it.
    const waitMs = error === undefined ? this.settings.timeoutMs : this.settings.graceMs;
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
