// Waiting for a word in memory that another process writes: spin briefly, then sleep in the kernel, never without end.
import { setTimeout as sleep } from 'node:timers/promises';
import { beginWait, endWait, type WaitSource } from '../core/waits.ts';
import { Futex, yieldProcessor } from '../native/libc.ts';
import type { SpinTime } from '../threads/spin-time.ts';

// The words that ranks of a host sleep on, one each: whoever changes what another rank may wait for rings its bell.

interface RankBellsOptions {
  /** Memory that all ranks of the host map. */
  readonly words: Int32Array;
  /** Place in `words` of each rank's bell, and of the word that says that it sleeps. */
  readonly bells: Int32Array;
  readonly sleepers: Int32Array;
  /** This rank. */
  readonly me: number;
}

export class RankBells {
  /** What this rank sleeps on. */
  readonly own: SharedWord;
  readonly #options: RankBellsOptions;
  readonly #futexes: readonly Futex[];

  constructor(options: RankBellsOptions) {
    const { words, bells, sleepers, me } = options;
    const word = (index: number): Int32Array => words.subarray(index, index + 1);
    this.#options = options;
    this.#futexes = Array.from(bells, (bell) => new Futex(word(bell)));
    this.own = { value: word(bells[me]!), waiters: word(sleepers[me]!), futex: this.#futexes[me]! };
  }

  /** Hot path. Something that the rank may wait for has changed, by a sequentially consistent store, and can be seen by now. */
  ring(rank: number): void {
    const { words, bells, sleepers } = this.#options;
    if (Atomics.load(words, sleepers[rank]!) === 0) return;
    Atomics.add(words, bells[rank]!, 1);
    this.#futexes[rank]!.wakeAll();
  }

  /** Hot path. The same for all other ranks. */
  ringAll(): void {
    const { bells, me } = this.#options;
    for (let rank = 0; rank < bells.length; rank++) if (rank !== me) this.ring(rank);
  }
}

/** How long a wait may block the event loop at a time. */
const BLOCKING_SLICE_NS = 1_000_000;
/** Time after which the wait sleeps on a pool thread, so that timers and sockets of this process go on. */
const BLOCKING_LIMIT_MS = 4;
/** How often a long wait looks at deadlines, signals and whether the peers still live. */
const POOL_SLICE_NS = 50_000_000;
/** Slice in place of both, where this thread has other work to look for. */
const WORKING_SLICE_NS = 500_000;
/** Looks between two yields where each rank may have a processor of its own; a yield takes as long as many looks. */
const LOOKS = 16;
/** How long to pause when the kernel refused a sleep. */
const REFUSED_PAUSE_MS = 1;

export interface SharedWord {
  /** One element; the word that is waited for. */
  readonly value: Int32Array;
  /** One element; greater than zero tells the writer that someone sleeps. */
  readonly waiters: Int32Array;
  readonly futex: Pick<Futex, 'wait' | 'waitBlocking' | 'wakeAll'>;
}

/** How a wait looks at its word before it sleeps. Between looks it always gives way to threads that are ready to run. */
export interface WordPoll {
  /** Learns from each wait. */
  readonly spin: SpinTime;
  /** Whether to give way after each look, as whoever is waited for may need this processor. */
  readonly isCrowded: boolean;
}

interface WordWait {
  /** True when the wait is over. */
  ready(): boolean;
  /** Called between sleeps; throws to give up (deadline, abort, a peer that is gone). */
  check(): void;
  /** How long to look before it sleeps. Absent: not at all. */
  readonly poll?: WordPoll;
  /** Tells those who ask what this is, and until when. */
  readonly source: WaitSource;
  /** End of the wait, on the clock of performance.now(). */
  readonly endsAt: number;
  /** What else this thread has to do for others meanwhile, often. Absent: nothing, and sleeps may be long. */
  readonly work?: (() => void) | undefined;
  /** Asked before each sleep: whether the word is rung for that work too, so that sleeps may be long. Absent: it is not. */
  readonly isRung?: (() => boolean) | undefined;
}

/**
 * Resolves when `ready()` holds; undefined if it did before this thread had to sleep. A change of the word is never missed:
 * it is read before `ready()`, and the kernel refuses to sleep when it has changed since. What `check()` looks at may change
 * just before a sleep; it is then seen one slice later. If the kernel cannot let this process sleep, the wait looks again until
 * `check()` ends it: a shortage that passes must not cost all ranks their window.
 */
export function waitForWord(word: SharedWord, wait: WordWait): Promise<void> | undefined {
  const { poll } = wait;
  if (wait.ready()) {
    poll?.spin.learn(0);
    return undefined;
  }
  const begin = performance.now();
  if (poll === undefined || !pollWord(wait, poll, begin)) return sleepOnWord(word, wait, begin);
  poll.spin.learn(performance.now() - begin);
  return undefined;
}

async function sleepOnWord(word: SharedWord, wait: WordWait, begin: number): Promise<void> {
  const entry = beginWait(wait.source, wait.endsAt);
  try {
    await sleepUntilReady(word, wait, entry.since);
  } finally {
    endWait(entry);
  }
  wait.poll?.spin.learn(performance.now() - begin);
}

async function sleepUntilReady(word: SharedWord, wait: WordWait, started: number): Promise<void> {
  const { work } = wait;
  while (true) {
    wait.check();
    work?.();
    Atomics.add(word.waiters, 0, 1);
    try {
      const seen = Atomics.load(word.value, 0);
      if (wait.ready()) return;
      const isShort = performance.now() - started < BLOCKING_LIMIT_MS;
      const mayBeLong = work === undefined || wait.isRung?.() === true;
      const blockingSlice = mayBeLong ? BLOCKING_SLICE_NS : WORKING_SLICE_NS;
      const poolSlice = mayBeLong ? POOL_SLICE_NS : WORKING_SLICE_NS;
      const hasSlept = isShort ? word.futex.waitBlocking(seen, blockingSlice) : await word.futex.wait(seen, poolSlice);
      if (!hasSlept) await sleep(REFUSED_PAUSE_MS);
    } finally {
      Atomics.sub(word.waiters, 0, 1);
    }
    if (wait.ready()) return;
  }
}

/** Publishes that the word changed: wakes the sleepers, if there are any. */
export function wakeWord(word: SharedWord): void {
  if (Atomics.load(word.waiters, 0) !== 0) word.futex.wakeAll();
}

/** True when the wait is over. */
function pollWord(wait: WordWait, { spin, isCrowded }: WordPoll, begin: number): boolean {
  const end = begin + spin.milliseconds;
  const looks = isCrowded ? 1 : LOOKS;
  let now = begin;
  do {
    for (let look = 0; look < looks; look++) if (wait.ready()) return true;
    const before = now;
    yieldProcessor();
    now = performance.now();
    // Others compute on this processor. The scheduler lets a woken thread go before them, but not one that polls.
    if (spin.lent(now - before)) return wait.ready();
  } while (now < end);
  return false;
}
