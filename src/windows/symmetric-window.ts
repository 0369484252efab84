// Symmetric memory: the same number of bytes at every rank of a host, each readable and writable by all of them.
import { randomBytes } from 'node:crypto';
import { closeSync } from 'node:fs';
import { alignUp, Block } from '../abi/layout.ts';
import {
  MAX_LOCAL_RANKS,
  WINDOW_HEADER_BYTES,
  WINDOW_MAGIC,
  WINDOW_VERSION,
  windowHeader,
} from '../abi/window-header.ts';
import { formatBytes } from '../core/byte-size.ts';
import { startCall } from '../core/deadline.ts';
import { WeftlineError } from '../core/errors.ts';
import type { CpuDevice } from '../device/cpu/cpu-device.ts';
import type { Storage } from '../device/tensor.ts';
import { isByteLocked, lockByte } from '../native/libc.ts';
import { SHARED_MEMORY_FOLDER } from '../world/shared-memory-files.ts';
import { LocalBarrier } from './local-barrier.ts';
import { createSharedFile, openSharedFile, removeSharedFile } from './shared-file.ts';
import { agree, type WindowAgreement } from './window-agreement.ts';

const WINDOW_ALIGNMENT = 65_536;

export interface SymmetricWindowOptions extends WindowAgreement {
  readonly device: CpuDevice;
  /** Work of this rank before anything is shared; if it throws, creation fails on every rank with its error. */
  prepare?(): void;
  /** What a call word of barrier() means, for errors. */
  describeCall(call: number): string;
}

/** What one window of `bytes` per rank takes from each rank's address space and, in all, from /dev/shm. */
export function windowFootprint(bytes: number, localRanks: number): number {
  return WINDOW_HEADER_BYTES + localRanks * alignUp(bytes, WINDOW_ALIGNMENT);
}

export class SymmetricWindow implements Disposable {
  /** World ranks that share the window, ascending. */
  readonly ranks: readonly number[];
  readonly localRank: number;
  readonly bytes: number;
  /** Address of each local rank's part in this rank's memory. */
  readonly addresses: readonly number[];
  readonly barrier: LocalBarrier;
  /** Keeps the memory; tensors over the window hold on to it. */
  readonly storage: Storage;
  readonly #fd: number | undefined;

  /**
   * Collective over the world. Every rank gets the same error when one cannot take part: WL_CONFIG_MISMATCH (sizes
   * differ), WL_MEMORY (address space), WL_SHARED_MEMORY (/dev/shm). Leaves no file behind, whatever happens.
   */
  static async create(creation: SymmetricWindowOptions): Promise<SymmetricWindow> {
    const options = startCall(creation, creation.world.settings.timeoutMs);
    const { world, device, bytes } = options;
    const ranks = world.localRanks;
    const total = windowFootprint(bytes, ranks.length);
    await agree(options, 'size', () => {
      options.prepare?.();
      checkFit(options, total);
    });
    if (ranks.length === 1) {
      const storage = device.allocate(total, WINDOW_ALIGNMENT);
      device.hostView('u8', storage.address, WINDOW_HEADER_BYTES).fill(0);
      writeHeader(options, storage.address);
      return new SymmetricWindow(options, storage, undefined);
    }
    return mapTogether(options, total);
  }

  /** Internal: use create(). */
  constructor(options: SymmetricWindowOptions, storage: Storage, fd: number | undefined) {
    const { world, device, bytes } = options;
    this.ranks = world.localRanks;
    this.localRank = this.ranks.indexOf(world.rank);
    this.bytes = bytes;
    this.storage = storage;
    this.#fd = fd;
    const stride = alignUp(bytes, WINDOW_ALIGNMENT);
    this.addresses = this.ranks.map((_, index) => storage.address + WINDOW_HEADER_BYTES + index * stride);
    this.barrier = new LocalBarrier({
      header: device.memory.buffer,
      headerOffset: storage.address,
      ranks: this.ranks,
      localRank: this.localRank,
      timeoutMs: world.settings.timeoutMs,
      spinUs: world.settings.spinUs,
      peerLost: world.peerLost,
      isAlive: (index) => fd === undefined || isByteLocked(fd, index),
      describeCall: (call) => options.describeCall(call),
    });
  }

  /** Address of this rank's own part. */
  get address(): number {
    return this.addresses[this.localRank]!;
  }

  /** Unmaps the window here; peers that still wait for this rank get WL_PEER_LOST. Tensors over it become invalid. */
  [Symbol.dispose](): void {
    if (this.storage.disposed) return;
    this.barrier.close();
    this.storage[Symbol.dispose]();
    if (this.#fd !== undefined) closeSync(this.#fd);
  }
}

function checkFit({ world, device, bytes, name }: SymmetricWindowOptions, total: number): void {
  const local = world.localRanks.length;
  if (local > MAX_LOCAL_RANKS) {
    throw new WeftlineError(
      'WL_UNSUPPORTED',
      `${local} ranks on one host share a window; at most ${MAX_LOCAL_RANKS} can`,
    );
  }
  if (total <= device.space.largestGap) return;
  throw new WeftlineError(
    'WL_MEMORY',
    `${name}: ${local} windows of ${formatBytes(bytes)} (one per rank of this host) need ${formatBytes(total)} of this rank's address space; ${formatBytes(device.space.used)} of ${formatBytes(device.space.limit)} are in use and the largest gap is ${formatBytes(device.space.largestGap)}. Use fewer tokens per rank, fewer ranks per host, or free other buffers`,
    { details: { bytes, total, ranks: local, used: device.space.used, limit: device.space.limit } },
  );
}

async function mapTogether(options: SymmetricWindowOptions, total: number): Promise<SymmetricWindow> {
  const { world, device, bytes, name } = options;
  const leader = world.localRanks[0] === world.rank;
  const path = `${SHARED_MEMORY_FOLDER}/${world.filePrefix}-${name}-${world.rank}-${randomBytes(6).toString('hex')}`;
  const purpose = `${world.localRanks.length} windows of ${formatBytes(bytes)}`;
  let fd: number | undefined;
  let storage: Storage | undefined;
  try {
    const paths = await agree(options, 'file', () => {
      if (leader) fd = createSharedFile({ path, bytes: total, purpose, reserve: world.settings.reserveSharedMemory });
      return path;
    });
    await agree(options, 'map', () => {
      fd ??= openSharedFile(paths[world.localRanks[0]!] as string, total);
      if (!lockByte(fd, world.localRanks.indexOf(world.rank))) {
        throw new WeftlineError('WL_SHARED_MEMORY', `Another process holds rank ${world.rank}'s place in ${path}`);
      }
      storage = device.mapFile(fd, total, world.settings.reserveSharedMemory);
      if (leader) writeHeader(options, storage.address);
    });
    await agree(options, 'header', () => checkHeader(options, (storage as Storage).address));
    return new SymmetricWindow(options, storage as unknown as Storage, fd);
  } catch (error) {
    storage?.[Symbol.dispose]();
    if (fd !== undefined) closeSync(fd);
    throw error;
  } finally {
    if (leader) removeSharedFile(path);
  }
}

function writeHeader({ world, device, bytes }: SymmetricWindowOptions, address: number): void {
  const header = new Block(windowHeader, device.memory.buffer, address);
  header.set('version', WINDOW_VERSION);
  header.set('ranks', world.localRanks.length);
  header.set('windowBytes', bytes);
  header.set('magic', WINDOW_MAGIC);
}

function checkHeader({ world, device, bytes, name }: SymmetricWindowOptions, address: number): void {
  const header = new Block(windowHeader, device.memory.buffer, address);
  const found = {
    magic: header.get('magic'),
    version: header.get('version'),
    ranks: header.get('ranks'),
    windowBytes: header.get('windowBytes'),
  };
  const good =
    found.magic === WINDOW_MAGIC &&
    found.version === WINDOW_VERSION &&
    found.ranks === world.localRanks.length &&
    found.windowBytes === bytes;
  if (!good) {
    throw new WeftlineError('WL_SHARED_MEMORY', `The header of window ${name} is not ours: ${JSON.stringify(found)}`, {
      details: found,
    });
  }
}
