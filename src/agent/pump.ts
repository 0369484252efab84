// Between waits of an agent: takes in what peers send, because their senders wait for it.
import type { WakeWord } from '../threads/wake-word.ts';

export interface PumpOptions {
  readonly wake: WakeWord;
  readonly isClosing: () => boolean;
  /** Looks at all backends. True if anything happened. */
  readonly poll: () => boolean;
  /** How long the agent may sleep before the next look, in ms; 0: not at all. */
  readonly prepareSleep: () => number;
}

/** It polls at least this often, for events that no backend rings for; where backends must be polled, at most this often. */
const PUMP_MS = 1000;
const LAZY_PUMP_MS = 20;

/** Returns when the agent closes or its backends fail. */
export async function pump({ wake, isClosing, poll, prepareSleep }: PumpOptions): Promise<void> {
  while (!isClosing()) {
    const { seen } = wake;
    let hasNews: boolean;
    try {
      hasNews = poll();
    } catch {
      // The next poll or wait throws the error.
      return;
    }
    const pause = hasNews ? 0 : prepareSleep();
    if (hasNews) await new Promise((resolve) => setImmediate(resolve));
    else if (pause >= LAZY_PUMP_MS) await wake.sleep(seen, Math.min(pause, PUMP_MS));
    else await new Promise((resolve) => setTimeout(resolve, LAZY_PUMP_MS).unref());
  }
}
