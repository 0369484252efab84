// The words by which a process's threads take turns at its UCX worker, and the lock around what they share.

/**
 * - `lock`: 0 free, 1 held, 2 held and waited for. Everything that the threads share is read and written under it, but for
 *   the words that say otherwise.
 * - `drives`: looks of the agent's thread so far. While they go on, the UCX thread stands back.
 * - `handOvers`: how often the agent's thread has told the UCX thread to take over, because it sleeps itself.
 * - `thread`: what the UCX thread does. ORDER: it stores `armed` under the lock, after it has found nothing to do; whoever
 *   then works under the lock finds it and rings the doorbell.
 * - `stop`: 1 once the UCX thread is to end.
 * - `crashed`: 1 once it has failed; its last message, with the reason, was posted before.
 */
export const driverWords = { lock: 0, drives: 16, handOvers: 32, thread: 48, stop: 64, crashed: 80 } as const;
export const DRIVER_WORDS = 96;

export const threadStates = { running: 0, watching: 1, armed: 2 } as const;

const SPINS = 200;
const NAP_MS = 1;

export function lock(words: Int32Array): void {
  for (let spin = 0; spin < SPINS; spin++) {
    if (Atomics.compareExchange(words, driverWords.lock, 0, 1) === 0) return;
  }
  while (Atomics.exchange(words, driverWords.lock, 2) !== 0) Atomics.wait(words, driverWords.lock, 2, NAP_MS);
}

export function unlock(words: Int32Array): void {
  if (Atomics.exchange(words, driverWords.lock, 0) === 2) Atomics.notify(words, driverWords.lock, 1);
}
