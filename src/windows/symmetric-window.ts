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
import { addMeter } from '../core/meters.ts';
import type { CpuDevice } from '../device/cpu/cpu-device.ts';
import type { MemoryRange } from '../device/host-access.ts';
import type { Storage } from '../device/tensor.ts';
import { isByteLocked, lockByte } from '../native/libc.ts';
import { SHARED_MEMORY_FOLDER } from '../world/shared-memory-files.ts';
import { LocalBarrier } from './local-barrier.ts';
import { createSharedFile, openSharedFile, removeSharedFile } from './shared-file.ts';
import { agree, agreeHere, type WindowAgreement } from './window-agreement.ts';

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

/** Memory of a window in this process, and the file behind it if other ranks share it. */
interface Mapping {
  readonly storage: Storage;
  readonly fd: number | undefined;
}

export class SymmetricWindow implements Disposable {
  /** World ranks that share the window, by scale-up index, as all below. */
  readonly ranks: readonly number[];
  /** This rank's scale-up index. */
  readonly index: number;
  readonly bytes: number;
  /** Address of each rank's part in this rank's memory. */
  readonly addresses: readonly number[];
  readonly barrier: LocalBarrier;
  /** Keeps the memory; tensors over the window hold on to it. */
  readonly storage: Storage;
  readonly #fd: number | undefined;
  readonly #unmeter: () => void;

  /**
   * Collective over the group; the ranks of one host share a window. Every rank gets the same error when one cannot take
   * part: WL_CONFIG_MISMATCH (sizes differ), WL_MEMORY (address space), WL_SHARED_MEMORY (/dev/shm). Leaves no file
   * behind, whatever happens.
   */
  static async create(creation: SymmetricWindowOptions): Promise<SymmetricWindow> {
    const options = startCall(creation, creation.group.settings.timeoutMs);
    const { group, device, bytes } = options;
    const { length } = group.topology.scaleUpRanks;
    const total = windowFootprint(bytes, length);
    await agree(options, 'size', () => {
      options.prepare?.();
      checkFit(options, total);
    });
    // Every rank of the group takes part in the steps of those that map files.
    if (length > 1 || group.topology.hosts.length > 1) return mapTogether(options, total);
    const storage = device.allocate(total, WINDOW_ALIGNMENT);
    device.hostView('u8', storage.address, WINDOW_HEADER_BYTES).fill(0);
    writeHeader(options, storage.address);
    return new SymmetricWindow(options, { storage, fd: undefined });
  }

  /** @internal Use create(). */
  constructor(options: SymmetricWindowOptions, { storage, fd }: Mapping) {
    const { group, device, bytes } = options;
    const { scaleUpRanks, scaleUpIndex } = group.topology;
    this.ranks = scaleUpRanks.map((rank) => group.ranks[rank]!);
    this.index = scaleUpIndex;
    this.bytes = bytes;
    this.storage = storage;
    this.#fd = fd;
    this.#unmeter = addMeter(() => ({ windowBytes: storage.bytes }));
    const stride = alignUp(bytes, WINDOW_ALIGNMENT);
    this.addresses = this.ranks.map((_, index) => storage.address + WINDOW_HEADER_BYTES + index * stride);
    this.barrier = new LocalBarrier({
      header: device.memory.buffer,
      headerOffset: storage.address,
      ranks: this.ranks,
      index: this.index,
      timeoutMs: group.settings.timeoutMs,
      spinUs: group.settings.spinUs,
      peerLost: group.peerLost,
      isAlive: (index) => fd === undefined || isByteLocked(fd, index),
      describeCall: (call) => options.describeCall(call),
    });
  }

  /** Address of this rank's own part. */
  get address(): number {
    return this.addresses[this.index]!;
  }

  /** The parts of all ranks of this host, one behind the other. */
  get parts(): MemoryRange {
    const { address } = this.storage;
    return { address: address + WINDOW_HEADER_BYTES, bytes: this.storage.bytes - WINDOW_HEADER_BYTES };
  }

  /** Of the part of the rank of that scale-up index within `parts`, the same on every host. */
  offsetOf(index: number): number {
    return index * alignUp(this.bytes, WINDOW_ALIGNMENT);
  }

  /** Unmaps the window here; peers that still wait for this rank get WL_PEER_LOST. Tensors over it become invalid. */
  [Symbol.dispose](): void {
    if (this.storage.disposed) return;
    this.barrier.close();
    this.#unmeter();
    this.storage[Symbol.dispose]();
    if (this.#fd !== undefined) closeSync(this.#fd);
  }
}

function checkFit({ group, device, bytes, name }: SymmetricWindowOptions, total: number): void {
  const local = group.topology.scaleUpRanks.length;
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
  const { group, device, bytes, name } = options;
  const { scaleUpRanks, scaleUpIndex } = group.topology;
  const { reserveSharedMemory: reserve } = group.settings;
  const leader = scaleUpIndex === 0;
  const unique = `${name}-${group.worldRank}-${randomBytes(6).toString('hex')}`;
  const path = `${SHARED_MEMORY_FOLDER}/${group.filePrefix}-${unique}`;
  const purpose = `${scaleUpRanks.length} windows of ${formatBytes(bytes)}`;
  const made: { fd?: number; mapping?: Mapping } = {};
  try {
    const paths = await agree(options, 'file', () => {
      if (leader) made.fd = createSharedFile({ path, bytes: total, purpose, reserve });
      return path;
    });
    const { storage, fd } = await agreeHere(options, 'map', () => {
      const descriptor = (made.fd ??= openSharedFile(paths[scaleUpRanks[0]!]!, total));
      if (!lockByte(descriptor, scaleUpIndex)) {
        throw new WeftlineError('WL_SHARED_MEMORY', `Another process holds rank ${group.worldRank}'s place in ${path}`);
      }
      made.mapping = { storage: device.mapFile(descriptor, total, reserve), fd: descriptor };
      if (leader) writeHeader(options, made.mapping.storage.address);
      return made.mapping;
    });
    await agree(options, 'header', () => checkHeader(options, storage.address));
    return new SymmetricWindow(options, { storage, fd });
  } catch (error) {
    made.mapping?.storage[Symbol.dispose]();
    if (made.fd !== undefined) closeSync(made.fd);
    throw error;
  } finally {
    if (leader) removeSharedFile(path);
  }
}

function writeHeader({ group, device, bytes }: SymmetricWindowOptions, address: number): void {
  const header = new Block(windowHeader, device.memory.buffer, address);
  header.set('version', WINDOW_VERSION);
  header.set('ranks', group.topology.scaleUpRanks.length);
  header.set('windowBytes', bytes);
  header.set('magic', WINDOW_MAGIC);
}

function checkHeader({ group, device, bytes, name }: SymmetricWindowOptions, address: number): void {
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
    found.ranks === group.topology.scaleUpRanks.length &&
    found.windowBytes === bytes;
  if (!good) {
    throw new WeftlineError(
      'WL_SHARED_MEMORY',
      `Window ${name} was not created by this job: its header is ${JSON.stringify(found)}`,
      {
        details: found,
      },
    );
  }
}
