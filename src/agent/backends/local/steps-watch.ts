// How an owner finds out which senders may still touch memory that it has just taken back.
import { senderStates } from '../../../abi/agent-mailbox.ts';
import { WeftlineError } from '../../../core/errors.ts';
import { isByteLocked } from '../../../native/libc.ts';
import { headerWord, nameOf, slotWord } from './mailbox-layout.ts';

/** A sender that was within a step when it was first looked at. */
interface Within {
  readonly slot: number;
  readonly agentStep: number;
  readonly copyStep: number;
  /** Undefined until its steps have ended, because a step may begin more work. */
  deviceBegun: number | undefined;
}

/** Steps are shorter than a millisecond: a timer would be late. */
const QUICK_LOOKS = 64;
const PAUSE_MS = 1;

interface StepsWatchOptions {
  readonly buffer: ArrayBuffer;
  /** Of the mailbox, whose bytes senders hold locks of. */
  readonly fd: number;
  readonly senders: number;
  /** The mailbox is about to be unmapped. */
  readonly isClosed: () => boolean;
}

export class StepsWatch {
  readonly #options: StepsWatchOptions;
  readonly #words: Int32Array;

  constructor(options: StepsWatchOptions) {
    this.#options = options;
    this.#words = new Int32Array(options.buffer);
  }

  /**
   * Resolves when no sender is within a step, nor has work on a GPU under way, that began before the call. ORDER: to be
   * called after the keys were taken away, so that every later step finds them gone. A sender that died holds nothing up.
   * Fails with WL_TIMEOUT, naming one that is still within it.
   */
  async untilOver(timeoutMs: number, what: string): Promise<void> {
    let left = this.#look();
    if (left.length === 0) return;
    const end = performance.now() + timeoutMs;
    for (let looks = 1; ; looks += 1) {
      if (looks <= QUICK_LOOKS) await new Promise((resolve) => setImmediate(resolve));
      else await new Promise((resolve) => setTimeout(resolve, PAUSE_MS));
      if (this.#options.isClosed()) return;
      left = left.filter((within) => this.#isWithin(within));
      const [first] = left;
      if (first === undefined) return;
      if (performance.now() > end) throw this.#late(first, timeoutMs, what);
    }
  }

  #look(): Within[] {
    const words = this.#words;
    const { senders } = this.#options;
    const used = Math.min(Atomics.load(words, headerWord.usedSenders), senders);
    const found: Within[] = [];
    for (let slot = 0; slot < used; slot += 1) {
      if (Atomics.load(words, slotWord(slot, 'state')) === senderStates.free) continue;
      const agentStep = Atomics.load(words, slotWord(slot, 'agentStep'));
      const copyStep = Atomics.load(words, slotWord(slot, 'copyStep'));
      const within: Within = { slot, agentStep, copyStep, deviceBegun: undefined };
      if (this.#isWithin(within)) found.push(within);
    }
    return found;
  }

  #isWithin(within: Within): boolean {
    const { slot, agentStep, copyStep } = within;
    if (!this.#isSame(slotWord(slot, 'agentStep'), agentStep) && !this.#isSame(slotWord(slot, 'copyStep'), copyStep)) {
      within.deviceBegun ??= Atomics.load(this.#words, slotWord(slot, 'deviceBegun'));
      const ended = Atomics.load(this.#words, slotWord(slot, 'deviceEnded'));
      if (((ended - within.deviceBegun) | 0) >= 0) return false;
    }
    return isByteLocked(this.#options.fd, 1 + slot);
  }

  /** True while the thread has not left the step that it was in. */
  #isSame(at: number, seen: number): boolean {
    return seen % 2 !== 0 && Atomics.load(this.#words, at) === seen;
  }

  #late({ slot }: Within, timeoutMs: number, what: string): WeftlineError {
    const peer = nameOf(this.#options.buffer, slot);
    return new WeftlineError(
      'WL_TIMEOUT',
      `${what}: agent ${peer} has been copying to or from this agent's memory for ${timeoutMs} ms; the memory takes no new transfers, but must not be used for anything else yet: call again to go on waiting`,
      { details: { peer, timeoutMs } },
    );
  }
}
