// Threads of the library, each of which does one work after another: the memory that koffi takes for a thread is never given back.
import {
  getEnvironmentData,
  MessageChannel,
  type MessagePort,
  receiveMessageOnPort,
  type Worker,
} from 'node:worker_threads';
import { packageFile } from '../core/package-file.ts';
import type { ThreadOrder } from './pool-worker.ts';
import { startWorker, TRACED_THREADS } from './start-worker.ts';

interface ThreadWork {
  /** A module that exports `run(data, port)`. Its work is over when that has returned and the thread has nothing left to wait for. */
  readonly entry: URL;
  /** What debuggers and profilers show, after `weftline-`. */
  readonly name: string;
  readonly data: unknown;
  /** Hears what the work posts to its port: all of it before `onEnd` is called. */
  readonly onMessage?: (message: unknown) => void;
  /** Called once, when the work does not go on: with what it threw, or undefined. */
  readonly onEnd: (cause: unknown) => void;
}

/** Threads without work, by what they can be used for: the modules that a thread has imported stay loaded. */
const idle = new Map<string, PoolThread[]>();

/** A work on a thread of its own, which keeps the process alive until `unref()` is called. */
export class PooledWork {
  /** The other end of the port that the work was given, which does not keep the process alive. Closed when it is over. */
  readonly port: MessagePort;
  /** Resolves when the work is over, however it ended. */
  readonly over: Promise<void>;
  readonly #thread: PoolThread;
  #isOver = false;

  /** Fails as structured cloning does if `data` cannot be sent; then nothing has begun. */
  constructor({ entry, name, data, onMessage, onEnd }: ThreadWork) {
    const { port1, port2 } = new MessageChannel();
    this.port = port1;
    this.#thread = takeThread(entry, name);
    const overs: (() => void)[] = [];
    this.over = new Promise((resolve) => overs.push(resolve));
    let isTold = false;
    const tell = (cause: unknown): void => {
      if (isTold) return;
      isTold = true;
      // What was posted last may not have been taken yet: that the work is over comes another way.
      if (onMessage !== undefined) takeMessages(port1, onMessage);
      onEnd(cause);
    };
    const end = (): void => {
      tell(undefined);
      this.#isOver = true;
      port1.close();
      for (const settle of overs) settle();
    };
    try {
      this.#thread.begin({ entry: entry.href, data, port: port2 }, { fail: tell, end });
    } catch (error) {
      port1.close();
      throw error;
    }
    if (onMessage === undefined) return;
    port1.on('message', onMessage);
    port1.unref();
  }

  ref(): void {
    if (!this.#isOver) this.#thread.worker.ref();
  }

  unref(): void {
    if (!this.#isOver) this.#thread.worker.unref();
  }

  /** The work has failed, and nobody knows what it leaves behind: its thread ends with it. */
  spoil(): void {
    if (!this.#isOver) this.#thread.isSpoiled = true;
  }

  /** Ends the work now, and its thread. */
  terminate(): void {
    if (this.#isOver) return;
    // It may have said already that it has no work.
    this.#thread.isSpoiled = true;
    void this.#thread.worker.terminate();
  }
}

/** Hands on what waits to be read, without a turn of the event loop. */
export function takeMessages(port: MessagePort, take: (message: unknown) => void): void {
  for (let next = receiveMessageOnPort(port); next !== undefined; next = receiveMessageOnPort(port)) take(next.message);
}

interface PresentWork {
  readonly fail: (cause: unknown) => void;
  readonly end: () => void;
}

class PoolThread {
  /** The thread is not to be used again. */
  isSpoiled = false;
  readonly worker: Worker;
  readonly #among: PoolThread[];
  #work: PresentWork | undefined;

  constructor(name: string, among: PoolThread[]) {
    this.#among = among;
    // What a work opens it closes itself, and Node does not know of descriptors that come from native calls.
    const pooled = packageFile('./pool-worker.js', import.meta.url);
    this.worker = startWorker(pooled, { name, trackUnmanagedFds: false });
    this.worker.on('message', () => this.#over());
    this.worker.on('error', (cause) => this.#work?.fail(cause));
    this.worker.once('exit', () => this.#gone());
  }

  begin(order: ThreadOrder, work: PresentWork): void {
    this.worker.ref();
    try {
      this.worker.postMessage(order, [order.port]);
    } catch (error) {
      this.#rest();
      throw error;
    }
    this.#work = work;
  }

  #over(): void {
    this.#endWork();
    if (!this.isSpoiled) this.#rest();
    else void this.worker.terminate();
  }

  #rest(): void {
    this.worker.unref();
    this.#among.push(this);
  }

  #gone(): void {
    const at = this.#among.indexOf(this);
    if (at !== -1) this.#among.splice(at, 1);
    this.#endWork();
  }

  #endWork(): void {
    const work = this.#work;
    this.#work = undefined;
    work?.end();
  }
}

function takeThread(entry: URL, name: string): PoolThread {
  const isTraced = getEnvironmentData(TRACED_THREADS) !== undefined;
  const key = `${name} ${isTraced ? 'traced ' : ''}${entry.href}`;
  const among = idle.get(key) ?? [];
  idle.set(key, among);
  return among.pop() ?? new PoolThread(name, among);
}
