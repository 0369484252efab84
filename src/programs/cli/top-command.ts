// weftline top: a table of the ranks of running jobs, again and again.
import { setTimeout as sleep } from 'node:timers/promises';
import type { ReadStream, WriteStream } from 'node:tty';
import type { Command } from 'commander';
import { formatBytes } from '../../core/byte-size.ts';
import { printJson, printTo } from '../../core/print.ts';
import { printableLines } from '../../core/quote.ts';
import { chooseAnyJobs, findJobs } from '../../world/watching/find-jobs.ts';
import { alignColumns, awaitedText, callText, stateText } from '../../world/watching/job-text.ts';
import { type JobView, JobWatcher, type RankView, type WatchedJob } from '../../world/watching/job-view.ts';
import { integerArgument, option } from './argument-values.ts';
import { addWatchOptions, orUsage, type WatchFlags } from './job-commands.ts';

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
    .addOption(option('--interval <ms>', 'time between two looks', integerArgument(50, MAX_INTERVAL_MS), 1000))
    .addOption(option('--sort <column>', 'which column the ranks are sorted by', sortKeys, 'rank'));
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

/** Prints until the jobs have ended, or once. */
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

// Looks at jobs again and again for `weftline top`: finds those that begin, forgets those that end, keeps the look before.

interface TopJob {
  readonly view: JobView;
  readonly rows: readonly TopRow[];
}

class TopWatch {
  readonly #wanted: string | undefined;
  readonly #patienceMs: number;
  /** The watcher of each job, and what it saw last. */
  readonly #watched = new Map<string, { readonly watcher: JobWatcher; last?: { view: JobView; at: number } }>();

  /** Looks at the jobs that `wanted` names, see chooseJobs(). */
  constructor(wanted: string | undefined, patienceMs: number) {
    this.#wanted = wanted;
    this.#patienceMs = patienceMs;
  }

  /** Fails as chooseAnyJobs() does the first time; later a job that has ended is no longer there. */
  async look(): Promise<TopJob[]> {
    const isFirst = this.#watched.size === 0;
    const jobs = isFirst ? await chooseAnyJobs(this.#wanted, this.#patienceMs) : findJobs();
    const present = new Set(jobs.map(keyOf));
    for (const job of jobs) this.#add(job, isFirst);
    for (const [key, { watcher }] of this.#watched) {
      if (present.has(key)) continue;
      watcher.close();
      this.#watched.delete(key);
    }
    return Promise.all(
      [...this.#watched.values()].map(async (watched) => {
        const view = await watched.watcher.look(this.#patienceMs);
        const [at, { last }] = [performance.now(), watched];
        watched.last = { view, at };
        return { view, rows: topRows(view, last?.view, last === undefined ? 1 : (at - last.at) / 1000) };
      }),
    );
  }

  close(): void {
    for (const { watcher } of this.#watched.values()) watcher.close();
  }

  #add(job: WatchedJob, isFirst: boolean): void {
    const key = keyOf(job);
    const known = this.#watched.get(key);
    if (known !== undefined) known.watcher.update(job);
    if (known !== undefined || !(isFirst || this.#wanted === undefined)) return;
    this.#watched.set(key, { watcher: new JobWatcher(job) });
  }
}

function keyOf({ prefix, address }: WatchedJob): string {
  return `${prefix} ${address.host} ${address.port}`;
}

// What `weftline top` shows of a rank: its state now, and rates between two looks.

/** Columns that rows may be sorted by, in the order of the key s. */
const sortKeys = ['rank', 'since', 'cpu', 'calls', 'sent', 'received', 'retransmitted', 'memory'] as const;

type SortKey = (typeof sortKeys)[number];

export const topColumns = [
  'rank',
  'host',
  'pid',
  'state',
  'call',
  'waits for',
  'since',
  'cpu',
  'calls/s',
  'sent/s',
  'received/s',
  'resent/s',
  'memory',
  'windows',
] as const;

interface TopRow {
  readonly view: RankView;
  /** What rows are sorted by; undefined where it is not known. */
  readonly values: Readonly<Record<SortKey, number | undefined>>;
}

/** `before`: the look before, so many seconds ago; without one there are no rates. */
export function topRows(now: JobView, before: JobView | undefined, elapsedSeconds: number): TopRow[] {
  return now.ranks.map((view) => {
    const earlier = before?.ranks[view.rank];
    const rate = (read: (of: RankView) => number | undefined): number | undefined => {
      const [newer, older] = [read(view), earlier === undefined ? undefined : read(earlier)];
      // Connections that were closed meanwhile take their counts with them.
      return newer === undefined || older === undefined ? undefined : Math.max(0, newer - older) / elapsedSeconds;
    };
    const values = {
      rank: view.rank,
      since: view.waits[0]?.ageMs,
      cpu: rate(({ process }) => process?.cpuMs),
      calls: rate(({ state, objects }) =>
        state === 'answers' ? objects.reduce((sum, { calls }) => sum + calls, 0) : undefined,
      ),
      sent: rate(({ meters }) => meters?.sentBytes),
      received: rate(({ meters }) => meters?.receivedBytes),
      retransmitted: rate(({ meters }) => meters?.retransmittedPackets),
      memory: view.rssBytes,
    };
    return { view, values };
  });
}

/** Ranks ascending, everything else descending. */
export function sortRows(rows: readonly TopRow[], key: SortKey): TopRow[] {
  const sign = key === 'rank' ? 1 : -1;
  return rows.toSorted((left, right) => {
    const [first, second] = [left.values[key] ?? -1, right.values[key] ?? -1];
    return sign * (first - second) || left.values.rank! - right.values.rank!;
  });
}

/** The cells of a row in the order of `topColumns`. */
export function topCells({ view, values }: TopRow): string[] {
  const { rank, host, pid, waits, objects, meters } = view;
  const [wait] = waits;
  return [
    String(rank),
    host || '?',
    pid === undefined ? '?' : String(pid),
    stateText(view),
    callText(objects),
    wait === undefined ? '' : awaitedText(wait) || wait.operation,
    wait === undefined ? '' : `${(wait.ageMs / 1000).toFixed(1)} s`,
    // Milliseconds per second are tenths of a percent.
    values.cpu === undefined ? '' : `${Math.round(values.cpu / 10)} %`,
    rateText(values.calls),
    bytesText(values.sent),
    bytesText(values.received),
    rateText(values.retransmitted),
    bytesText(values.memory),
    bytesText(meters?.windowBytes),
  ];
}

function rateText(value: number | undefined): string {
  return value === undefined ? '' : value.toFixed(value < 10 ? 1 : 0);
}

function bytesText(value: number | undefined): string {
  return value === undefined ? '' : formatBytes(Math.round(value));
}

// The screen of `weftline top` on a terminal: draws a page again and again, reads keys.

interface TopPage {
  readonly head: string;
  readonly columns: string;
  /** The one whose rows are sorted by is told in `head`. */
  readonly rows: readonly string[];
  readonly foot: readonly string[];
}

/** What a key asks for. */
type TopAction = 'quit' | 'sort' | 'sort back' | 'up' | 'down' | 'help';

const ESCAPE = '\u001b[';
const ENTER_SCREEN = `${ESCAPE}?1049h${ESCAPE}?25l`;
const LEAVE_SCREEN = `${ESCAPE}?25h${ESCAPE}?1049l`;
const HOME = `${ESCAPE}H`;
const CLEAR_LINE = `${ESCAPE}K`;
const CLEAR_BELOW = `${ESCAPE}J`;

const keys: Readonly<Record<string, TopAction>> = {
  q: 'quit',
  '\u0003': 'quit',
  s: 'sort',
  [`${ESCAPE}C`]: 'sort',
  [`${ESCAPE}D`]: 'sort back',
  [`${ESCAPE}A`]: 'up',
  [`${ESCAPE}B`]: 'down',
  h: 'help',
  '?': 'help',
};

const helpLines = [
  'q quits, h shows or hides this help',
  's and the right arrow sort by the next column, the left arrow by the one before',
  'the arrows up and down scroll the ranks',
] as const;

class TopScreen implements Disposable {
  readonly #input: ReadStream;
  readonly #output: WriteStream;
  readonly #hasColour: boolean;
  readonly #onKey: (chunk: Buffer) => void;

  constructor(input: ReadStream, output: WriteStream, onAction: (action: TopAction) => void) {
    this.#input = input;
    this.#output = output;
    this.#hasColour = (process.env['NO_COLOR'] ?? '') === '';
    this.#onKey = (chunk) => {
      const action = keys[chunk.toString('latin1')];
      if (action !== undefined) onAction(action);
    };
    output.write(ENTER_SCREEN);
    input.setRawMode(true);
    input.resume();
    input.on('data', this.#onKey);
  }

  /** How many rows fit below a head and above a foot of so many lines. */
  room(footLines: number): number {
    return Math.max(1, this.#output.rows - 2 - footLines);
  }

  draw({ head, columns, rows, foot }: TopPage): void {
    const width = this.#output.columns;
    const shown = [head, this.#mark(columns.slice(0, width).padEnd(width)), ...rows, ...foot];
    const lines = shown.map((line, at) => (at === 1 ? line : printableLines(line).slice(0, width)) + CLEAR_LINE);
    this.#output.write(HOME + lines.slice(0, this.#output.rows).join('\r\n') + CLEAR_BELOW);
  }

  [Symbol.dispose](): void {
    this.#input.off('data', this.#onKey);
    this.#input.setRawMode(false);
    this.#input.pause();
    this.#output.write(LEAVE_SCREEN);
  }

  #mark(text: string): string {
    return this.#hasColour ? `${ESCAPE}7m${text}${ESCAPE}0m` : text;
  }
}
