// The thread that sleeps on an RDMA device in place of the agent's thread, and wakes that. It touches no queue.
import { rdmaWatchWords as at } from './watch-words.ts';
import { bindDeclaredFunctions } from '../../native/library.ts';
import { ReadinessSet } from '../../native/readiness.ts';
import { ChannelEvents } from '../../native/verbs/library.ts';
import { WakeWord } from '../../threads/wake-word.ts';
import { readinessNumbers, type RdmaWatchOptions } from './rdma-watch-thread-options.ts';

/** Nothing is missed by a longer sleep, but a thread that sleeps cannot be ended from outside. */
const LONGEST_SLEEP_MICROSECONDS = 500_000;

export function run(options: RdmaWatchOptions): void {
  bindDeclaredFunctions();
  const words = new Int32Array(options.words);
  const readiness = new ReadinessSet(options.readiness);
  const channel = options.channel === 0 ? undefined : new ChannelEvents(options.channel);
  const wake = new WakeWord(options.wake);

  function took(number: number): void {
    if (number === readinessNumbers.events) {
      // The agent's thread takes them and adds the descriptor again; until then it would stay readable.
      readiness.remove(options.events);
      Atomics.store(words, at.events, 1);
    } else if (number === readinessNumbers.completions && channel === undefined) {
      // The descriptor stays readable until the agent's thread looks.
      for (const descriptor of options.completions) readiness.remove(descriptor);
      Atomics.store(words, at.isTaken, 1);
    } else if (number === readinessNumbers.completions) channel?.take();
  }

  while (Atomics.load(words, at.stop) === 0) {
    const count = readiness.poll();
    for (let index = 0; index < count; index++) took(readiness.numberAt(index));
    if (count > 0) wake.ring();
    else readiness.sleep(LONGEST_SLEEP_MICROSECONDS);
  }
}
