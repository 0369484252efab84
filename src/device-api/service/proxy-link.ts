// How a DeviceHost reaches the thread that serves its queues: starts it, calls it, hears of failures, ends it.
import type { Worker } from 'node:worker_threads';
import { secondNet } from '../../core/deadline.ts';
import { decodeError, WeftlineError } from '../../core/errors.ts';
import { startWorker } from '../../threads/start-worker.ts';
import { WakeWord } from '../../threads/wake-word.ts';
import type { ProxyAnswer, ProxyCall, ProxyWorkerData } from './proxy-messages.ts';

const defaultScript = new URL('./proxy-worker.js', import.meta.url);

export interface ProxyLinkOptions {
  /** What the thread may take for a call, its start included; by default what the waits of kernels may take. */
  readonly timeoutMs?: number;
  /** What it runs. */
  readonly script?: URL;
}

interface PendingCall {
  readonly resolve: (result: unknown) => void;
  readonly reject: (error: WeftlineError) => void;
  readonly timer: NodeJS.Timeout;
}

export class ProxyLink implements AsyncDisposable {
  readonly wake: WakeWord = new WakeWord();
  readonly #worker: Worker;
  readonly #timeoutMs: number;
  readonly #calls = new Map<number, PendingCall>();
  readonly #onFailure: (error: WeftlineError) => void;
  #ended: WeftlineError | undefined;
  #nextCall = 1;
  #isClosing = false;

  /** `onFailure` hears of commands that failed, once per cause, and of the thread's end unless it was closed. */
  constructor(
    data: Omit<ProxyWorkerData, 'wake'>,
    onFailure: (error: WeftlineError) => void,
    { timeoutMs = data.settings.timeoutMs, script = defaultScript }: ProxyLinkOptions = {},
  ) {
    this.#timeoutMs = timeoutMs;
    const workerData: ProxyWorkerData = { ...data, wake: this.wake.buffer };
    this.#onFailure = onFailure;
    this.#worker = startWorker(script, {
      workerData,
      name: 'proxy',
      // Descriptors of memory files come from native calls, which Node does not know of.
      trackUnmanagedFds: false,
    });
    this.#worker.on('message', (answer: ProxyAnswer) => this.#handle(answer));
    this.#worker.on('error', (cause) => this.#end(cause));
    this.#worker.on('exit', () => this.#end(undefined));
    this.#worker.unref();
  }

  /**
   * Fails with what the thread answers; with WL_TIMEOUT some time after the thread should have failed itself. One that does
   * not even begin or stop to serve is ended.
   */
  call(call: ProxyCall): Promise<unknown> {
    if (this.#ended !== undefined) return Promise.reject(this.#ended);
    const id = this.#nextCall++;
    return new Promise((resolve, reject) => {
      if (this.#calls.size === 0) this.#worker.ref();
      const timer = setTimeout(() => this.#giveUp(id, call), secondNet(this.#timeoutMs));
      this.#calls.set(id, { resolve, reject, timer });
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
      const isStuck = this.#ended !== undefined;
      this.#ended ??= new WeftlineError('WL_CLOSED', 'The device host was closed');
      if (!isStuck) {
        this.#worker.ref();
        await exited;
      }
    }
  }

  #giveUp(id: number, { name }: ProxyCall): void {
    const error = new WeftlineError(
      'WL_TIMEOUT',
      `The thread that serves the command queues did not answer within ${this.#timeoutMs} ms (${name}): it waits for a peer, or for a kernel that does not end`,
      { details: { call: name, timeoutMs: this.#timeoutMs } },
    );
    if (name === 'serve' || name === 'stop') {
      this.#ended ??= error;
      void this.#worker.terminate();
    }
    this.#take(id)?.reject(error);
  }

  #take(id: number): PendingCall | undefined {
    const pending = this.#calls.get(id);
    clearTimeout(pending?.timer);
    this.#calls.delete(id);
    if (this.#calls.size === 0) this.#worker.unref();
    return pending;
  }

  #handle(answer: ProxyAnswer): void {
    if ('failure' in answer) {
      this.#onFailure(decodeError(answer.failure));
      return;
    }
    const pending = this.#take(answer.id);
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
    for (const { timer, reject } of this.#calls.values()) {
      clearTimeout(timer);
      reject(this.#ended);
    }
    this.#calls.clear();
  }
}
