// The agent's side of the UCX worker: works for it whenever the agent looks, and shares it with a thread for the rest of the time.
import { DRIVER_WORDS, driverWords as at, tableWord, threadStates } from '../../../abi/ucx-words.ts';
import { MessageChannel, type MessagePort, receiveMessageOnPort, type Worker } from 'node:worker_threads';
import { decodeError, type EncodedError, WeftlineError } from '../../../core/errors.ts';
import { packageFile } from '../../../core/package-file.ts';
import { SharedLock } from '../../../threads/shared-lock.ts';
import { startWorker } from '../../../threads/start-worker.ts';
import type { WakeWord } from '../../../threads/wake-word.ts';
import { NativeBlock } from '../../../native/native-block.ts';
import { Doorbell } from '../../../native/readiness.ts';
import { ArenaLayout } from './arena-layout.ts';
import { LinkTable } from './link-table.ts';
import { keepForever } from './memory-use.ts';
import { PROCESS_CHECK_MS, ProcessWatch } from './process-watch.ts';
import { RemoteRegions } from './remote-regions.ts';
import { UcxContext } from './ucx-context.ts';
import type { OpenRegion } from './ucx-region.ts';
import { UcxEngine } from './ucx-engine.ts';
import { CHANNELS, SLOTS, UcxTables } from './ucx-tables.ts';
import type { UcxThreadOptions } from './ucx-thread.ts';
import type { UcxTransports } from './ucx-transports.ts';
import { UcxWorker } from './ucx-worker.ts';

export interface UcxDriverOptions {
  readonly ownThread: boolean;
  readonly wake: WakeWord;
  readonly spinUs: number;
  readonly transports: UcxTransports;
  /** How long operations with a peer may take to end before its link is ended instead. */
  readonly patienceMs: number;
}

/** A blocking wait goes on looking for this long after the last work. */
const DRIVE_MS = 1;
/** Without a thread of its own nobody rings when something arrives: sleeps last a part of the time since the last work. */
const LONGEST_INLINE_SLEEP_MS = 1;
const INLINE_SLEEP_PART = 0.25;
const LOOKS_PER_CLOCK = 64;
/** How long closing waits until UCX has given up all links: LinkTable breaks off, much sooner, those that make no progress. */
const FAREWELL_MS = 5000;
const FAREWELL_STEPS = 256;

export class UcxDriver {
  readonly tables: UcxTables;
  readonly engine: UcxEngine;
  readonly links: LinkTable;
  readonly context: UcxContext;
  readonly remotes: RemoteRegions;
  readonly patienceMs: number;
  /** Free places of the tables. */
  readonly slots: number[] = countDown(SLOTS);
  readonly channels: number[] = countDown(CHANNELS);
  /** Why nothing works any more. */
  failure: WeftlineError | undefined;
  /** False if all is done within calls of the agent's thread. */
  readonly hasThread: boolean;
  readonly #options: UcxDriverOptions;
  readonly #buffer = new SharedArrayBuffer(DRIVER_WORDS * 4);
  readonly #words = new Int32Array(this.#buffer);
  readonly #lock = new SharedLock(this.#buffer, at.lock * 4);
  readonly #memory = new NativeBlock(UcxTables.bytes);
  readonly #processes = new ProcessWatch();
  readonly #doorbell = Doorbell.create();
  readonly #port: MessagePort;
  #thread: Worker | undefined;
  #seenNews = 0;
  #lastWork = 0;
  #lastCheck = 0;
  #idleLooks = 0;
  #closing: Promise<void> | undefined;
  /** No thread works for it. */
  #isClosed = false;
  /** With its queue pairs. */
  #isDestroyed = false;
  /** Of open regions, so that their memory lives as long. */
  readonly #views: (Uint8Array | undefined)[] = [];

  /** Fails with WL_UNSUPPORTED without libucp, with WL_NATIVE if UCX refuses. */
  constructor(options: UcxDriverOptions) {
    this.#options = options;
    const { ownThread, wake, spinUs, transports } = options;
    this.patienceMs = options.patienceMs;
    this.hasThread = ownThread;
    this.context = new UcxContext({ canSleep: ownThread, transports });
    this.tables = new UcxTables(ArenaLayout.of(this.#memory));
    this.engine = new UcxEngine(new UcxWorker(this.context.handle), this.tables);
    this.tables.words[tableWord.putsAreNative] = transports.putsAreNative ? 1 : 0;
    this.remotes = new RemoteRegions(this.context, this.tables);
    const { context, remotes } = this;
    this.links = new LinkTable(this.engine, { context, remotes, processes: this.#processes, transports });
    this.engine.postReceives();
    const { port1, port2 } = new MessageChannel();
    this.#port = port1;
    port1.unref();
    if (!ownThread) {
      port2.close();
      return;
    }
    const workerData: UcxThreadOptions = {
      words: this.#buffer,
      port: port2,
      tables: this.#memory.address,
      worker: this.context.handle,
      workerFd: this.context.fd,
      doorbell: this.#doorbell.fd,
      processes: this.#processes.fd,
      wake: wake.buffer,
      spinUs,
    };
    const entry = packageFile('./ucx-thread.js', import.meta.url);
    this.#thread = startWorker(entry, { workerData, transferList: [port2], name: 'ucx' });
    this.#thread.on('error', (cause) => this.#failed(cause));
    this.#thread.unref();
  }

  /** Hot path. Before anything that the threads share is touched; then `leave`. */
  enter(): void {
    if (this.failure !== undefined) throw this.failure;
    this.#lock.take();
  }

  leave(): void {
    this.#lock.release();
    this.#wakeThread();
  }

  /** Peers may use the region from now on, with the key that is returned. Fails with WL_NATIVE if UCX refuses the memory. */
  openRegion(number: number, { address, bytes, key, view }: OpenRegion): Uint8Array {
    const { tables } = this;
    this.enter();
    try {
      tables.regionMemory[number] = this.context.map(address, bytes);
      this.#views[number] = view;
      tables.regionAddress[number] = address;
      tables.regionBytes[number] = bytes;
      tables.regionKey[number] = key;
      tables.regionUses[number] = 0;
      const packed = this.context.pack(tables.regionMemory[number]);
      tables.regionIsOpen[number] = 1;
      return packed;
    } finally {
      this.leave();
    }
  }

  /** Under the lock, while there are threads that work. Peers are to use the region no more; to be repeated until they do not. */
  withdraw(number: number): void {
    const { tables } = this;
    tables.regionIsOpen[number] = 0;
    const isOver = this.#closing !== undefined || this.failure !== undefined;
    if (isOver || Atomics.load(this.#words, at.stop) === 1) return;
    for (let index = 0; index < tables.words[tableWord.activeCount]!; index++) {
      this.engine.link(tables.active[index]!).withdraw(number);
    }
  }

  /** Nothing uses it any more. */
  closeRegion(number: number): void {
    const { tables } = this;
    // Closing the worker gives up its memory, too.
    if (this.failure !== undefined || tables.regionMemory[number] === 0) return;
    this.enter();
    this.context.unmap(tables.regionMemory[number]!);
    tables.regionMemory[number] = 0;
    this.#views[number] = undefined;
    this.leave();
  }

  /** Hot path. Works for the worker. True if there is something to look at. */
  look(): boolean {
    if (this.failure !== undefined || Atomics.load(this.#words, at.crashed) === 1) this.#throwFailure();
    if (this.hasLinks) this.#drive();
    const news = Atomics.load(this.tables.words, tableWord.news);
    if (news === this.#seenNews) return false;
    this.#seenNews = news;
    return true;
  }

  get hasLinks(): boolean {
    return this.tables.words[tableWord.activeCount] !== 0;
  }

  /** How long the agent's thread may sleep, in ms. */
  prepareSleep(): number {
    if (Atomics.load(this.tables.words, tableWord.news) !== this.#seenNews) return 0;
    if (!this.hasLinks) return Number.POSITIVE_INFINITY;
    const { ownThread, wake } = this.#options;
    const idle = performance.now() - this.#lastWork;
    if (idle < DRIVE_MS && (wake.isAwaited || !ownThread)) return 0;
    if (!ownThread) return Math.min(LONGEST_INLINE_SLEEP_MS, idle * INLINE_SLEEP_PART);
    Atomics.add(this.#words, at.handOvers, 1);
    Atomics.notify(this.#words, at.handOvers);
    return Number.POSITIVE_INFINITY;
  }

  /**
   * Works until the condition, which is asked under the lock, holds or UCX uses no memory any more, see `isOver`. False if
   * it does not hold in time. Fails with WL_TIMEOUT if a device may use memory that UCX does not give up any more.
   */
  async until(isSo: () => boolean, timeoutMs: number): Promise<boolean> {
    const end = performance.now() + timeoutMs;
    while (this.#closing === undefined && this.failure === undefined && Atomics.load(this.#words, at.crashed) === 0) {
      this.#lock.take();
      try {
        if (isSo()) return true;
        this.work();
        this.links.reap();
        this.links.reapLate();
      } finally {
        this.leave();
      }
      if (performance.now() > end) return false;
      await new Promise((resolve) => setTimeout(resolve, 1));
    }
    // Until then UCX may still use memory.
    await this.#closing;
    if (!this.#isKeepingMemory || (this.#isClosed && isSo())) return true;
    keepForever(this);
    const reason = this.failure?.message ?? 'its thread failed';
    throw new WeftlineError(
      'WL_TIMEOUT',
      `UCX does not work any more (${reason}), but RDMA devices may still use the memory: leave it as it is until this process ends`,
    );
  }

  /** Under the lock: a turn at the worker. What has failed once is not tried again: requests may be gone by then. */
  work(): boolean {
    if (Atomics.load(this.#words, at.stop) === 1) return false;
    try {
      return this.engine.step();
    } catch (error) {
      Atomics.store(this.#words, at.stop, 1);
      this.#failed(error);
      return false;
    }
  }

  /** UCX uses no memory any more: see memory-use.ts. */
  get isOver(): boolean {
    return this.#isClosed && !this.#isKeepingMemory;
  }

  /** It has failed, or could not be destroyed, and a device may go on. */
  get #isKeepingMemory(): boolean {
    return this.#options.transports.usesDevices && !this.#isDestroyed;
  }

  /** After all links were closed. Idempotent. */
  close(): Promise<void> {
    this.#closing ??= this.#close();
    return this.#closing;
  }

  async #close(): Promise<void> {
    const isBroken = this.failure !== undefined || Atomics.load(this.#words, at.stop) === 1;
    await this.#stopThread();
    this.failure ??= new WeftlineError('WL_CLOSED', 'The agent was closed');
    this.#isDestroyed = !isBroken && (await this.#sayFarewell());
    if (!this.#isDestroyed) this.context.abandon();
    if (this.#isKeepingMemory) keepForever(this);
    this.context[Symbol.dispose]();
    this.#isClosed = true;
    this.#processes[Symbol.dispose]();
    this.#doorbell[Symbol.dispose]();
    this.#port.close();
  }

  /** False if UCX has not closed all endpoints. Peers need the processor to let it go, and may live in this process. */
  async #sayFarewell(): Promise<boolean> {
    try {
      const end = performance.now() + FAREWELL_MS;
      for (this.links.reap(); this.links.isClosing && performance.now() < end; this.links.reap()) {
        let steps = 0;
        while (steps < FAREWELL_STEPS && this.engine.step()) steps++;
        await new Promise((resolve) => (steps > 0 ? setImmediate(resolve) : setTimeout(resolve, 1)));
      }
      this.engine.cancelReceives();
      this.links.reap();
      return this.links.isDisconnected;
    } catch {
      return false;
    }
  }

  #drive(): void {
    this.#lock.take();
    Atomics.add(this.#words, at.drives, 1);
    try {
      if (this.work()) this.#checkProcesses((this.#lastWork = performance.now()));
      else if (++this.#idleLooks % LOOKS_PER_CLOCK === 0 || !this.#options.ownThread)
        this.#checkProcesses(performance.now());
      if (this.links.isClosing) this.links.reap();
    } finally {
      this.#lock.release();
    }
    this.#wakeThread();
  }

  #checkProcesses(now: number): void {
    if (now - this.#lastCheck < PROCESS_CHECK_MS) return;
    this.#lastCheck = now;
    if (this.links.isLate) this.links.reapLate();
    if (this.#processes.hasEnded()) this.#processes.endLinks(this.engine);
  }

  /** The thread must not sleep on while another works: it would not hear of what comes later. */
  #wakeThread(): void {
    if (Atomics.load(this.#words, at.thread) !== threadStates.armed) return;
    const { armed, running } = threadStates;
    if (Atomics.compareExchange(this.#words, at.thread, armed, running) === armed) this.#doorbell.ring();
  }

  async #stopThread(): Promise<void> {
    const thread = this.#thread;
    if (thread === undefined) return;
    this.#thread = undefined;
    thread.ref();
    const exited = new Promise<void>((resolve) => thread.once('exit', () => resolve()));
    Atomics.store(this.#words, at.stop, 1);
    Atomics.add(this.#words, at.handOvers, 1);
    Atomics.notify(this.#words, at.handOvers);
    this.#doorbell.ring();
    if (thread.threadId !== -1) await exited;
  }

  #throwFailure(): never {
    const said = receiveMessageOnPort(this.#port)?.message as EncodedError | undefined;
    throw this.#failed(said === undefined ? undefined : decodeError(said));
  }

  /** Returns the first failure. */
  #failed(cause: unknown): WeftlineError {
    const reason = cause instanceof Error ? `: ${cause.message}` : '';
    this.failure ??=
      cause instanceof WeftlineError
        ? cause
        : new WeftlineError('WL_INTERNAL', `The thread of UCX failed${reason}`, { cause });
    if (this.#isKeepingMemory) keepForever(this);
    this.#options.wake.ring();
    return this.failure;
  }
}

function countDown(count: number): number[] {
  return Array.from({ length: count }, (_, index) => count - 1 - index);
}
