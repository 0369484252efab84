// Which ranks of this host still use a window of GPUs: each holds a lock in a nameless file until it has unmapped the others'
// parts, or its process ends. Until all have, a rank keeps its own part, because a late kernel may still write there.
import { randomBytes } from 'node:crypto';
import { closeSync } from 'node:fs';
import { setTimeout as sleep } from 'node:timers/promises';
import type { CudaContext } from '../device/cuda/cuda-context.ts';
import type { Storage } from '../device/tensor.ts';
import { isByteLocked, lockByte } from '../native/libc.ts';
import type { RankGroup } from '../world/rank-group.ts';
import { SHARED_MEMORY_FOLDER } from '../world/shared-memory-files.ts';
import { createSharedFile, openSharedFile, removeSharedFile } from './shared-file.ts';

const FILE_BYTES = 4096;
/** How often memory that is kept is looked at; the timer keeps no process alive. */
const LOOK_MS = 20;

/** Parts that were given up here while others may still use them. */
const kept = new Map<Storage, Departures>();
let timer: NodeJS.Timeout | undefined;

export class Departures implements Disposable {
  readonly #ranks: number;
  readonly #index: number;
  readonly #path: string;
  /** Of this rank's lock. */
  #own: number | undefined;
  /** To look at the locks of the others. */
  #looking: number | undefined;
  #forget = (): unknown => undefined;

  /** Where the first rank of a host makes the file, which the others open and it then removes. */
  static pathFor({ filePrefix, worldRank }: RankGroup, name: string): string {
    return `${SHARED_MEMORY_FOLDER}/${filePrefix}-${name}-users-${worldRank}-${randomBytes(6).toString('hex')}`;
  }

  /** Fails with WL_SHARED_MEMORY. */
  constructor(path: string, { topology: { scaleUpRanks, scaleUpIndex } }: RankGroup) {
    this.#path = path;
    this.#ranks = scaleUpRanks.length;
    this.#index = scaleUpIndex;
    if (this.#ranks === 1) return;
    const isFirst = scaleUpIndex === 0;
    const spec = { path, bytes: FILE_BYTES, purpose: 'the locks of a window', reserve: false };
    this.#own = isFirst ? createSharedFile(spec) : openSharedFile(path, FILE_BYTES);
    try {
      lockByte(this.#own, scaleUpIndex);
      this.#looking = openSharedFile(path, FILE_BYTES);
    } catch (error) {
      this[Symbol.dispose]();
      throw error;
    }
  }

  /** All ranks of the host have opened the file, or will not. */
  removeName(): void {
    if (this.#ranks > 1 && this.#index === 0) removeSharedFile(this.#path);
  }

  /** This rank uses the others' parts no more. Idempotent. */
  leave(): void {
    if (this.#own !== undefined) closeSync(this.#own);
    this.#own = undefined;
  }

  /** True when no other rank uses this one's part. */
  get haveAllLeft(): boolean {
    const fd = this.#looking;
    if (fd === undefined) return true;
    for (let index = 0; index < this.#ranks; index++)
      if (index !== this.#index && isByteLocked(fd, index)) return false;
    return true;
  }

  /** After leave(): disposes the part, at once or when the others have left; the device's close() waits so long for that. */
  release(part: Storage, { threads }: Pick<CudaContext, 'threads'>, timeoutMs: number): void {
    kept.set(part, this);
    sweepKept();
    if (!kept.has(part)) return;
    const wait = async (): Promise<void> => {
      const end = performance.now() + timeoutMs;
      while (kept.has(part) && performance.now() < end) {
        await sleep(LOOK_MS);
        sweepKept();
      }
    };
    threads.add(wait);
    this.#forget = () => threads.delete(wait);
  }

  [Symbol.dispose](): void {
    this.leave();
    this.#forget();
    if (this.#looking !== undefined) closeSync(this.#looking);
    this.#looking = undefined;
  }
}

/** Disposes what nobody uses any more. */
export function sweepKept(): void {
  for (const [part, departures] of kept) {
    if (!part.disposed && !departures.haveAllLeft) continue;
    kept.delete(part);
    part[Symbol.dispose]();
    departures[Symbol.dispose]();
  }
  if (kept.size > 0) timer ??= setInterval(sweepKept, LOOK_MS).unref();
  else {
    clearInterval(timer);
    timer = undefined;
  }
}

/** Bytes that this process keeps for late ranks; for tests. */
export function keptBytes(): number {
  let bytes = 0;
  for (const { bytes: of } of kept.keys()) bytes += of;
  return bytes;
}
