// Estimates how far the clocks of hosts are apart from the calls that all ranks make together.
import type { TracePart } from './read-part.ts';
import type { ClockOffsets } from './chrome-trace.ts';

/**
 * No rank leaves a collective call before the last one has entered it. So a host's clock is ahead of the first host's by
 * at least (its latest begin - the first host's earliest end), and by at most the same with the hosts exchanged; the
 * estimate is the middle of what all calls allow. Hosts without common calls have none, nor those whose
 * calls contradict each other.
 */
export function clockOffsets(parts: readonly TracePart[]): ClockOffsets {
  const calls = new Map<string, Map<string, { begin: number; end: number }>>();
  for (const { host, threads } of parts) {
    for (const { spans } of threads) {
      for (const { point, label, subject, begin, end } of spans) {
        if (point !== 'call' || end === undefined || !isMeeting(label)) continue;
        const hosts = calls.get(`${label} ${subject}`) ?? new Map<string, { begin: number; end: number }>();
        calls.set(`${label} ${subject}`, hosts);
        const known = hosts.get(host);
        hosts.set(host, { begin: Math.max(begin, known?.begin ?? begin), end: Math.min(end, known?.end ?? end) });
      }
    }
  }
  const [first, ...others] = [...new Set(parts.map(({ host }) => host))];
  const offsets = new Map<string, number>();
  if (first !== undefined) offsets.set(first, 0);
  for (const host of others) {
    const offset = offsetOf(host, first!, calls.values());
    if (offset !== undefined) offsets.set(host, offset);
  }
  return offsets;
}

/** Of these no rank returns before all have come. */
function isMeeting(label: string): boolean {
  return /\.(?:barrier|allReduce|allGather|allToAll)\b/.test(label);
}

function offsetOf(
  host: string,
  first: string,
  calls: Iterable<ReadonlyMap<string, { readonly begin: number; readonly end: number }>>,
): number | undefined {
  let least = Number.NEGATIVE_INFINITY;
  let most = Number.POSITIVE_INFINITY;
  for (const hosts of calls) {
    const [here, there] = [hosts.get(first), hosts.get(host)];
    if (here === undefined || there === undefined) continue;
    least = Math.max(least, there.begin - here.end);
    most = Math.min(most, there.end - here.begin);
  }
  // Bounds that contradict each other come of calls that only look alike.
  return Number.isFinite(least) && Number.isFinite(most) && least <= most ? (least + most) / 2 : undefined;
}
