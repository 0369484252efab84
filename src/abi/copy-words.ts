// What an agent's thread and the thread that copies for it share: the words of threads, lanes and jobs, and a job's table.

/** Words of the thread that copies.
 *
 * - `lock`: a SharedLock.
 * - `bell`: counts what there is to do, wraps; the thread that copies sleeps on it.
 * - `isRunning`: 1 while that thread takes steps. `mustStop`: set to 1 before the bell is rung for the last time.
 */
export const threadWord = { lock: 0, bell: 1, isRunning: 2, mustStop: 3 } as const;
export const THREAD_WORDS = 4;

/**
 * Words of a job. All but `active` and `state` are read and written under the lock alone.
 *
 * - `next`: the job behind it in its lane, 0 if none.
 * - `state`: of `jobStates`; the agent's thread also reads it without the lock.
 * - `claimed`: steps that a thread has begun. `active`: threads that are within a step.
 * - `failure`: why a step failed, as CopyTable.copy says it, or REVOKED; 0 if none has.
 * - `hasMessage`: 1 if a message is to follow.
 */
export const jobWord = { next: 0, state: 1, claimed: 2, active: 3, failure: 4, hasMessage: 5 } as const;
export const JOB_WORDS = 6;
export const jobStates = { idle: 0, queued: 1, ended: 2 } as const;

/** Ids of the first and the last job; 0 if there is none. */
export const laneWord = { first: 0, last: 1 } as const;
export const LANE_WORDS = 2;

/** Columns of a row. `process`: 0 for a copy of mapped memory, else pid to write into, or -pid to read from. */
export const copyColumn = { process: 0, to: 1, from: 2, bytes: 3, ranges: 4 } as const;
export const COPY_COLUMNS = 5;
/** A head, the rows, then the first row of each step. */
export const copyHeadWord = { steps: 0, rows: 1 } as const;
export const COPY_HEAD_BYTES = 8;
