// Lets one collective call at a time use an object, because overlapping calls would use the same window.
import type { TracingChannel } from 'node:diagnostics_channel';
import { beginChannelCall, callChannel, type CallContext, endChannelCall } from '../core/call-channels.ts';
import { countError } from '../core/counts.ts';
import { WeftlineError } from '../core/errors.ts';
import { isTraced, traceBegin, traceEnd } from '../core/trace.ts';
import { type ObjectSource, type ObjectState, watchObject } from '../core/waits.ts';

/** How many objects of a kind there have been, by kind and ranks: collective objects are made in one order on all ranks. */
const created = new Map<string, number>();

/** What all calls of one name share. */
interface NamedCall {
  readonly name: string;
  /** The same text each time, so that a call makes none. */
  readonly label: string;
  readonly channel: TracingChannel<unknown, object>;
}

export class CallGuard implements ObjectSource {
  /** What the present call carries for this rank, in bytes, for those who measure it; 0 until the call has said so. */
  bytes = 0;
  readonly #object: string;
  readonly #ranks: readonly number[];
  readonly #number: number;
  readonly #unwatch: () => void;
  #calls = 0;
  readonly #named = new Map<string, NamedCall>();
  /** The one that ran last: as a rule the next is of the same name. */
  #latest: NamedCall | undefined;
  /** The context of a call whose begin listeners were told. */
  #told: CallContext | undefined;
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

  /** Hot path. */
  get isRunning(): boolean {
    return this.#present !== undefined;
  }

  /** Runs the call, or fails with WL_CLOSED after close(), WL_INVALID_ARGUMENT while another one runs. */
  async run<T>(name: string, call: () => Promise<T>): Promise<T> {
    this.begin(name);
    let failure: unknown;
    try {
      return await call();
    } catch (error) {
      failure = error;
      throw error;
    } finally {
      this.end(failure);
    }
  }

  /** Hot path. The same for a call that is no promise; end() must follow, however it ends. */
  begin(name: string): void {
    this.requireIdle(name);
    this.#present = name;
    this.#last = name;
    this.#calls += 1;
    this.bytes = 0;
    const named = this.#latest?.name === name ? this.#latest : this.#nameCall(name);
    if (named.channel.hasSubscribers) this.#tell(named);
    if (isTraced()) traceBegin('call', this.#calls, named.label);
  }

  /** `failure`: what the call threw. */
  end(failure?: unknown): void {
    const named = this.#latest;
    if (this.#present === undefined || named === undefined) return;
    if (isTraced()) traceEnd('call', this.#calls, named.label, this.bytes);
    this.#present = undefined;
    if (failure !== undefined) countError(failure);
    if (this.#told === undefined) return;
    const context = this.#told;
    this.#told = undefined;
    if (failure !== undefined) context.error = failure;
    endChannelCall(named.channel, context);
  }

  #tell({ name, channel }: NamedCall): void {
    this.#told = { object: this.#name, call: name, number: this.#calls, ranks: this.#ranks };
    beginChannelCall(channel, this.#told);
  }

  #nameCall(name: string): NamedCall {
    let named = this.#named.get(name);
    if (named === undefined) {
      const label = `${this.#name}.${name} of ${rankText(this.#ranks)}`;
      named = { name, label, channel: callChannel(this.#object, name) };
      this.#named.set(name, named);
    }
    this.#latest = named;
    return named;
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

/**
 * The calls of an object that may be posted before earlier ones have ended. Whether an earlier one has ended is a matter of time
 * and differs between the ranks; that calls are carried out in order does not. Nothing is made for calls that do not overlap.
 */
export class CallQueue {
  readonly #object: string;
  readonly #guard: CallGuard;
  /** The last call that was posted; of meaning only while the queue is busy. */
  #last: Promise<unknown> = Promise.resolve();
  #waiting = 0;
  #closing: Promise<void> | undefined;

  /** `object` is its name in errors. */
  constructor(object: string, guard: CallGuard) {
    this.#object = object;
    this.#guard = guard;
  }

  /** Hot path. Whether what is posted now must wait for its turn. */
  get isBusy(): boolean {
    return this.#waiting > 0 || this.#guard.isRunning;
  }

  /** Fails with WL_CLOSED from the posting of close() on, though calls that were posted before may still wait. */
  requireOpen(): void {
    if (this.#closing !== undefined) throw new WeftlineError('WL_CLOSED', `This ${this.#object} was closed`);
  }

  /** Fails while a call runs or waits. */
  requireIdle(name: string): void {
    this.#guard.requireIdle(name);
    if (this.#waiting === 0) return;
    throw new WeftlineError(
      'WL_INVALID_ARGUMENT',
      `Cannot start ${name} on this ${this.#object}: ${this.#waiting} of its calls wait for their turn; await them first`,
    );
  }

  /** Hot path. Of a call at its posting, never at its turn, when others may wait behind it: what is posted next waits for it. */
  follow<T>(call: Promise<T>): Promise<T> {
    this.#last = call;
    return call;
  }

  /** Begins the call now if nothing is before it, else when that has ended. If that fails, the call fails with the same error and never begins. */
  post<T>(begin: () => Promise<T>): Promise<T> {
    return this.follow(this.isBusy ? this.#inTurn(begin, this.#last) : begin());
  }

  /** Carried out behind all calls that were posted before, however they end. */
  close(end: () => Promise<void>): Promise<void> {
    this.#closing ??= this.isBusy
      ? this.#inTurn(
          end,
          this.#last.catch(() => undefined),
        )
      : end();
    return this.#closing;
  }

  #inTurn<T>(begin: () => Promise<T>, before: Promise<unknown>): Promise<T> {
    this.#waiting += 1;
    return before.then(
      () => {
        this.#waiting -= 1;
        return begin();
      },
      (error: unknown) => {
        this.#waiting -= 1;
        throw error;
      },
    );
  }
}
