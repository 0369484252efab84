// How a ProxyService reaches the thread that serves its queues: starts it, calls it, hears of failures, ends it.
import type { CallWait } from '../../core/deadline.ts';
import { decodeError, type EncodedError, type WeftlineError } from '../../core/errors.ts';
import { packageFile } from '../../core/package-file.ts';
import { WakeWord } from '../../threads/wake-word.ts';
import { type ArgumentOf, type ResultOf, WorkerLink } from '../../threads/worker-link.ts';
import type { ProxyCalls, ProxyThread } from './proxy-messages.ts';

interface ProxyLinkOptions {
  /** What the thread may take for a call, its start included; by default what the waits of kernels may take. */
  readonly timeoutMs?: number;
  /** What it runs. */
  readonly script?: URL;
}

export class ProxyLink implements AsyncDisposable {
  readonly wake: WakeWord = new WakeWord();
  readonly #link: WorkerLink<ProxyCalls, EncodedError>;

  /** `onFailure` hears of commands that failed, once per cause, and of the thread's end unless it was closed. */
  constructor(
    data: Omit<ProxyThread, 'wake'>,
    onFailure: (error: WeftlineError) => void,
    { timeoutMs = data.settings.timeoutMs, script }: ProxyLinkOptions = {},
  ) {
    const thread: ProxyThread = { ...data, wake: this.wake.buffer };
    this.#link = new WorkerLink({
      entry: script ?? packageFile('./proxy-worker.js', import.meta.url),
      name: 'proxy',
      what: 'thread that serves the command queues',
      closedMessage: 'The device host was closed',
      data: thread,
      timeoutMs,
      lateReason: 'it waits for a peer, or for a kernel that does not end',
      onCall: () => this.wake.ring(),
      onEvent: (error) => onFailure(decodeError(error)),
      // Otherwise kernels would wait until their deadlines for a thread that is gone.
      onEnd: onFailure,
    });
  }

  /**
   * Fails with what the thread answers; with WL_TIMEOUT some time after the thread should have failed itself. One that does
   * not even begin or stop to serve is ended.
   */
  call<Name extends keyof ProxyCalls>(
    name: Name,
    ...argument: ArgumentOf<ProxyCalls, Name>
  ): Promise<ResultOf<ProxyCalls, Name>> {
    return this.#link.callWith({ endsThread: name === 'serve' }, name, ...argument);
  }

  /** The same with a time of its own, or until the signal ends the wait. */
  callWithin<Name extends keyof ProxyCalls>(
    { timeoutMs, signal }: CallWait,
    name: Name,
    ...argument: ArgumentOf<ProxyCalls, Name>
  ): Promise<ResultOf<ProxyCalls, Name>> {
    return this.#link.callWith({ timeoutMs, signal }, name, ...argument);
  }

  /** Closes the agent and ends the thread. Idempotent. */
  [Symbol.asyncDispose](): Promise<void> {
    return this.#link.stop();
  }
}
