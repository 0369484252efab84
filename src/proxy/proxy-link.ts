// How a DeviceHost reaches the thread that serves its queues: starts it, calls it, hears of failures, ends it.
import { Worker } from 'node:worker_threads';
import { decodeError, WeftlineError } from '../core/errors.ts';
import { WakeWord } from '../core/wake-word.ts';
import type { ProxyAnswer, ProxyCall, ProxyWorkerData } from './proxy-messages.ts';

interface PendingCall {
  readonly resolve: (result: unknown) => void;
  readonly reject: (error: WeftlineError) => void;
}

export class ProxyLink implements AsyncDisposable {
  readonly wake: WakeWord = new WakeWord();
  readonly #worker: Worker;
  readonly #calls = new Map<number, PendingCall>();
  readonly #onFailure: (error: WeftlineError) => void;
  #ended: WeftlineError | undefined;
  #nextCall = 1;
  #isClosing = false;

  /** `onFailure` hears of commands that failed, once per cause, and of the thread's end unless it was closed. */
  constructor(options: Omit<ProxyWorkerData, 'wake'>, onFailure: (error: WeftlineError) => void) {
    const workerData: ProxyWorkerData = { ...options, wake: this.wake.buffer };
    this.#onFailure = onFailure;
    this.#worker = new Worker(new URL('./proxy-worker.js', import.meta.url), {
      workerData,
      name: 'weftline-proxy',
      // Descriptors of memory files come from native calls, which Node does not know of.
      trackUnmanagedFds: false,
    });
    this.#worker.on('message', (answer: ProxyAnswer) => this.#handle(answer));
    this.#worker.on('error', (cause) => this.#end(cause));
    this.#worker.on('exit', () => this.#end(undefined));
    this.#worker.unref();
  }

  call(call: ProxyCall): Promise<unknown> {
    if (this.#ended !== undefined) return Promise.reject(this.#ended);
    const id = this.#nextCall++;
    return new Promise((resolve, reject) => {
      if (this.#calls.size === 0) this.#worker.ref();
      this.#calls.set(id, { resolve, reject });
      this.#worker.postMessage({ id, call });
      this.wake.ring();
    });
  }

  /** Closes the agent and ends the thread. Idempotent. */
  async [Symbol.asyncDispose](): Promise<void> {
    if (this.#ended !== undefined) return;
    this.#isClosing = true;
    const exited = new Promise<void>((resolve) => this.#worker.once('exit', () => resolve()));
    try {
      await this.call({ name: 'stop' });
    } finally {
      this.#ended ??= new WeftlineError('WL_CLOSED', 'The device host was closed');
      this.#worker.ref();
      await exited;
    }
  }

  #handle(answer: ProxyAnswer): void {
    if ('failure' in answer) {
      this.#onFailure(decodeError(answer.failure));
      return;
    }
    const pending = this.#calls.get(answer.id);
    this.#calls.delete(answer.id);
    if (this.#calls.size === 0) this.#worker.unref();
    if ('error' in answer) pending?.reject(decodeError(answer.error));
    else pending?.resolve(answer.result);
  }

  #end(cause: unknown): void {
    if (this.#ended === undefined) {
      const why = cause instanceof Error ? `: ${cause.message}` : '';
      this.#ended = new WeftlineError('WL_INTERNAL', `The thread that serves the command queues ended${why}`, {
        cause,
      });
      // Kernels would wait until their deadlines for what nobody does any more.
      if (!this.#isClosing) this.#onFailure(this.#ended);
    }
    for (const pending of this.#calls.values()) pending.reject(this.#ended);
    this.#calls.clear();
  }
}
