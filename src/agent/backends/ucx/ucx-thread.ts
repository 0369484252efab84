// The thread that works for a UCX backend while the agent's thread does not: it stands back as long as that looks itself.
import { driverWords as at, tableWord, threadStates } from '../../../abi/ucx-words.ts';
import { type MessagePort, workerData } from 'node:worker_threads';
import { encodeError } from '../../../core/errors.ts';
import { SharedLock } from '../../../threads/shared-lock.ts';
import { WakeWord } from '../../../threads/wake-word.ts';
import { yieldProcessor } from '../../../native/libc.ts';
import { Doorbell, ReadinessSet } from '../../../native/readiness.ts';
import { ArenaLayout } from './arena-layout.ts';
import { PROCESS_CHECK_MS, ProcessWatch } from './process-watch.ts';
import { UcxEngine } from './ucx-engine.ts';
import { UcxTables } from './ucx-tables.ts';
import { UcxWorker } from './ucx-worker.ts';

/** What the thread needs to know. */
export interface UcxThreadOptions {
  readonly words: SharedArrayBuffer;
  /** To say why the thread ended. */
  readonly port: MessagePort;
  /** Native addresses: of the UcxTables and of the worker. */
  readonly tables: number;
  readonly worker: number;
  /** Descriptors: of the worker, of the doorbell that ends a sleep, and of the peers' processes. */
  readonly workerFd: number;
  readonly doorbell: number;
  readonly processes: number;
  /** To be rung for everything that happens. */
  readonly wake: SharedArrayBuffer;
  /** How long it polls after the last work before it sleeps. */
  readonly spinUs: number;
}

/** How soon it takes over from an agent's thread that has stopped looking without a word. */
const WATCH_MS = 2;
/** Pieces of a large message come further apart than packets: a sleep between them costs a part of the throughput. */
const MIN_SPIN_MICROSECONDS = 300;
/** Nothing is missed by a longer sleep, but a thread that sleeps cannot be ended from outside. */
const LONGEST_SLEEP_MICROSECONDS = 100_000;
/**
 * UCX 1.18 does not let its worker be armed while a message over shared memory waits for a peer that takes nothing. Nobody
 * rings then, so sleeps are short.
 */
const MAX_REFUSALS = 64;
const REFUSED_SLEEP_MICROSECONDS = 500;

class UcxThread {
  readonly #words: Int32Array;
  readonly #lock: SharedLock;
  readonly #tables: UcxTables;
  readonly #engine: UcxEngine;
  readonly #wake: WakeWord;
  readonly #doorbell: Doorbell;
  readonly #processes: ProcessWatch;
  readonly #readiness = new ReadinessSet();
  readonly #spinUs: number;
  #seenDrives = 0;
  #seenHandOvers = 0;
  #seenNews = 0;
  #lastWork = 0;
  #lastCheck = 0;
  /** How often in a row UCX has not let the thread sleep though there was nothing to do. */
  #refusals = 0;

  constructor(options: UcxThreadOptions) {
    this.#spinUs = Math.max(MIN_SPIN_MICROSECONDS, options.spinUs);
    this.#words = new Int32Array(options.words);
    this.#lock = new SharedLock(options.words, at.lock * 4);
    this.#tables = new UcxTables(ArenaLayout.at(options.tables, UcxTables.bytes));
    this.#engine = new UcxEngine(new UcxWorker(options.worker), this.#tables);
    this.#wake = new WakeWord(options.wake);
    this.#doorbell = Doorbell.of(options.doorbell);
    this.#processes = new ProcessWatch(options.processes);
    this.#readiness.add(options.doorbell, 0);
    this.#readiness.add(options.workerFd, 1);
    this.#readiness.add(options.processes, 2);
  }

  run(): void {
    while (Atomics.load(this.#words, at.stop) === 0) {
      if (!this.#isMine()) continue;
      const isBusy = this.#turn();
      this.#tellNews();
      const now = performance.now();
      // Neither traffic of other peers nor a worker that does not let the thread sleep may hide the end of a peer.
      if (now - this.#lastCheck > PROCESS_CHECK_MS) this.#checkProcesses();
      if (isBusy) {
        this.#lastWork = now;
        this.#refusals = 0;
      } else if ((now - this.#lastWork) * 1000 < this.#spinUs) yieldProcessor();
      else this.#sleep();
    }
    this.#readiness[Symbol.dispose]();
  }

  /** False if the agent's thread looks itself; returns then after a while, or when it hands over. */
  #isMine(): boolean {
    const handOvers = Atomics.load(this.#words, at.handOvers);
    const drives = Atomics.load(this.#words, at.drives);
    const wasHandedOver = handOvers !== this.#seenHandOvers;
    this.#seenHandOvers = handOvers;
    if (wasHandedOver || drives === this.#seenDrives) {
      this.#seenDrives = drives;
      return true;
    }
    this.#seenDrives = drives;
    Atomics.store(this.#words, at.thread, threadStates.watching);
    Atomics.wait(this.#words, at.handOvers, handOvers, WATCH_MS);
    Atomics.store(this.#words, at.thread, threadStates.running);
    return false;
  }

  #turn(): boolean {
    this.#lock.take();
    try {
      return Atomics.load(this.#words, at.stop) === 0 && this.#engine.step();
    } catch (error) {
      Atomics.store(this.#words, at.stop, 1);
      throw error;
    } finally {
      this.#lock.release();
    }
  }

  #tellNews(): void {
    const news = Atomics.load(this.#tables.words, tableWord.news);
    if (news === this.#seenNews) return;
    this.#seenNews = news;
    this.#wake.ring();
  }

  #sleep(): void {
    if (!this.#arm()) {
      if (++this.#refusals > MAX_REFUSALS) this.#readiness.sleep(REFUSED_SLEEP_MICROSECONDS);
      return;
    }
    this.#refusals = 0;
    this.#readiness.sleep(LONGEST_SLEEP_MICROSECONDS);
    Atomics.store(this.#words, at.thread, threadStates.running);
    this.#doorbell.silence();
    this.#checkProcesses();
  }

  #arm(): boolean {
    this.#lock.take();
    try {
      const canSleep = this.#engine.worker.arm();
      if (canSleep) Atomics.store(this.#words, at.thread, threadStates.armed);
      return canSleep;
    } finally {
      this.#lock.release();
    }
  }

  #checkProcesses(): void {
    this.#lastCheck = performance.now();
    if (!this.#processes.hasEnded()) return;
    this.#lock.take();
    try {
      this.#processes.endLinks(this.#engine);
    } finally {
      this.#lock.release();
    }
  }
}

const options = workerData as UcxThreadOptions;
try {
  new UcxThread(options).run();
} catch (error) {
  // While the agent's thread is blocked, it does not hear that this one ends.
  options.port.postMessage(encodeError(error));
  Atomics.store(new Int32Array(options.words), at.crashed, 1);
  new WakeWord(options.wake).ring();
}
options.port.close();
