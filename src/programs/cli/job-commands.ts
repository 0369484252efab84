// weftline why: what the ranks of running jobs wait for, and which rank the others wait for; weftline stats: their metrics.
import { createHash } from 'node:crypto';
import type { Command } from 'commander';
import { asWeftlineError, WeftlineError } from '../../core/errors.ts';
import { printJson, printTo } from '../../core/print.ts';
import { conclude } from '../../world/watching/conclusion.ts';
import { ANSWER_MS, describeJob, OVERDUE_MS } from '../../world/watching/job-text.ts';
import { chooseAnyJobs } from '../../world/watching/find-jobs.ts';
import { type JobMetrics, readJobMetrics } from '../../world/watching/job-observer.ts';
import { JobWatcher, type WatchedJob } from '../../world/watching/job-view.ts';
import { busFactor } from '../bench/collectives/collectives-workload.ts';
import { integerArgument, option } from './argument-values.ts';
import { exitCodes } from './exit-codes.ts';

interface WhyFlags extends WatchFlags {
  readonly overdue: number;
}

export function addWhyCommand(program: Command): void {
  const command = program
    .command('why')
    .summary('say why a running job does not go on')
    .description(
      'Asks the ranks of the jobs that this user runs on this host what they wait for, since when and for whom, on all ' +
        'hosts of the job, and names the rank that the others wait for. A rank that does not answer is shown as the ' +
        'system sees it. The exit code is 1 if a rank is silent or overdue.',
    );
  addWatchOptions(command)
    .addOption(
      option(
        '--overdue <ms>',
        'how long others may wait for a rank before the exit code says so',
        integerArgument(0, 2 ** 31 - 1),
        OVERDUE_MS,
      ),
    )
    .addHelpText(
      'after',
      `
Examples:
  weftline why                 all jobs of this user that have ranks on this host
  weftline why 4711            the job of that launcher or rank
  kill -USR2 4711              the same text on the stderr of the launcher, or of one rank`,
    );
  command.action(async (wanted: string | undefined, { wait, json, overdue }: WhyFlags) => {
    const jobs = await orUsage(command, () => chooseAnyJobs(wanted, wait));
    const found = await Promise.all(
      jobs.map(async (job) => {
        const watcher = new JobWatcher(job);
        const view = await watcher.look(wait);
        watcher.close();
        return { view, conclusion: conclude(view, overdue) };
      }),
    );
    if (json === true) {
      const document = { jobs: found.map(({ view, conclusion }) => ({ ...view, conclusion })) };
      printJson(process.stdout, `${JSON.stringify(document, undefined, 2)}\n`);
    } else if (found.length === 0) printTo(process.stdout, 'No job of this user has ranks on this host.\n');
    else printTo(process.stdout, found.map(({ view, conclusion }) => describeJob(view, conclusion)).join('\n'));
    if (found.some(({ conclusion }) => conclusion.isTrouble)) process.exitCode = exitCodes.failure.code;
  });
}

const formats = ['json', 'prometheus', 'inspector'] as const;

interface StatsFlags {
  readonly wait: number;
  readonly format: (typeof formats)[number];
}

export function addStatsCommand(program: Command): void {
  const command = program
    .command('stats')
    .summary('print the metrics of the ranks of running jobs')
    .description(
      'Asks the ranks of the jobs that this user runs on this host for their metrics, on all hosts of the job, and prints ' +
        'them to stdout. Times of calls, waits and transfers are there only if WEFTLINE_METRICS is set for the job; ' +
        'counters always. Ranks that do not answer are named on stderr.',
    );
  addJobOptions(command)
    .addOption(
      option(
        '--format <format>',
        "json: all of it; prometheus: its text format; inspector: lines of JSON as NCCL's inspector writes them, one for the last call of each object and kind",
        formats,
        'json',
      ),
    )
    .addHelpText(
      'after',
      `
Examples:
  weftline stats                               all jobs of this user that have ranks on this host
  weftline stats 4711 --format prometheus      for the textfile collector of node_exporter`,
    );
  command.action(async (wanted: string | undefined, { wait, format }: StatsFlags) => {
    const jobs = await orUsage(command, () => chooseAnyJobs(wanted, wait));
    const alone = jobs.filter(({ size }) => size === 1);
    if (alone.length > 0 && wanted !== undefined) throw refuseAlone();
    const asked = jobs.filter(({ size }) => size > 1);
    const found = (await Promise.all(asked.map((job) => askOrSay(job, wait)))).flat();
    if (found.length === 0 && wanted !== undefined) process.exitCode = exitCodes.failure.code;
    for (const { jobId, silent } of found)
      if (silent.length > 0)
        printTo(
          process.stderr,
          `weftline: job ${jobId}: no answer within ${wait} ms from ranks ${silent.join(', ')}\n`,
        );
    if (format === 'prometheus') {
      const { prometheusOfRanks } = await import('../../metrics/prometheus-text.ts');
      printTo(process.stdout, await prometheusOfRanks(found.flatMap(({ ranks }) => [...ranks.values()])));
    } else if (format === 'inspector')
      for (const job of found) printTo(process.stdout, inspectorLines(job, Date.now()));
    else {
      const documents = found.map(({ ranks, ...job }) => ({
        ...job,
        ranks: [...ranks].map(([rank, answer]) => ({ rank, ...answer })),
      }));
      printJson(process.stdout, `${JSON.stringify({ jobs: documents }, undefined, 2)}\n`);
    }
  });
}

/** A job that cannot be asked, or has just ended, must not hide the others. */
async function askOrSay(job: WatchedJob, wait: number): Promise<JobMetrics[]> {
  try {
    return [await readJobMetrics(job, wait)];
  } catch (error) {
    printTo(process.stderr, `weftline: job ${job.prefix}: ${asWeftlineError(error).message}\n`);
    return [];
  }
}

function refuseAlone(): WeftlineError {
  return new WeftlineError(
    'WL_UNSUPPORTED',
    'A job of one rank has no store through which it could be asked: set WEFTLINE_METRICS=HOST:PORT for it and read http://HOST:PORT/metrics',
  );
}

// Last calls of a job in the shape of NCCL's inspector plug-in, format v4.0: a line of JSON for each rank, object and call.

const FORMAT_VERSION = 'v4.0';

/** NCCL's names of what it has too. */
const names: Readonly<Record<string, string>> = {
  allReduce: 'AllReduce',
  allGather: 'AllGather',
  reduceScatter: 'ReduceScatter',
  broadcast: 'Broadcast',
  reduce: 'Reduce',
  allToAll: 'AllToAll',
  send: 'Send',
  recv: 'Recv',
};

/** `now`: milliseconds since the Unix epoch. Bandwidths are in GB/s; 0 of calls that carry nothing. */
export function inspectorLines({ jobId, ranks }: JobMetrics, now: number): string {
  const hosts = new Set([...ranks.values()].map(({ labels }) => labels['hostname'])).size;
  return [...ranks]
    .flatMap(([rank, { labels, lastCalls }]) =>
      lastCalls.map(({ label, object, call, ranks: size, number, seconds, bytes }) => {
        const algbw = seconds > 0 ? bytes / seconds / 1e9 : 0;
        return JSON.stringify({
          header: { id: communicatorId(jobId, label), rank, n_ranks: size, nnodes: hosts },
          metadata: {
            inspector_output_format_version: FORMAT_VERSION,
            git_rev: '',
            rec_mechanism: 'weftline',
            dump_timestamp_us: Math.round(now * 1000),
            hostname: labels['hostname'] ?? '',
            pid: Number(labels['pid'] ?? 0),
          },
          coll_perf: {
            coll: names[call] ?? `${object}.${call}`,
            coll_sn: number,
            coll_msg_size_bytes: bytes,
            coll_exec_time_us: Math.round(seconds * 1e6),
            coll_timing_source: 'host',
            coll_algobw_gbs: Number(algbw.toFixed(6)),
            coll_busbw_gbs: Number((algbw * busFactor(call, size)).toFixed(6)),
          },
        });
      }),
    )
    .map((line) => `${line}\n`)
    .join('');
}

/** The same for all calls of one object on all ranks. */
function communicatorId(jobId: string, label: string): string {
  const object = label.replace(/\.[^.]+ of /, ' of ');
  return `0x${createHash('sha256').update(`${jobId} ${object}`).digest('hex').slice(0, 16)}`;
}

// What commands that look at running jobs share: the argument that names a job, and how long ranks may take.

export interface WatchFlags {
  readonly wait: number;
  readonly json?: boolean;
}

/** Runs `look`; a job that is not there, or is not this user's, is a wrong command line. */
export async function orUsage<T>(command: Command, look: () => T | Promise<T>): Promise<T> {
  try {
    return await look();
  } catch (error) {
    const { code, message } = asWeftlineError(error);
    if (code !== 'WL_INVALID_ARGUMENT' && code !== 'WL_UNAUTHORIZED') throw error;
    return command.error(`error: ${message}`);
  }
}

const MAX_WAIT_MS = 60_000;

/** Adds the options that say which job, and how long its ranks may take. */
function addJobOptions(command: Command): Command {
  return command
    .argument(
      '[job]',
      'the begin of its id, or the process id of its launcher or of a rank; all of this user by default',
    )
    .option(
      '--wait <ms>',
      'how long a rank that is not stopped may take to answer',
      integerArgument(1, MAX_WAIT_MS),
      ANSWER_MS,
    );
}

export function addWatchOptions(command: Command): Command {
  return addJobOptions(command).option('--json', 'print JSON to stdout');
}
