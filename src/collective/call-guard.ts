// Lets one collective call at a time use an object, because overlapping calls would use the same window.
import { WeftlineError } from '../core/errors.ts';
import { isTraced, traceBegin, traceEnd } from '../core/trace.ts';
import { type ObjectSource, type ObjectState, watchObject } from '../core/waits.ts';

/** How many objects of a kind there have been, by kind and ranks: collective objects are made in one order on all ranks. */
const created = new Map<string, number>();

export class CallGuard implements ObjectSource {
  readonly #object: string;
  readonly #ranks: readonly number[];
  readonly #number: number;
  readonly #unwatch: () => void;
  #calls = 0;
  readonly #labels = new Map<string, string>();
  #last: string | undefined;
  #present: string | undefined;
  #closed = false;

  /** `object` is its name in errors, `ranks` are the world ranks that make its calls together. */
  constructor(object: string, ranks: readonly number[]) {
    this.#object = object;
    this.#ranks = ranks;
    const key = `${object} ${ranks.join()}`;
    this.#number = (created.get(key) ?? 0) + 1;
    created.set(key, this.#number);
    this.#unwatch = watchObject(this);
  }

  objectState(): ObjectState {
    return {
      object: this.#name,
      ranks: this.#ranks,
      calls: this.#calls,
      last: this.#last,
      isRunning: this.#present !== undefined,
    };
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
    this.requireIdle(name);
    this.#present = name;
    this.#last = name;
    this.#calls += 1;
    if (isTraced()) traceBegin('call', this.#calls, this.#label(name));
  }

  end(): void {
    if (isTraced() && this.#present !== undefined) traceEnd('call', this.#calls, this.#label(this.#present));
    this.#present = undefined;
  }

  /** The same text each time, so that a call makes none. */
  #label(name: string): string {
    const known = this.#labels.get(name);
    if (known !== undefined) return known;
    const label = `${this.#name}.${name} of ${rankText(this.#ranks)}`;
    this.#labels.set(name, label);
    return label;
  }

  get #name(): string {
    return this.#number === 1 ? this.#object : `${this.#object} ${this.#number}`;
  }

  /** Fails with WL_CLOSED after close(), WL_INVALID_ARGUMENT while a call runs, which `name` may not overlap. */
  requireIdle(name: string): void {
    this.requireOpen();
    if (this.#present === undefined) return;
    throw new WeftlineError(
      'WL_INVALID_ARGUMENT',
      `Cannot start ${name} on this ${this.#object}: its ${this.#present} has not ended; await it first`,
    );
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
    this.#unwatch();
    return true;
  }
}

/** "0-3" of neighbours, which ranks of a world are; "0,2,5" of others. */
function rankText(ranks: readonly number[]): string {
  const [first = 0, ...rest] = ranks;
  if (rest.length === 0) return String(first);
  const areNeighbours = rest.every((rank, at) => rank === first + at + 1);
  return areNeighbours ? `${first}-${first + rest.length}` : ranks.join(',');
}
