// weftline top: a table of the ranks of running jobs, again and again.
import { setTimeout as sleep } from 'node:timers/promises';
import { type Command, Option } from 'commander';
import { printTo, printJson } from '../../core/print.ts';
import { alignColumns } from '../../world/watching/job-text.ts';
import { type SortKey, sortKeys, sortRows, topCells, topColumns } from '../top/top-rows.ts';
import { helpLines, type TopAction, TopScreen } from '../top/top-screen.ts';
import { type TopJob, TopWatch } from '../top/watch-jobs.ts';
import { integerArgument } from './argument-values.ts';
import { addWatchOptions, orUsage, type WatchFlags } from './watch-options.ts';

interface TopFlags extends WatchFlags {
  readonly once?: boolean;
  readonly interval: number;
  readonly sort: SortKey;
}

const MAX_INTERVAL_MS = 3_600_000;

export function addTopCommand(program: Command): void {
  const command = program
    .command('top')
    .summary('show what the ranks of running jobs do, again and again')
    .description(
      'Shows state, call, waits, rates and memory of the ranks of the jobs that this user runs on this host, on all hosts ' +
        'of the job. On a terminal the table stays in place (q quits, h helps); elsewhere each look is a block of lines.',
    );
  addWatchOptions(command)
    .option('--once', 'look twice, one interval apart, print once, end')
    .addOption(
      new Option('--interval <ms>', 'time between two looks')
        .argParser(integerArgument(50, MAX_INTERVAL_MS))
        .default(1000),
    )
    .addOption(new Option('--sort <column>', 'which column the ranks are sorted by').choices(sortKeys).default('rank'));
  command.action(async (wanted: string | undefined, flags: TopFlags) => {
    const watch = new TopWatch(wanted, flags.wait);
    try {
      const jobs = await orUsage(command, () => watch.look());
      const { stdin, stdout } = process;
      if (flags.once !== true && flags.json !== true && stdin.isTTY && stdout.isTTY) {
        await interact(watch, jobs, flags);
      } else await printJobs(watch, jobs, flags);
    } finally {
      watch.close();
    }
  });
}

/** Until the jobs have ended, or once. */
async function printJobs(
  watch: TopWatch,
  first: TopJob[],
  { once = false, json = false, interval, sort }: TopFlags,
): Promise<void> {
  let jobs = first;
  if (jobs.length === 0 && !json) printTo(process.stdout, 'No job of this user has ranks on this host.\n');
  if (jobs.length === 0 && json) printJson(process.stdout, `${JSON.stringify({ jobs: [] })}\n`);
  while (jobs.length > 0) {
    await sleep(interval);
    jobs = await watch.look();
    if (jobs.length > 0 && json) printJson(process.stdout, `${JSON.stringify(documentOf(jobs))}\n`);
    else if (jobs.length > 0) printTo(process.stdout, `${textOf(jobs, sort)}\n`);
    if (once) return;
  }
}

function documentOf(jobs: readonly TopJob[]): unknown {
  const time = new Date().toISOString();
  return {
    time,
    jobs: jobs.map(({ view, rows }) => ({
      jobId: view.jobId,
      ranks: rows.map(({ view: rank, values }) => ({ ...rank, rates: values })),
    })),
  };
}

function textOf(jobs: readonly TopJob[], sort: SortKey): string {
  return jobs
    .flatMap(({ view, rows }) => [
      headOf(view.jobId, view.size),
      ...alignColumns([topColumns, ...sortRows(rows, sort).map(topCells)]),
    ])
    .join('\n');
}

function headOf(jobId: string, size: number): string {
  return `${new Date().toISOString().slice(11, 19)} job ${jobId}: ${size} ranks`;
}

/** The terminal is given back as it was. */
const endSignals = ['SIGTERM', 'SIGHUP'] as const;

function whenAborted<T>(signal: AbortSignal, value: T): Promise<T> {
  return new Promise((resolve) => {
    if (signal.aborted) resolve(value);
    else signal.addEventListener('abort', () => resolve(value), { once: true });
  });
}

async function interact(watch: TopWatch, first: TopJob[], { interval, sort: given }: TopFlags): Promise<void> {
  let jobs = first;
  if (jobs.length === 0) {
    printTo(process.stdout, 'No job of this user has ranks on this host.\n');
    return;
  }
  const state = { sort: given, offset: 0, hasHelp: false, isOver: new AbortController() };
  const draw = (): void => {
    const [columns = '', ...rows] = alignColumns([
      topColumns,
      ...jobs.flatMap(({ rows: unsorted }) => sortRows(unsorted, state.sort).map(topCells)),
    ]);
    const foot = state.hasHelp ? helpLines : [];
    const room = screen.room(foot.length);
    state.offset = Math.max(0, Math.min(state.offset, rows.length - room));
    const head = `${jobs.map(({ view }) => headOf(view.jobId, view.size)).join('; ')}; sorted by ${state.sort} (h: help)`;
    screen.draw({ head, columns, rows: rows.slice(state.offset, state.offset + room), foot });
  };
  const act = (action: TopAction): void => {
    if (action === 'quit') return state.isOver.abort();
    if (action === 'help') state.hasHelp = !state.hasHelp;
    if (action === 'up') state.offset -= 1;
    if (action === 'down') state.offset += 1;
    if (action === 'sort' || action === 'sort back') {
      const step = action === 'sort' ? 1 : sortKeys.length - 1;
      state.sort = sortKeys[(sortKeys.indexOf(state.sort) + step) % sortKeys.length]!;
    }
    draw();
  };
  const screen = new TopScreen(process.stdin, process.stdout, act);
  const end = (): void => state.isOver.abort();
  for (const signal of endSignals) process.once(signal, end);
  try {
    while (!state.isOver.signal.aborted && jobs.length > 0) {
      draw();
      await sleep(interval, undefined, { signal: state.isOver.signal }).catch(() => {});
      // Whoever leaves does not wait for a look that is under way.
      if (!state.isOver.signal.aborted)
        jobs = await Promise.race([watch.look(), whenAborted(state.isOver.signal, jobs)]);
    }
  } finally {
    for (const signal of endSignals) process.off(signal, end);
    screen[Symbol.dispose]();
  }
}
