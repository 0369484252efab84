// What the launcher says at the end of a job that failed: which rank was the first, why, and what became of the others.
import { printableLines } from '../core/quote.ts';
import type { FailureNote } from './failure-log.ts';
import { blamedBy, hasFailed, type RankFailure } from './first-failure.ts';
import { rankList } from './rank-list.ts';
import { describeEnd, type RankResult } from './rank-process.ts';

/** A few lines, however many ranks there are. */
export function failureSummary(
  first: RankFailure,
  ranks: readonly RankResult[],
  notes: readonly FailureNote[],
): string {
  const { rank, pid, host, error } = first;
  const when = new Date(first.time).toISOString();
  const lines = [
    `the job failed: rank ${rank} (process ${pid} on ${host}) ended with ${describeEnd(first)} at ${when}`,
  ];
  if (error !== undefined) {
    const [message = ''] = error.message.split('\n');
    lines.push(`  first error: ${error.code === undefined ? '' : `${error.code}: `}${message}`);
  }
  // It may be another rank that did not fail but was late, or is stopped.
  const because = blamedBy(rank, notes);
  if (because.length > 0) lines.push(`  because of ${rankList(because)}`);
  const others = ranks.filter((other) => other.rank !== rank);
  const groups = new Map<string, number[]>();
  for (const other of others.filter((end) => hasFailed(end, notes))) {
    const noted = notes.find((note) => note.rank === other.rank)?.error;
    const how = noted?.code ?? (other.stopped ? 'an error' : describeEnd(other));
    groups.set(how, [...(groups.get(how) ?? []), other.rank]);
  }
  for (const [how, members] of groups) lines.push(`  failed after it, ${how}: ${rankList(members)}`);
  const stopped = others.filter((end) => end.stopped && !hasFailed(end, notes));
  if (stopped.length > 0) lines.push(`  stopped: ${rankList(stopped.map((end) => end.rank))}`);
  return printableLines(lines.join('\n'));
}
