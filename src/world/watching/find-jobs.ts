// Finds the jobs of this user that run on this host, by the variables that launchers give to their ranks.
import { readFileSync, readlinkSync, statSync } from 'node:fs';
import { userInfo } from 'node:os';
import { basename } from 'node:path';
import { WeftlineError } from '../../core/errors.ts';
import { quote } from '../../core/quote.ts';
import { type Environment, type RankEnvironment, readEnvironment } from '../environment.ts';
import { JobWatcher, type WatchedJob } from './job-view.ts';
import { leadsGroup, parentOf, processIds } from './process-facts.ts';

interface FoundRank {
  readonly pid: number;
  readonly environment: RankEnvironment;
}

/** Jobs of this user, the one with the oldest process first. */
export function findJobs(): WatchedJob[] {
  const jobs = new Map<string, { environment: RankEnvironment; pids: Map<number, number>; launchers: Set<number> }>();
  for (const { pid, environment } of ownRanks()) {
    const { source, host, port, size, jobPrefix, rank, launcherPid } = environment;
    const key = size === 1 ? `alone ${launcherPid ?? pid}` : `${source} ${host} ${port}`;
    const job = jobs.get(key) ?? { environment, pids: new Map<number, number>(), launchers: new Set<number>() };
    jobs.set(key, job);
    if (!job.pids.has(rank)) job.pids.set(rank, pid);
    if (launcherPid !== undefined) job.launchers.add(launcherPid);
    // Rank 0's launcher makes the id.
    if (rank < job.environment.rank && jobPrefix !== '') job.environment = environment;
  }
  return [...jobs.values()].map(({ environment, pids, launchers }) => ({
    prefix: environment.jobPrefix,
    address: environment,
    size: environment.size,
    pids: new Map([...pids].toSorted(([left], [right]) => left - right)),
    launchers: [...launchers],
  }));
}

/** Does what chooseJobs() does; a job of which this host has only nodes that do not know its id is asked for it. */
export async function chooseAnyJobs(wanted: string | undefined, patienceMs: number): Promise<readonly WatchedJob[]> {
  const jobs = findJobs();
  try {
    return chooseJobs(jobs, wanted);
  } catch (error) {
    const asked = await Promise.all(
      jobs.map(async (job) => ({ ...job, prefix: job.prefix === '' ? await jobIdOf(job, patienceMs) : job.prefix })),
    );
    if (asked.every(({ prefix }, at) => prefix === jobs[at]?.prefix)) throw error;
    return chooseJobs(asked, wanted);
  }
}

/** Empty if its store does not answer. */
async function jobIdOf(job: WatchedJob, patienceMs: number): Promise<string> {
  const watcher = new JobWatcher(job);
  try {
    return (await watcher.look(patienceMs)).jobId;
  } finally {
    watcher.close();
  }
}

/**
 * The jobs that `wanted` names: the begin of a job's id, or the process id of its launcher or of a rank; all without it.
 * Fails with WL_INVALID_ARGUMENT if there is none, saying why: no such job, or another user's.
 */
export function chooseJobs(jobs: readonly WatchedJob[], wanted: string | undefined): readonly WatchedJob[] {
  if (wanted === undefined) return jobs;
  const pid = /^\d{1,10}$/.test(wanted) ? Number(wanted) : undefined;
  const chosen = jobs.filter(({ prefix, launchers, pids }) => {
    const isOfProcess = pid !== undefined && (launchers.includes(pid) || [...pids.values()].includes(pid));
    return isOfProcess || prefix.startsWith(wanted) || (wanted.startsWith(prefix) && prefix !== '');
  });
  if (chosen.length > 0) return chosen;
  const owner = pid === undefined ? undefined : ownerOf(pid);
  if (owner !== undefined && owner !== process.geteuid?.()) {
    throw new WeftlineError(
      'WL_UNAUTHORIZED',
      `Process ${pid} belongs to the user with id ${owner}, and this is user ${process.geteuid?.()}: a job tells only its own user what it does; run the command as that user`,
      { details: { pid, owner } },
    );
  }
  const known = jobs.map(
    ({ prefix, launchers }) => `${prefix}${launchers.length === 0 ? '' : ` (launcher ${launchers.join(', ')})`}`,
  );
  const there = known.length === 0 ? 'none runs' : `there are ${known.join('; ')}`;
  throw new WeftlineError(
    'WL_INVALID_ARGUMENT',
    `No job of user ${userInfo().username} on this host is ${quote(wanted)}: ${there}. Give the begin of its id, or the process id of its launcher or of a rank`,
    { details: { job: wanted } },
  );
}

/** Processes that are ranks, oldest first. */
function* ownRanks(): Generator<FoundRank> {
  const uid = process.geteuid?.();
  for (const pid of processIds()) {
    if (ownerOf(pid) !== uid) continue;
    const variables = variablesOf(pid);
    if (variables === undefined) continue;
    const environment = rankOf(variables);
    if (environment === undefined || !isRankProcess(pid, environment)) continue;
    yield { pid, environment };
  }
}

/** What a rank starts inherits its variables; such a process is no rank. Other launchers start other programs too. */
function isRankProcess(pid: number, { source, launcherPid }: RankEnvironment): boolean {
  if (source === 'weftline') {
    // A daemon that a rank has left behind may lead a group, too.
    const isLaunched = launcherPid === undefined || ownerOf(launcherPid) === undefined || parentOf(pid) === launcherPid;
    return isLaunched && leadsGroup(pid);
  }
  try {
    return ['node', 'bun', 'deno'].includes(basename(readlinkSync(`/proc/${pid}/exe`)));
  } catch {
    return false;
  }
}

function rankOf(variables: Environment): RankEnvironment | undefined {
  try {
    const environment = readEnvironment(variables);
    if (environment.source === 'single') return undefined;
    return environment.source === 'weftline' || environment.size > 1 ? environment : undefined;
  } catch {
    // Variables that make no sense: whoever started it has been told.
    return undefined;
  }
}

function ownerOf(pid: number): number | undefined {
  try {
    return statSync(`/proc/${pid}`).uid;
  } catch {
    return undefined;
  }
}

function variablesOf(pid: number): Environment | undefined {
  try {
    const text = readFileSync(`/proc/${pid}/environ`, 'utf8');
    if (!/(?:^|\0)(?:WEFTLINE_RANK|RANK|SLURM_PROCID|OMPI_COMM_WORLD_RANK)=/.test(text)) return undefined;
    const entries = text.split('\0').map((entry) => entry.split(/=(.*)/s, 2));
    return Object.fromEntries(entries) as Environment;
  } catch {
    // It ended meanwhile.
    return undefined;
  }
}
