// weftline stats: the metrics of all ranks of running jobs, as JSON, for Prometheus, or in the shape of NCCL's inspector.
import { type Command, Option } from 'commander';
import { asWeftlineError, WeftlineError } from '../../core/errors.ts';
import { printTo, printJson } from '../../core/print.ts';
import { chooseAnyJobs } from '../../world/watching/find-jobs.ts';
import { type JobMetrics, readJobMetrics } from '../../world/watching/job-metrics.ts';
import type { WatchedJob } from '../../world/watching/job-view.ts';
import { inspectorLines } from '../stats/inspector-lines.ts';
import { exitCodes } from './exit-codes.ts';
import { addJobArgument, orUsage, waitOption } from './watch-options.ts';

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
  addJobArgument(command)
    .addOption(waitOption())
    .addOption(
      new Option(
        '--format <format>',
        "json: all of it; prometheus: its text format; inspector: lines of JSON as NCCL's inspector writes them, one for the last call of each object and kind",
      )
        .choices(formats)
        .default('json'),
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
