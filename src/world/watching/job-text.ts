// The text that shows what the ranks of a job do and why it does not go on: aligned columns, then sentences.
import { isMainThread } from 'node:worker_threads';
import { printTo } from '../../core/print.ts';
import { type ObjectState, objectStates, type PresentWait, presentWaits } from '../../core/waits.ts';
import { conclude, type Conclusion, seconds } from './conclusion.ts';
import { type JobView, JobWatcher, type RankView, type WatchedJob } from './job-view.ts';

// SIGUSR2: a rank prints what it waits for, a launcher what all its ranks wait for. To stderr; the process goes on.

/** How long ranks have to answer. */
export const ANSWER_MS = 1_000;
/** How long others may wait for a rank before that counts as trouble. */
export const OVERDUE_MS = 1_000;

/** Shared by all copies of this package in a process. */
const registered = Symbol.for('weftline.explainRank');

/** This process explains itself as that rank from now on. Once per process; the signal would end it otherwise. */
export function explainRankOnSignal(rank: number): void {
  const holder = globalThis as { [registered]?: true };
  if (holder[registered] === true || !isMainThread || process.platform === 'win32') return;
  holder[registered] = true;
  process.on('SIGUSR2', () =>
    printTo(process.stderr, `weftline: ${describeRank(rank, presentWaits(), objectStates())}`),
  );
}

/** Calls `write` with the text at each signal, until the function that it returns is called. */
export function explainJobOnSignal(job: () => WatchedJob, write: (text: string) => void): () => void {
  const explain = async (): Promise<void> => {
    const watcher = new JobWatcher(job());
    const view = await watcher.look(ANSWER_MS);
    watcher.close();
    write(describeJob(view, conclude(view, OVERDUE_MS)));
  };
  const onSignal = (): void => void explain();
  process.on('SIGUSR2', onSignal);
  return () => process.off('SIGUSR2', onSignal);
}

const columns = ['rank', 'host', 'pid', 'state', 'call', 'waits in', 'for', 'since', 'seen', 'time left'] as const;
/** Waits of one rank that are shown. */
const MAX_WAITS = 3;
const MAX_NAMED = 6;

/** @returns Lines, the last one ended. */
export function describeJob(view: JobView, { sentences }: Conclusion): string {
  const launchers = view.launchers.map(({ pid }) => pid).join(', ');
  const head = `job ${view.jobId}: ${view.size} ${view.size === 1 ? 'rank' : 'ranks'}${launchers === '' ? '' : `, launcher ${launchers}`}`;
  const rows = view.ranks.flatMap(rowsOf);
  return [head, ...alignColumns([columns, ...rows]), ...sentences.map((sentence) => `${sentence}.`), ''].join('\n');
}

/** What one rank says of itself. */
export function describeRank(rank: number, waits: readonly PresentWait[], objects: readonly ObjectState[]): string {
  const rows = waits.map((wait) => [callText(objects), ...waitCells(wait)]);
  const head = `rank ${rank}, process ${process.pid}: ${waits.length === 0 ? 'waits for nothing' : 'waits'}`;
  const last = objects.map(
    ({ object, calls, last: name }) => `${object}: ${calls} calls${name === undefined ? '' : `, the last is ${name}`}`,
  );
  return [head, ...alignColumns(rows.length === 0 ? [] : [columns.slice(4), ...rows]), ...last, ''].join('\n');
}

/** Cells of each column as wide as the widest. */
export function alignColumns(rows: readonly (readonly string[])[]): string[] {
  const widths = (rows[0] ?? []).map((_, column) => Math.max(...rows.map((row) => row[column]!.length)));
  return rows.map((row) =>
    row
      .map((cell, column) => cell.padEnd(widths[column]!))
      .join('  ')
      .trimEnd(),
  );
}

function rowsOf(view: RankView): string[][] {
  const { rank, host, pid, waits, objects } = view;
  const state = stateText(view);
  const first = [String(rank), host || '?', pid === undefined ? '?' : String(pid), state, callText(objects)];
  if (waits.length === 0) return [[...first, '', '', '', '', '']];
  return waits.slice(0, MAX_WAITS).map((wait, at) => [...(at === 0 ? first : first.map(() => '')), ...waitCells(wait)]);
}

/** One word, and the letter by which the system tells the state of a process. */
export function stateText({ state, waits, process }: RankView): string {
  if (state === 'answers') return waits.length === 0 ? 'works' : 'waits';
  return process === undefined ? state : `${state} (${process.state})`;
}

/** The call that runs, else the last one. */
export function callText(objects: readonly ObjectState[]): string {
  const object = objects.find(({ isRunning }) => isRunning) ?? objects.at(-1);
  if (object === undefined || object.last === undefined) return '';
  return `${object.object} ${object.last} ${object.calls}${object.isRunning ? '' : ' (ended)'}`;
}

function waitCells({ operation, ageMs, leftMs, seen, expected, ...wait }: PresentWait): string[] {
  return [
    operation,
    awaitedText(wait),
    seconds(ageMs),
    expected === undefined ? '' : `${seen ?? '?'} of ${expected}`,
    leftMs === undefined ? '' : seconds(leftMs),
  ];
}

export function awaitedText({ ranks = [], peers = [] }: Pick<PresentWait, 'ranks' | 'peers'>): string {
  const named = ranks.length === 0 ? [] : [`${ranks.length === 1 ? 'rank' : 'ranks'} ${cut(ranks)}`];
  return [...named, ...(peers.length === 0 ? [] : [cut(peers)])].join('; ');
}

function cut(list: readonly (number | string)[]): string {
  const more = list.length > MAX_NAMED ? ` and ${list.length - MAX_NAMED} more` : '';
  return list.slice(0, MAX_NAMED).join(', ') + more;
}
