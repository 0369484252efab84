// Keeps threads from binding native functions while the process ends: koffi aborts the process then.
import { getEnvironmentData, isMainThread, setEnvironmentData, threadId, type Worker } from 'node:worker_threads';

/**
 * Key of `setEnvironmentData`: words shared by all threads that are started after the main thread has loaded this module. Other
 * threads are not guarded. A change of what the words mean gets another number.
 */
const SHARED_WORDS = 'weftline-binding-threads/1';
/** The first word is 1 when the process ends. Each of the others is 1 while a thread binds; threads share them by their id. */
const WORDS = 1024;
/** Binding takes milliseconds. */
const LONGEST_WAIT_MS = 1000;

if (isMainThread && getEnvironmentData(SHARED_WORDS) === undefined) {
  const words = new Int32Array(new SharedArrayBuffer(4 * WORDS));
  setEnvironmentData(SHARED_WORDS, words);
  process.on('exit', () => awaitThreads(words));
}

/** Clears the word of a thread when it has ended, since it may have been stopped while it was binding. */
export function guardWorker(worker: Worker): void {
  const words = sharedWords();
  if (words === undefined) return;
  const at = wordOf(worker.threadId);
  worker.once('exit', () => Atomics.store(words, at, 0));
}

/** This thread is within bindGuarded(). */
let isBinding = false;

/** Loads or binds what is native. While the process ends, a thread does not return from it: it is about to be stopped. */
export function bindGuarded<T>(bind: () => T): T {
  const words = isMainThread || isBinding ? undefined : sharedWords();
  if (words === undefined) return bind();
  const at = wordOf(threadId);
  // ORDER: the thread tells before it looks; the process tells that it ends before it looks at the threads.
  Atomics.add(words, at, 1);
  if (Atomics.load(words, 0) !== 0) {
    release(words, at);
    for (;;) Atomics.wait(words, 0, 1, LONGEST_WAIT_MS);
  }
  isBinding = true;
  try {
    return bind();
  } finally {
    isBinding = false;
    release(words, at);
  }
}

function sharedWords(): Int32Array | undefined {
  return getEnvironmentData(SHARED_WORDS) as Int32Array | undefined;
}

function wordOf(thread: number): number {
  return 1 + (thread % (WORDS - 1));
}

function release(words: Int32Array, at: number): void {
  Atomics.sub(words, at, 1);
  Atomics.notify(words, at);
}

/** When the process ends: until no thread is binding. */
function awaitThreads(words: Int32Array): void {
  Atomics.store(words, 0, 1);
  const deadline = performance.now() + LONGEST_WAIT_MS;
  for (let at = 1; at < WORDS; at++) {
    for (let seen = Atomics.load(words, at); seen > 0; seen = Atomics.load(words, at)) {
      const left = deadline - performance.now();
      if (left <= 0 || Atomics.wait(words, at, seen, left) === 'timed-out') return;
    }
  }
}
