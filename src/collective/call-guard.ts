// Lets one collective call at a time use an object, because overlapping calls would use the same window.
import { WeftlineError } from '../core/errors.ts';

export class CallGuard {
  readonly #object: string;
  #present: string | undefined;
  #closed = false;

  /** `object` is its name in errors. */
  constructor(object: string) {
    this.#object = object;
  }

  /** Runs the call, or fails with WL_CLOSED after close(), WL_INVALID_ARGUMENT while another one runs. */
  async run<T>(name: string, call: () => Promise<T>): Promise<T> {
    this.begin(name);
    try {
      return await call();
    } finally {
      this.end();
    }
  }

  /** Hot path. The same for a call that is no promise; end() must follow, however it ends. */
  begin(name: string): void {
    this.requireOpen();
    if (this.#present !== undefined) {
      throw new WeftlineError(
        'WL_INVALID_ARGUMENT',
        `Cannot start ${name} on this ${this.#object}: its ${this.#present} has not ended; await it first`,
      );
    }
    this.#present = name;
  }

  end(): void {
    this.#present = undefined;
  }

  requireOpen(): void {
    if (this.#closed) throw new WeftlineError('WL_CLOSED', `This ${this.#object} was closed`);
  }

  /** True the first time. Fails while a call runs: its kernels still use the memory. */
  close(): boolean {
    if (this.#closed) return false;
    if (this.#present !== undefined) {
      throw new WeftlineError(
        'WL_INVALID_ARGUMENT',
        `Cannot close this ${this.#object} while its ${this.#present} runs; await it first`,
      );
    }
    this.#closed = true;
    return true;
  }
}
