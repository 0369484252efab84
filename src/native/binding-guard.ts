// Keeps threads from binding native functions while the process ends: koffi aborts the process then.
import { getEnvironmentData, isMainThread, setEnvironmentData } from 'node:worker_threads';

/** Key of `setEnvironmentData`: a word that all threads of the process share. */
const BINDING_THREADS = 'weftline-binding-threads';
/** In that word, above the number of threads that are binding: the process ends. */
const IS_ENDING = 1 << 30;
/** Binding takes milliseconds. */
const LONGEST_WAIT_MS = 1000;

/** Before the process starts its first thread. Idempotent. */
export function guardBinding(): void {
  if (getEnvironmentData(BINDING_THREADS) !== undefined) return;
  const word = new Int32Array(new SharedArrayBuffer(4));
  setEnvironmentData(BINDING_THREADS, word);
  process.on('exit', () => {
    const deadline = performance.now() + LONGEST_WAIT_MS;
    for (let seen = Atomics.or(word, 0, IS_ENDING) | IS_ENDING; seen !== IS_ENDING; seen = Atomics.load(word, 0)) {
      const left = deadline - performance.now();
      if (left <= 0 || Atomics.wait(word, 0, seen, left) === 'timed-out') return;
    }
  });
}

/** This thread is within bindGuarded(). */
let isBinding = false;

/** Loads or binds what is native. While the process ends, a thread does not return from it: it is about to be stopped. */
export function bindGuarded<T>(bind: () => T): T {
  const word = isMainThread || isBinding ? undefined : (getEnvironmentData(BINDING_THREADS) as Int32Array | undefined);
  if (word === undefined) return bind();
  if (Atomics.add(word, 0, 1) >= IS_ENDING) {
    release(word);
    for (;;) Atomics.wait(word, 0, Atomics.load(word, 0), LONGEST_WAIT_MS);
  }
  isBinding = true;
  try {
    return bind();
  } finally {
    isBinding = false;
    release(word);
  }
}

function release(word: Int32Array): void {
  Atomics.sub(word, 0, 1);
  Atomics.notify(word, 0);
}
