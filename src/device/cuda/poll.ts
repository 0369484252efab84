// Waits for the device without blocking the event loop: polls a little, lets others run, polls again.
import { setImmediate as nextTurn, setTimeout as sleep } from 'node:timers/promises';
import { WeftlineError } from '../../core/errors.ts';
import { beginWait, endWait, type WaitEntry } from '../../core/waits.ts';

/** Longest stretch of polling in one turn of the event loop. */
const TURN_MS = 0.2;
/** A wait that lasts longer than this sleeps between looks, to leave the core to others. */
const EAGER_MS = 20;

export interface PollOptions {
  readonly timeoutMs: number;
  readonly signal?: AbortSignal | undefined;
  /** What is waited for, in the error: "the copy of 4 MiB". */
  readonly what: string;
}

/** Resolves when `ready` returns true. Fails with WL_TIMEOUT, the signal's reason, or whatever `ready` throws. */
export async function pollUntil(ready: () => boolean, options: PollOptions): Promise<void> {
  const start = performance.now();
  const { timeoutMs, signal, what } = options;
  let entry: WaitEntry | undefined;
  try {
    for (;;) {
      const turn = performance.now();
      do {
        if (ready()) return;
      } while (performance.now() - turn < TURN_MS);
      signal?.throwIfAborted();
      const waited = performance.now() - start;
      if (waited >= timeoutMs) {
        throw new WeftlineError('WL_TIMEOUT', `${what} did not finish within ${timeoutMs} ms`, {
          details: { timeoutMs },
        });
      }
      // Which ranks a kernel waits for is not known here.
      entry ??= beginWait({ waitFacts: () => ({ operation: `GPU: ${what}` }) }, start + timeoutMs);
      await (waited < EAGER_MS ? nextTurn() : sleep(1));
    }
  } finally {
    if (entry !== undefined) endWait(entry);
  }
}
