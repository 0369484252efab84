// SIGUSR2: a rank prints what it waits for, a launcher what all its ranks wait for. To stderr; the process goes on.
import { isMainThread } from 'node:worker_threads';
import { printTo } from '../../core/print.ts';
import { objectStates, presentWaits } from '../../core/waits.ts';
import { conclude } from './conclusion.ts';
import { describeJob, describeRank } from './job-text.ts';
import { JobWatcher, type WatchedJob } from './job-view.ts';

/** How long ranks have to answer. */
export const ANSWER_MS = 1_000;
/** How long others may wait for a rank before that counts as trouble. */
export const OVERDUE_MS = 1_000;

/** Shared by all copies of this package in a process. */
const registered = Symbol.for('weftline.explainRank');

/** From now on this process explains itself as that rank. Once per process; the signal would end it otherwise. */
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
