// Accepts connections: hands out those whose callers have proven themselves, and counts the rest.
import { checkOptions } from '../../core/check-options.ts';
import { checkSignal, checkTimeout, type WaitOptions, waitOptionNames } from '../../core/deadline.ts';
import { WeftlineError } from '../../core/errors.ts';
import type { ControlChannel } from '../../meeting/control-channel.ts';
import { MeetingListener, type MeetingListenerOptions } from '../../meeting/listener.ts';
import type { Connection } from './connection.ts';

interface ListenerOptions extends Omit<MeetingListenerOptions, 'serve'> {
  /** Undefined if the application has taken the connection itself. */
  readonly greet: (channel: ControlChannel, listener: TransportListener) => Promise<Connection | undefined>;
  readonly onClose: (listener: TransportListener) => void;
}

/** Maximum connections that wait for accept(); further ones are refused. */
const MAX_READY = 1024;

/** Accepts connections of callers that have authenticated. Closed by `close`, or with its transport. */
export class TransportListener implements Disposable {
  readonly #meeting: MeetingListener;
  readonly #timeoutMs: number;
  readonly #onClose: (listener: TransportListener) => void;
  readonly #ready: Connection[] = [];
  readonly #waiting: { readonly resolve: (c: Connection) => void; readonly reject: (error: unknown) => void }[] = [];
  #isClosed = false;
  #refused = 0;
  #lastRefusal = '';

  /** @internal */
  static async open({ greet, onClose, ...options }: ListenerOptions): Promise<TransportListener> {
    // A caller comes at the earliest after this.
    const serve = (channel: ControlChannel): Promise<void> => listener.#welcome(channel, greet);
    const listener: TransportListener = new TransportListener(
      await MeetingListener.open({ ...options, serve }),
      options.settings.timeoutMs,
      onClose,
    );
    return listener;
  }

  private constructor(meeting: MeetingListener, timeoutMs: number, onClose: (listener: TransportListener) => void) {
    this.#meeting = meeting;
    this.#timeoutMs = timeoutMs;
    this.#onClose = onClose;
  }

  /** The TCP port that it listens at. */
  get port(): number {
    return this.#meeting.port;
  }

  /** The next connection. Fails with WL_TIMEOUT, with WL_CLOSED once the listener is closed, or with the signal's reason. */
  async accept(options: WaitOptions = {}): Promise<Connection> {
    checkOptions(options, waitOptionNames, 'options of accept');
    const { timeoutMs = this.#timeoutMs, signal } = options;
    checkTimeout(timeoutMs);
    checkSignal(signal);
    const ready = this.#takeReady();
    if (ready !== undefined) return ready;
    if (this.#isClosed) throw closed();
    signal?.throwIfAborted();
    return new Promise((resolve, reject) => {
      const settle = (act: () => void): void => {
        clearTimeout(timer);
        signal?.removeEventListener('abort', onAbort);
        const index = this.#waiting.indexOf(entry);
        if (index !== -1) this.#waiting.splice(index, 1);
        act();
      };
      const entry = {
        resolve: (connection: Connection): void => settle(() => resolve(connection)),
        reject: (error: unknown): void => settle(() => reject(error)),
      };
      const onAbort = (): void => entry.reject(signal?.reason);
      const timer = setTimeout(() => entry.reject(this.#nobodyCame(timeoutMs)), timeoutMs);
      signal?.addEventListener('abort', onAbort);
      this.#waiting.push(entry);
    });
  }

  /** @internal It keeps the process alive no longer. */
  unref(): void {
    this.#meeting.unref();
  }

  /** Connections that were handed out stay. Idempotent. */
  close(): void {
    if (this.#isClosed) return;
    this.#isClosed = true;
    this.#meeting.close();
    for (const connection of this.#ready.splice(0)) void connection.close();
    for (const { reject } of this.#waiting.splice(0)) reject(closed());
    this.#onClose(this);
  }

  [Symbol.dispose](): void {
    this.close();
  }

  /** @internal Fails with WL_CAPACITY while as many connections wait to be accepted as may. */
  checkRoom(): void {
    if (this.#waiting.length > 0 || this.#ready.length < MAX_READY) return;
    for (let at = this.#ready.length - 1; at >= 0; at--) {
      if (this.#ready[at]?.error !== undefined) this.#ready.splice(at, 1);
    }
    if (this.#ready.length < MAX_READY) return;
    throw new WeftlineError('WL_CAPACITY', `${MAX_READY} connections to port ${this.port} wait to be accepted`);
  }

  #takeReady(): Connection | undefined {
    for (let ready = this.#ready.shift(); ready !== undefined; ready = this.#ready.shift()) {
      if (ready.error === undefined) return ready;
    }
    return undefined;
  }

  #nobodyCame(timeoutMs: number): WeftlineError {
    const refused = this.#refused;
    const why = refused === 0 ? '' : `; refused: ${refused}, the last one because: ${this.#lastRefusal}`;
    const message = `Nobody connected to port ${this.port} within ${timeoutMs} ms${why}`;
    return new WeftlineError('WL_TIMEOUT', message, { details: { port: this.port, timeoutMs, refused } });
  }

  async #welcome(channel: ControlChannel, greet: ListenerOptions['greet']): Promise<void> {
    try {
      const connection = await greet(channel, this);
      if (connection === undefined) return;
      const waiting = this.#waiting.shift();
      if (waiting !== undefined) waiting.resolve(connection);
      else if (this.#isClosed) void connection.close();
      else this.#ready.push(connection);
    } catch (error) {
      this.#refused += 1;
      this.#lastRefusal = error instanceof Error ? error.message : String(error);
      throw error;
    }
  }
}

function closed(): WeftlineError {
  return new WeftlineError('WL_CLOSED', 'The listener was closed');
}
