// What a trace holds: times of phases, by thread.
import type { TracePoint } from '../core/trace.ts';

/** Times in microseconds since the Unix epoch. */
export interface Span {
  readonly point: TracePoint;
  readonly subject: number;
  readonly label: string;
  readonly begin: number;
  /** undefined of what had not ended when the file was read. */
  readonly end: number | undefined;
}

/** Microseconds whose differences are exact, and which JSON knows: not those that a damaged file, or a stranger's, may hold. */
export function isTime(time: number): boolean {
  return Math.abs(time) <= Number.MAX_SAFE_INTEGER;
}

/** Also a group of blocks of a kernel. */
export interface TracedThread {
  readonly name: string;
  /** In the order of their begins. */
  readonly spans: readonly Span[];
  /** Records that were overwritten by later ones. */
  readonly lost: number;
}
