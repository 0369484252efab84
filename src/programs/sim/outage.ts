// A rail that dies, and perhaps comes back: what the hosts received before, while it was dead, and afterwards.
import type { RailOutage } from './theory.ts';

/** Payload of all hosts since the point before. */
export interface GoodputPoint {
  /** Microseconds. */
  readonly at: number;
  readonly gbps: number;
}

/** Means, in Gbps of payload; undefined where the run was over before. */
export interface OutageEffect extends RailOutage {
  readonly rail: number;
  /** In the second half of the time before it died. */
  readonly before: number | undefined;
  /** The worst millisecond from then on. */
  readonly worst: number | undefined;
  /** From 100 ms after it died until it came back, or until the end. */
  readonly during: number | undefined;
  /** From 100 ms after it came back until the end. */
  readonly after: number | undefined;
}

/** Between two points. */
export const OUTAGE_STEP = 1000;
const SETTLED = 100_000;

/** `end`: when the first flow had all its messages; what comes after it says nothing of the network. */
export function outageEffect(
  outage: RailOutage & { readonly rail: number },
  points: readonly GoodputPoint[],
  end: number,
): OutageEffect {
  const { from, to } = outage;
  // A point tells of the time before it.
  const within = (begin: number, finish: number): number[] =>
    points.filter(({ at }) => at - OUTAGE_STEP >= begin && at <= Math.min(finish, end)).map(({ gbps }) => gbps);
  const later = within(from, Number.POSITIVE_INFINITY);
  return {
    ...outage,
    before: mean(within(from / 2, from)),
    worst: later.length === 0 ? undefined : Math.min(...later),
    during: mean(within(from + SETTLED, to)),
    after: mean(within(to + SETTLED, Number.POSITIVE_INFINITY)),
  };
}

function mean(values: readonly number[]): number | undefined {
  return values.length === 0 ? undefined : values.reduce((sum, value) => sum + value, 0) / values.length;
}
