// A send, receive, write or read of an endpoint: asked whether it is done, or waited for.
import { beginWait, endWait } from '../../core/waits.ts';
import { WeftlineError } from '../../core/errors.ts';
import { checkOptions } from '../../core/check-options.ts';
import { checkTimeout, type WaitOptions, waitOptionNames } from '../../core/deadline.ts';

/** Something that was begun on a connection: its state, its end, and how to wait for it. */
export class Operation {
  /** For errors: "A send of 4096 bytes to 10.0.0.2". */
  readonly #what: string;
  readonly #timeoutMs: number;
  readonly #ended: Promise<void>;
  #end: () => void = () => {};
  #bytes: number | undefined;
  #error: WeftlineError | undefined;

  /** @internal */
  constructor(what: string, timeoutMs: number) {
    this.#what = what;
    this.#timeoutMs = timeoutMs;
    this.#ended = new Promise((resolve) => (this.#end = resolve));
  }

  /** Done means delivered. Never waits. */
  get state(): 'pending' | 'done' | 'failed' {
    if (this.#error !== undefined) return 'failed';
    return this.#bytes === undefined ? 'pending' : 'done';
  }

  /** Why it failed. */
  get error(): WeftlineError | undefined {
    return this.#error;
  }

  /** Resolves to the bytes that were moved. Fails with why it failed, with WL_TIMEOUT (it then goes on) or the signal's reason. */
  async wait(options: WaitOptions = {}): Promise<number> {
    checkOptions(options, waitOptionNames, 'options of wait');
    const { timeoutMs = this.#timeoutMs, signal } = options;
    signal?.throwIfAborted();
    if (this.state === 'pending') await this.#wait(checkTimeout(timeoutMs), signal);
    if (this.#error !== undefined) throw this.#error;
    signal?.throwIfAborted();
    if (this.#bytes !== undefined) return this.#bytes;
    throw new WeftlineError('WL_TIMEOUT', `${this.#what} did not end within ${timeoutMs} ms`, {
      details: { timeoutMs },
    });
  }

  /** @internal */
  finish(bytes: number): void {
    if (this.state !== 'pending') return;
    this.#bytes = bytes;
    this.#end();
  }

  /** @internal */
  fail(error: WeftlineError): void {
    if (this.state !== 'pending') return;
    this.#error = error;
    this.#end();
  }

  async #wait(timeoutMs: number, signal: AbortSignal | undefined): Promise<void> {
    const entry = beginWait(
      { waitFacts: () => ({ operation: `${this.#what} has not ended` }) },
      performance.now() + timeoutMs,
    );
    await new Promise<void>((resolve) => {
      const over = (): void => {
        endWait(entry);
        clearTimeout(timer);
        signal?.removeEventListener('abort', over);
        resolve();
      };
      const timer = setTimeout(over, timeoutMs);
      signal?.addEventListener('abort', over);
      void this.#ended.then(over);
    });
  }
}
