// Symmetric GPU memory: the same number of bytes at every rank of a host, mapped into each of their processes.
import { randomBytes } from 'node:crypto';
import { closeSync } from 'node:fs';
import { setTimeout as sleep } from 'node:timers/promises';
import { alignUp } from '../abi/layout.ts';
import { remaining, startCall } from '../core/deadline.ts';
import { WeftlineError } from '../core/errors.ts';
import { addMeter } from '../core/metric-table.ts';
import type { CudaContext } from '../device/cuda/cuda-context.ts';
import type { CudaDevice } from '../device/cuda/cuda-device.ts';
import { requirePeerAtomics } from '../device/cuda/device-properties.ts';
import type { Storage } from '../device/tensor.ts';
import { isByteLocked, lockByte } from '../native/libc.ts';
import type { RankGroup } from '../world/rank-group.ts';
import { SHARED_MEMORY_FOLDER } from '../world/shared-memory-files.ts';
import { createSharedFile, openSharedFile, removeSharedFile } from './shared-file.ts';
import { agree, type WindowAgreement } from './symmetric-window.ts';

// Notes which ranks of this host still use a window of GPUs: each holds a lock in a nameless file until it has unmapped the others'
// parts, or its process ends. Until all have, a rank keeps its own part, because a late kernel may still write there.

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
  /** Descriptor of this rank's lock. */
  #own: number | undefined;
  /** Descriptor through which this rank looks at the locks of the others. */
  #looking: number | undefined;
  #forget = (): unknown => undefined;

  /** Path at which the first rank of a host makes the file, which the others open and it then removes. */
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

  /** Must follow leave(): disposes the part, at once or when the others have left; the device's close() waits so long for that. */
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

/** What the driver shares at once; smaller allocations would show neighbours to the other processes as well. */
const SHARED_BLOCK = 2 << 20;

interface CudaWindowOptions extends WindowAgreement {
  readonly device: CudaDevice;
  /** Enqueues writes to this rank's part, which is zero, before any peer can write to it. */
  readonly fill?: (part: Storage) => void;
  /** Object whose kernels add to words of peers' parts; create() fails where a link between GPUs carries no atomic operations. */
  readonly addsToPeers?: string;
}

export class CudaWindow implements Disposable {
  /** World ranks that share the window, by scale-up index, as all below. */
  readonly ranks: readonly number[];
  /** This rank's scale-up index. */
  readonly index: number;
  readonly bytes: number;
  /** Device address of each rank's part in this process, the own one included. */
  readonly addresses: readonly number[];
  /** This rank's part; tensors over the window hold on to it. */
  readonly storage: Storage;
  readonly #unmeter: () => void;
  readonly #peers: readonly Storage[];
  readonly #users: Departures;
  readonly #device: CudaDevice;
  readonly #timeoutMs: number;
  #isDisposed = false;

  /**
   * Collective over the group; the ranks of one host share a window. Returns when every rank has mapped all parts, which
   * hold zeros except where `fill` wrote. Every rank gets the same error when one cannot take part: WL_CONFIG_MISMATCH (sizes differ), WL_MEMORY,
   * WL_CUDA (no access to a peer's GPU), WL_UNSUPPORTED (`addsToPeers`) or WL_TIMEOUT.
   */
  static async create(creation: CudaWindowOptions): Promise<CudaWindow> {
    const options = startCall(creation, creation.group.settings.timeoutMs);
    const { group, device, bytes } = options;
    const { scaleUpRanks, scaleUpIndex } = group.topology;
    const own: Storage[] = [];
    const peers = new Map<number, Storage>();
    const users: Departures[] = [];
    sweepKept();
    try {
      const told = await agree(options, 'allocate', async () => {
        const storage = device.allocateShared(alignUp(Math.max(bytes, 1), SHARED_BLOCK));
        own.push(storage);
        options.fill?.(storage);
        // No peer may write before that is done.
        await device.stream.idle(remaining(options));
        const handle = scaleUpRanks.length === 1 ? '' : device.exportMemory(storage);
        const path = Departures.pathFor(group, options.name);
        if (scaleUpIndex === 0) users.push(new Departures(path, group));
        return { handle, path };
      });
      await agree(options, 'open', () => {
        if (scaleUpIndex > 0) users.push(new Departures(told[scaleUpRanks[0]!]!.path, group));
        for (const [index, rank] of scaleUpRanks.entries()) {
          if (index !== scaleUpIndex) peers.set(index, openPart(options, group.ranks[rank]!, told[rank]!.handle));
        }
      });
      return new CudaWindow(options, { storage: own[0]!, peers, users: users[0]! });
    } catch (error) {
      for (const part of [...peers.values(), ...users, ...own]) part[Symbol.dispose]();
      throw error;
    } finally {
      users[0]?.removeName();
    }
  }

  private constructor({ group, device, bytes }: CudaWindowOptions, { storage, peers, users }: CudaWindowParts) {
    const { scaleUpRanks, scaleUpIndex } = group.topology;
    this.ranks = scaleUpRanks.map((rank) => group.ranks[rank]!);
    this.index = scaleUpIndex;
    this.bytes = bytes;
    this.storage = storage;
    this.addresses = this.ranks.map((_, index) => (peers.get(index) ?? storage).address);
    this.#peers = [...peers.values()];
    this.#users = users;
    this.#device = device;
    this.#timeoutMs = group.settings.timeoutMs;
    this.#unmeter = addMeter(() => ({ windowBytes: bytes * this.ranks.length }));
  }

  /** Address of this rank's own part. */
  get address(): number {
    return this.storage.address;
  }

  /** Unmaps the peers' parts; no work of this rank may use them. Idempotent. */
  closePeers(): void {
    for (const peer of this.#peers) peer[Symbol.dispose]();
    this.#users.leave();
  }

  /**
   * Unmaps the window here; no work of this rank may use it. Not collective: this rank's part goes when the peers have
   * unmapped it or ended, because kernels of late ones may still write to it. Idempotent.
   */
  [Symbol.dispose](): void {
    if (this.#isDisposed) return;
    this.#isDisposed = true;
    this.#unmeter();
    this.closePeers();
    this.#users.release(this.storage, this.#device.context, this.#timeoutMs);
  }
}

interface CudaWindowParts {
  readonly storage: Storage;
  readonly peers: ReadonlyMap<number, Storage>;
  readonly users: Departures;
}

/** `rank`: of the world. */
function openPart(
  { group, device, name, bytes, addsToPeers }: CudaWindowOptions,
  rank: number,
  handle: string,
): Storage {
  let part: Storage | undefined;
  try {
    part = device.openPeerMemory(handle, bytes);
    if (addsToPeers !== undefined) requirePeerAtomics(device.context, part.address, addsToPeers);
    return part;
  } catch (cause) {
    part?.[Symbol.dispose]();
    if (!(cause instanceof WeftlineError)) throw cause;
    throw new WeftlineError(
      cause.code,
      `Rank ${group.worldRank} cannot map rank ${rank}'s part of window ${name}: ${cause.message}`,
      { details: { ...cause.details, peer: rank }, cause },
    );
  }
}
