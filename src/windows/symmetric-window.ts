// Symmetric memory: the same number of bytes at every rank of a host, each readable and writable by all of them.
import { randomBytes } from 'node:crypto';
import { closeSync, fstatSync } from 'node:fs';
import { alignUp, Block } from '../abi/layout.ts';
import { formatBytes } from '../core/byte-size.ts';
import { type CallWait, startCall } from '../core/deadline.ts';
import { WeftlineError } from '../core/errors.ts';
import { addMeter } from '../core/metric-table.ts';
import type { CpuDevice } from '../device/cpu/cpu-device.ts';
import type { MemoryRange, Storage } from '../device/tensor.ts';
import { isByteLocked, lockByte } from '../native/libc.ts';
import { shareOutcome } from '../world/outcomes.ts';
import type { RankGroup } from '../world/rank-group.ts';
import { SHARED_MEMORY_FOLDER } from '../world/shared-memory-files.ts';
import { MAX_LOCAL_RANKS, WINDOW_HEADER_BYTES, WINDOW_MAGIC, WINDOW_VERSION, windowHeader } from './abort-record.ts';
import { LocalBarrier } from './local-barrier.ts';
import { createSharedFile, openSharedFile, removeSharedFile } from './shared-file.ts';
import { openSharedMemory, type SharedMemoryName } from './shared-memory.ts';

// The steps in which the ranks make a window together: each step's work succeeds on all of them, or all get one error.

export interface WindowAgreement extends CallWait {
  /** Group whose ranks of this host share the window. */
  readonly group: RankGroup;
  /** Name of the object that the window serves; only for names and errors. */
  readonly name: string;
  /** Bytes per rank, the same on every rank. */
  readonly bytes: number;
}

const shared = new WeakSet<object>();

/** True for an error that every rank got alike, so that all know where they stand and can go on together. */
export function isSharedByAll(error: unknown): boolean {
  return typeof error === 'object' && error !== null && shared.has(error);
}

function sharedByAll(error: WeftlineError): WeftlineError {
  shared.add(error);
  return error;
}

/**
 * Collective over the group: returns what `work` returned on every rank, by rank. Fails on all ranks with the error of
 * the first rank where it threw, or with WL_CONFIG_MISMATCH when the windows' sizes differ.
 */
export async function agree<T>(window: WindowAgreement, step: string, work: () => T | Promise<T>): Promise<T[]> {
  const { group, name, bytes } = window;
  const { facts, values, failure } = await shareOutcome(
    group,
    { name: `window/${name}/${step}`, facts: bytes, work },
    window,
  );
  if (failure !== undefined) throw sharedByAll(failure);
  const other = facts.findIndex((otherBytes) => otherBytes !== bytes);
  if (other === -1) return values as T[];
  const rank = group.ranks[other];
  throw sharedByAll(
    new WeftlineError(
      'WL_CONFIG_MISMATCH',
      `Window ${name} has ${bytes} bytes here and ${facts[other]} on rank ${rank}; all ranks must ask for the same`,
      { details: { rank, bytes, otherBytes: facts[other] } },
    ),
  );
}

/** The same for work whose result stays here: returns what `work` returned on this rank. */
export async function agreeHere<T>(window: WindowAgreement, step: string, work: () => T): Promise<T> {
  const made: T[] = [];
  await agree(window, step, () => {
    made.push(work());
  });
  return made[0]!;
}

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
   * Not collective: maps a window that the group has made before, in the place of this rank's former process. `peers` are
   * what `shared` was at other ranks, one of which must still have the window. Fails with WL_PEER_LOST if none has,
   * WL_RANK_TAKEN while the former process holds its place, WL_MEMORY, WL_SHARED_MEMORY.
   */
  static attach(attachment: SymmetricWindowOptions, peers: readonly SharedMemoryName[]): SymmetricWindow {
    const { group, device, bytes } = attachment;
    const { scaleUpRanks, scaleUpIndex } = group.topology;
    const total = windowFootprint(bytes, scaleUpRanks.length);
    checkFit(attachment, total);
    const fd = openFirst(peers);
    let storage: Storage | undefined;
    try {
      if (!lockByte(fd, scaleUpIndex)) {
        const message = `The former process of rank ${group.worldRank} still holds its place in window ${attachment.name}`;
        throw new WeftlineError('WL_RANK_TAKEN', message, { details: { rank: group.worldRank } });
      }
      storage = device.mapFile(fd, total, group.settings.reserveSharedMemory);
      checkHeader(attachment, storage.address);
      return new SymmetricWindow(attachment, { storage, fd });
    } catch (error) {
      storage?.[Symbol.dispose]();
      closeSync(fd);
      throw error;
    }
  }

  /**
   * Not collective: makes the window of this rank's host anew, where no process has it any more; others attach to `shared`. Fails with
   * WL_MEMORY, WL_SHARED_MEMORY.
   */
  static found(options: SymmetricWindowOptions): SymmetricWindow {
    const { group, device, bytes } = options;
    const { scaleUpRanks, scaleUpIndex } = group.topology;
    const total = windowFootprint(bytes, scaleUpRanks.length);
    const { reserveSharedMemory: reserve } = group.settings;
    checkFit(options, total);
    const path = pathOf(options);
    const fd = createSharedFile({ path, bytes: total, purpose: purposeOf(options), reserve });
    try {
      lockByte(fd, scaleUpIndex);
      const storage = device.mapFile(fd, total, reserve);
      writeHeader(options, storage.address);
      return new SymmetricWindow(options, { storage, fd });
    } catch (error) {
      closeSync(fd);
      throw error;
    } finally {
      removeSharedFile(path);
    }
  }

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
    // A new file is zeroed; memory that was used before is not.
    device.kernels.fillBytes(storage.address, 0, total);
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
      firstCause: (...cause) => group.firstCause(...cause),
      peerLost: group.peerLost,
      isAlive: (index) => this.isAlive(index),
      describeCall: (call) => options.describeCall(call),
    });
  }

  /** How another process of this user finds the memory as long as this one has it; undefined for one rank alone. */
  get shared(): SharedMemoryName | undefined {
    const fd = this.#fd;
    if (fd === undefined) return undefined;
    const { dev: device, ino: inode, size: bytes } = fstatSync(fd);
    return { pid: process.pid, fd, device, inode, bytes };
  }

  /** False when the process of the rank of that scale-up index has ended or left the window. */
  isAlive(index: number): boolean {
    return index === this.index || this.#fd === undefined || isByteLocked(this.#fd, index);
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

  /** Offset of the part of the rank of that scale-up index within `parts`, the same on every host. */
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

function openFirst(peers: readonly SharedMemoryName[]): number {
  let cause: unknown;
  for (const peer of peers) {
    try {
      return openSharedMemory(peer, `Process ${peer.pid}`);
    } catch (error) {
      cause = error;
    }
  }
  throw new WeftlineError('WL_PEER_LOST', 'No process of this job has the window any more: start all ranks anew', {
    cause,
  });
}

function pathOf({ group, name }: SymmetricWindowOptions): string {
  const unique = `${name}-${group.worldRank}-${randomBytes(6).toString('hex')}`;
  return `${SHARED_MEMORY_FOLDER}/${group.filePrefix}-${unique}`;
}

function purposeOf({ group, bytes }: SymmetricWindowOptions): string {
  return `${group.topology.scaleUpRanks.length} windows of ${formatBytes(bytes)}`;
}

async function mapTogether(options: SymmetricWindowOptions, total: number): Promise<SymmetricWindow> {
  const { group, device } = options;
  const { scaleUpRanks, scaleUpIndex } = group.topology;
  const { reserveSharedMemory: reserve } = group.settings;
  const leader = scaleUpIndex === 0;
  const path = pathOf(options);
  const purpose = purposeOf(options);
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
