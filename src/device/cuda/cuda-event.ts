// A point in a stream: other streams wait for it on the device, the host polls it, two of them give a time.
import { checkTimeout, type WaitOptions } from '../../core/deadline.ts';
import { setImmediate as nextTurn, setTimeout as sleep } from 'node:timers/promises';
import { WeftlineError } from '../../core/errors.ts';
import { beginWait, endWait, type WaitEntry } from '../../core/waits.ts';
import type { Out } from '../../native/library.ts';
import type { DeviceEvent } from '../device.ts';
import { CUDA_ERROR_NOT_READY, type CudaContext, OwnedResource } from './cuda-context.ts';

// Waits for the device without blocking the event loop: polls a little, lets others run, polls again.

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
      // The ranks that a kernel waits for are not known here.
      entry ??= beginWait({ waitFacts: () => ({ operation: `GPU: ${what}` }) }, start + timeoutMs);
      await (waited < EAGER_MS ? nextTurn() : sleep(1));
    }
  } finally {
    if (entry !== undefined) endWait(entry);
  }
}

const DISABLE_TIMING = 2;

interface EventDefaults {
  readonly timing: boolean;
  readonly timeoutMs: number;
}

export class CudaEvent extends OwnedResource implements DeviceEvent {
  /** CUevent. */
  readonly handle: number;
  readonly #defaults: EventDefaults;
  /** Handle of the stream on which it was recorded last. */
  #stream: number | undefined;

  /** @internal Use device.createEvent(). */
  constructor(context: CudaContext, defaults: EventDefaults) {
    super(context);
    const handle: Out = [0];
    context.call('cuEventCreate', handle, defaults.timing ? 0 : DISABLE_TIMING);
    this.handle = handle[0];
    this.#defaults = defaults;
    context.own(this);
  }

  /** Marks what was enqueued on the stream so far; replaces an earlier mark. */
  record(stream: { readonly handle: number }): this {
    this.context.enter();
    this.context.check('cuEventRecord', this.context.driver.cuEventRecord(this.handle, stream.handle));
    this.#stream = stream.handle;
    return this;
  }

  /** True when the work before the mark is done, or nothing was recorded. Does not wait. */
  isDone(): boolean {
    this.context.enter();
    const status = this.context.driver.cuEventQuery(this.handle);
    if (status === CUDA_ERROR_NOT_READY) return false;
    this.context.check('cuEventQuery', status);
    return true;
  }

  /** Resolves when the work before the mark is done. Fails with WL_TIMEOUT, or WL_CUDA when that work failed. */
  async wait(options: WaitOptions = {}): Promise<void> {
    this.context.refuseCapture('a wait of the host for an event');
    await pollUntil(() => this.context.isGood(this.isDone(), this.#stream), {
      timeoutMs: checkTimeout(options.timeoutMs ?? this.#defaults.timeoutMs),
      signal: options.signal,
      what: `The work before an event of GPU ${this.context.ordinal}`,
    });
  }

  /** Time between two marks that are done, both of events with timing. */
  millisecondsSince(start: CudaEvent): number {
    const milliseconds: Out = [0];
    this.context.call('cuEventElapsedTime', milliseconds, start.handle, this.handle);
    return milliseconds[0];
  }

  /** @internal */
  override release(): void {
    this.context.release('cuEventDestroy', this.handle);
  }
}
