// Memory of tensors that nobody disposed: it is given back once they are collected; a collection is started when memory gets short.
import type { Session } from 'node:inspector';
import { setImmediate as nextTurn } from 'node:timers/promises';
import { WeftlineError } from '../core/errors.ts';
import type { Storage } from './tensor.ts';

/** Bytes in use from which a collection is worth its time; after one, twice the bytes that were left. */
const FIRST_LOOK_BYTES = 512 * 2 ** 20;
/** Callbacks of collected objects run a few turns of the event loop after the collection. */
const TURNS = 5;

interface AbandonedMemoryOptions {
  release(address: number): void;
  /** Bytes handed out at the moment. */
  bytesInUse(): number;
}

export class AbandonedMemory {
  readonly #options: AbandonedMemoryOptions;
  readonly #collected: FinalizationRegistry<number>;
  #lookFrom = FIRST_LOOK_BYTES;
  #look: Promise<void> | undefined;

  constructor(options: AbandonedMemoryOptions) {
    this.#options = options;
    this.#collected = new FinalizationRegistry((address) => options.release(address));
  }

  /** When the storage is collected without having been disposed, its memory is released. */
  watch(storage: Storage): void {
    this.#collected.register(storage, storage.address, storage);
  }

  /** The storage was disposed, so its memory is no longer watched. */
  forget(storage: Storage): void {
    this.#collected.unregister(storage);
  }

  /**
   * Runs `allocate`. V8 knows nothing of the memory behind a tensor, and a loop that awaits nothing but settled promises
   * lets no callback of a collected object run: so when much is in use, or WL_MEMORY says that no more is to be had, what
   * nobody holds any more is collected first.
   */
  allocating<T>(allocate: () => T): T | Promise<T> {
    if (this.#options.bytesInUse() >= this.#lookFrom) return this.reclaim().then(() => this.#insisting(allocate));
    return this.#insisting(allocate);
  }

  /** Resolves when the memory of tensors that nobody holds is free; takes as long as a full garbage collection. */
  reclaim(): Promise<void> {
    this.#look ??= this.#reclaimNow().finally(() => (this.#look = undefined));
    return this.#look;
  }

  /** Hot path as long as there is room: no promise then. */
  #insisting<T>(allocate: () => T): T | Promise<T> {
    try {
      return allocate();
    } catch (error) {
      if (!(error instanceof WeftlineError) || error.code !== 'WL_MEMORY') throw error;
      return this.reclaim().then(allocate);
    }
  }

  async #reclaimNow(): Promise<void> {
    await collectGarbage();
    for (let turn = 0; turn < TURNS; turn += 1) await nextTurn();
    this.#lookFrom = Math.max(FIRST_LOOK_BYTES, 2 * this.#options.bytesInUse());
  }
}

/** A full collection by Node's own inspector: what a program may ask for without flags of V8. */
async function collectGarbage(): Promise<void> {
  let session: Session | undefined;
  try {
    const inspector = await import('node:inspector');
    session = new inspector.Session();
    session.connect();
    const asked = session;
    await new Promise<void>((resolve) => asked.post('HeapProfiler.collectGarbage', () => resolve()));
  } catch {
    // A Node without an inspector, or one that may not use it: what V8 has collected by itself is given back.
  } finally {
    session?.disconnect();
  }
}
