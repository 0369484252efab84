// The words by which a process's threads take turns at its UCX worker.

/**
 * - `lock`: a SharedLock. Everything that the threads share is read and written under it, but for
 *   the words that say otherwise.
 * - `drives`: looks of the agent's thread so far. While they go on, the UCX thread stands back.
 * - `handOvers`: how often the agent's thread has told the UCX thread to take over, because it sleeps itself.
 * - `thread`: what the UCX thread does. ORDER: it stores `armed` under the lock, after it has found nothing to do; whoever
 *   then works under the lock finds it and rings the doorbell.
 * - `stop`: 1 once nobody is to work any more: the backend closes, or a turn has failed. Whoever has a turn asks for it under the lock.
 * - `crashed`: 1 once it has failed; its last message, with the reason, was posted before.
 */
export const driverWords = { lock: 0, drives: 16, handOvers: 32, thread: 48, stop: 64, crashed: 80 } as const;
export const DRIVER_WORDS = 96;

export const threadStates = { running: 0, watching: 1, armed: 2 } as const;
