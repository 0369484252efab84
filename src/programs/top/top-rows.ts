// What `weftline top` shows of a rank: its state now, and rates between two looks.
import { formatBytes } from '../../core/byte-size.ts';
import { awaitedText, callText, stateText } from '../../world/watching/job-text.ts';
import type { JobView, RankView } from '../../world/watching/job-view.ts';

/** By which column rows may be sorted, in the order of the key s. */
export const sortKeys = ['rank', 'since', 'cpu', 'calls', 'sent', 'received', 'retransmitted', 'memory'] as const;
export type SortKey = (typeof sortKeys)[number];

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

export interface TopRow {
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

/** In the order of `topColumns`. */
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
