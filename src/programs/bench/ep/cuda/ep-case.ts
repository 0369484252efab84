// One case of the expert-parallel bench on GPUs, and what making it takes.
import type { CaseTraffic } from '../ep-results.ts';
import type { CudaEpInputs, RowDtype } from './ep-inputs.ts';
import type { CudaMeeting } from './meeting.ts';
import type { CudaStopwatch } from './stopwatch.ts';

export interface CudaCase extends CaseTraffic {
  /** The bare copies of the same rows; together they are the ceiling. None for a copy. */
  readonly copies: readonly string[];
  /** How many of the case's rows cross for each of theirs; 1 by default. */
  readonly copyScale?: number;
  /** The case that does the same without counts and exchange. */
  readonly cached?: string;
  /** Not timed. */
  readonly prepare?: () => void;
  readonly run: () => unknown;
}

export interface CudaCaseTools {
  readonly meeting: CudaMeeting;
  readonly stopwatch: CudaStopwatch;
  readonly inputs: CudaEpInputs;
  /** Of the bare copies: only a usual shape is tried. */
  readonly isOneShape: boolean;
}

/** The names of the bare copies: of combine's rows, and of dispatched ones. */
export const pullName = 'pull copy bf16';
export function pushName(dtype: RowDtype): string {
  return `push copy ${dtype}`;
}
