// Settings of every process of a chaos run.

/** Deadline of each wait. */
export const DEADLINE_MS = 8000;
/** How long after its deadline a wait may still end: a tenth, and what a busy machine takes to run the process at all. */
export const DEADLINE_LIMIT_MS: number = DEADLINE_MS * 1.1 + 6000;

/** Until a pair plays: nothing is killed or stopped before, so a slow start says nothing. */
export const START_MS = 60_000;

export const chaosSettings = { timeoutMs: DEADLINE_MS, transportGiveUpMs: DEADLINE_MS } as const;
