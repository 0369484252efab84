// A thread that sleeps on what its owner cannot sleep on, a futex of other processes or descriptors, and rings the owner.
import { log } from '../core/log.ts';
import { packageFile } from '../core/package-file.ts';
import { Futex } from '../native/libc.ts';
import { bindDeclaredFunctions, viewAt } from '../native/library.ts';
import { ReadinessSet } from '../native/readiness.ts';
import { PooledWork } from './thread-pool.ts';
import { WakeWord } from './wake-word.ts';

interface WatchOptions {
  /** What debuggers show, after `weftline-`. */
  readonly name: string;
  readonly wake: WakeWord;
  /**
   * What the thread sleeps on until it has ended: the native address of a word that others ring, or the descriptor of a
   * ReadinessSet, whose descriptors should be added for one time each. Their numbers are below 32.
   */
  readonly source: { readonly futex: number } | { readonly readiness: number };
  /** Ends a sleep of the thread. */
  readonly ring: () => void;
}

interface WatchData extends Pick<WatchOptions, 'source'> {
  readonly words: SharedArrayBuffer;
  /** The memory of the WakeWord. */
  readonly wake: SharedArrayBuffer;
}

/** `ready`: a bit for each descriptor that was readable since `forget`, by its number. */
const at = { stop: 0, isRunning: 1, ready: 2 } as const;
const WORDS = 3;

export class WatchThread {
  readonly #words = new Int32Array(new SharedArrayBuffer(WORDS * 4));
  readonly #work: PooledWork;
  readonly #ring: () => void;

  /** It does not keep the process alive. */
  constructor({ name, wake, source, ring }: WatchOptions) {
    this.#ring = ring;
    const data: WatchData = { source, words: this.#words.buffer, wake: wake.buffer };
    this.#work = new PooledWork({
      entry: packageFile('./watch-thread.js', import.meta.url),
      name,
      data,
      onEnd: (cause) => {
        Atomics.store(this.#words, at.isRunning, 0);
        if (cause instanceof Error) log('agent', 'warn', `The thread ${name} failed: ${cause.message}`);
      },
    });
    this.#work.unref();
  }

  /** False while it starts, and once it has ended: nothing rings the owner then. */
  get isRunning(): boolean {
    return Atomics.load(this.#words, at.isRunning) === 1;
  }

  /** Hot path. The descriptor of that number was readable, and is not watched until it is added again. */
  isReady(number: number): boolean {
    return (Atomics.load(this.#words, at.ready) & (1 << number)) !== 0;
  }

  /** ORDER: before the descriptor is added again, so that what comes then is noted. */
  forget(number: number): void {
    Atomics.and(this.#words, at.ready, ~(1 << number));
  }

  /** Resolves when the thread has let go of what it sleeps on. */
  async close(): Promise<void> {
    Atomics.store(this.#words, at.stop, 1);
    this.#ring();
    this.#work.ref();
    await this.#work.over;
  }
}

/** Nothing is missed by a longer sleep, but a thread that sleeps cannot be ended from outside. */
const LONGEST_SLEEP_MICROSECONDS = 500_000;

export function run({ source, words: buffer, wake: wakeBuffer }: WatchData): void {
  bindDeclaredFunctions();
  const words = new Int32Array(buffer);
  const wake = new WakeWord(wakeBuffer);
  const sleep = 'futex' in source ? sleepOnFutex(source.futex, words) : sleepOnSet(source.readiness, words);
  Atomics.store(words, at.isRunning, 1);
  while (Atomics.load(words, at.stop) === 0) if (sleep()) wake.ring();
}

/** Returns what sleeps once, and tells whether something happened. */
function sleepOnFutex(address: number, words: Int32Array): () => boolean {
  const word = new Int32Array(viewAt(address, 4));
  const futex = new Futex(word);
  let seen = Atomics.load(word, 0);
  return () => {
    // The loop looks every millisecond where the kernel refuses to let it sleep.
    if (!futex.waitBlocking(seen, LONGEST_SLEEP_MICROSECONDS * 1000)) Atomics.wait(words, at.stop, 0, 1);
    const before = seen;
    seen = Atomics.load(word, 0);
    return seen !== before;
  };
}

function sleepOnSet(descriptor: number, words: Int32Array): () => boolean {
  const readiness = new ReadinessSet(descriptor);
  return () => {
    const count = readiness.poll();
    for (let index = 0; index < count; index++) Atomics.or(words, at.ready, 1 << readiness.numberAt(index));
    if (count === 0) readiness.sleep(LONGEST_SLEEP_MICROSECONDS);
    return count > 0;
  };
}
