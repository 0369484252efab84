// Words of memory that threads of one process share to sleep, to wake and to exclude each other.

/**
 * The words. `events`: what happened so far, wraps; written by any thread behind what it announces. `sleepers`: waits of
 * the sleeping thread. ORDER: a ringer adds to `events`, then looks at `sleepers`; a sleeper adds itself, and the sleep
 * itself compares `events` with what was seen. So no ring is slept through. `awaited`: blocking waits for a ring, polling or
 * asleep; written by the sleeping thread, a stale look costs time only.
 */
export const wakeWord = { events: 0, sleepers: 1, awaited: 2 } as const;
export const WAKE_WORDS = 3;

/** What the one word of a SharedLock holds. */
export const lockStates = { free: 0, held: 1, contended: 2 } as const;
