// A region of a peer of this host: mapped here, reached through a system call, or memory of a GPU.
import { localRegionInfo, localRegionKinds, MEMORY_HANDLE_BYTES } from './local-region.ts';
import { MAILBOX_REGIONS } from './mailbox-layout.ts';
import { Block } from '../../../abi/layout.ts';
import { copyOf } from '../../../core/bytes.ts';
import { WeftlineError } from '../../../core/errors.ts';
import type { CudaDevice } from '../../../device/cuda/cuda-device.ts';
import type { Storage } from '../../../device/tensor.ts';
import { SharedMemory } from '../../../windows/shared-memory.ts';
import type { BackendRemoteRegion, MemoryKind } from '../../backend.ts';
import { grantOf, type RegionGrant } from './sender-end.ts';

/** The place of a region's bytes. */
export type RegionReach =
  /** A native address of this process. */
  | { readonly kind: 'mapped'; readonly address: number }
  /** An address of the peer's process. */
  | { readonly kind: 'process'; readonly address: number }
  | {
      readonly kind: 'cuda';
      /** What device.openPeerMemory() takes. */
      readonly handle: string;
      readonly mappedBytes: number;
      /** Bytes from the begin of the allocation. */
      readonly offset: number;
      /** The address of the allocation in the process that owns it. */
      readonly base: number;
    };

interface RemoteRegionParts {
  readonly bytes: number;
  /** The place in the peer's table of regions, and what stands there as long as it is registered. */
  readonly slot: number;
  readonly key: number;
  readonly reach: RegionReach;
}

export class LocalRemoteRegion implements BackendRemoteRegion, RegionGrant {
  readonly bytes: number;
  readonly keyAt: number;
  readonly keyValue: number;
  readonly reach: RegionReach;
  /** The peer has taken it back, or this side gave it up: nothing of it may be touched. */
  isReleased = false;

  constructor({ bytes, slot, key, reach }: RemoteRegionParts) {
    this.bytes = bytes;
    const grant = grantOf({ slot, key });
    this.keyAt = grant.keyAt;
    this.keyValue = grant.keyValue;
    this.reach = reach;
  }
}

/** A memory file of the peer and where the region lies in it. */
interface SharedPlace {
  readonly fd: number;
  readonly device: number;
  readonly inode: number;
  readonly bytes: number;
  readonly offset: number;
}

/** `map` gives the native address of a region in a file of the peer. Fails with WL_PROTOCOL for what makes no sense. */
export function readRegionInfo(
  bytes: Uint8Array,
  about: { readonly kind: MemoryKind; readonly bytes: number },
  map: (place: SharedPlace) => number,
): LocalRemoteRegion {
  if (bytes.length !== localRegionInfo.size) throw notUnderstood(`it has ${bytes.length} bytes`);
  const copy = copyOf(bytes);
  const info = Block.over(localRegionInfo, copy);
  const kind = info.get('kind');
  const address = info.get('address');
  const regionBytes = info.get('bytes');
  const mappedBytes = info.get('mappedBytes');
  if (regionBytes !== about.bytes) throw notUnderstood(`it speaks of ${regionBytes} bytes instead of ${about.bytes}`);
  if ((kind === localRegionKinds.cuda) !== (about.kind === 'cuda')) throw notUnderstood(`its kind is ${kind}`);
  const slot = info.get('slot');
  if (slot >= MAILBOX_REGIONS) throw notUnderstood(`its slot is ${slot}, expected less than ${MAILBOX_REGIONS}`);
  const parts = { bytes: regionBytes, slot, key: info.get('key') };
  if (kind === localRegionKinds.process) {
    return new LocalRemoteRegion({ ...parts, reach: { kind: 'process', address } });
  }
  if (address + regionBytes > mappedBytes) throw notUnderstood('it ends outside of its allocation');
  if (kind === localRegionKinds.cuda) {
    const { offset } = localRegionInfo;
    const handle = Buffer.from(copy.subarray(offset.handle, offset.handle + MEMORY_HANDLE_BYTES)).toString('base64');
    const reach = { kind: 'cuda', handle, mappedBytes, offset: address, base: info.get('device') } as const;
    return new LocalRemoteRegion({ ...parts, reach });
  }
  if (kind !== localRegionKinds.shared) throw notUnderstood(`its kind is ${kind}`);
  const place = { fd: info.get('fd'), device: info.get('device'), inode: info.get('inode') };
  const mapped = map({ ...place, bytes: mappedBytes, offset: address });
  return new LocalRemoteRegion({ ...parts, reach: { kind: 'mapped', address: mapped } });
}

/** True if bytes that `readRegionInfo` would take speak of memory that only system calls reach. */
export function isOfProcess(bytes: Uint8Array): boolean {
  if (bytes.length !== localRegionInfo.size) return false;
  return Block.over(localRegionInfo, bytes).get('kind') === localRegionKinds.process;
}

function notUnderstood(why: string): WeftlineError {
  return new WeftlineError('WL_PROTOCOL', `Invalid description of a region of the peer: ${why}`);
}

// Memory of one peer as this process holds it: mapped files and allocations of GPUs, for as long as a region needs them.

interface ImportedMemoryParts {
  readonly peerName: string;
  readonly pid: number;
  /** True while the peer has the region registered. */
  readonly isHeld: (region: LocalRemoteRegion) => boolean;
  /** True while copies of this side may touch the region. */
  readonly isBusy: (region: LocalRemoteRegion) => boolean;
  /** True while channels are open, whose kernels may run: a GPU unmaps memory only when all its kernels have ended. */
  readonly hasChannels: () => boolean;
  /** The region is not used any more from now on. */
  readonly onRelease: (region: LocalRemoteRegion) => void;
}

interface MappedFile {
  readonly memory: SharedMemory;
  readonly users: Set<LocalRemoteRegion>;
}

export class ImportedMemory {
  readonly #parts: ImportedMemoryParts;
  readonly #regions = new Set<LocalRemoteRegion>();
  /** Released, but still touched by copies that are ending. */
  readonly #leaving = new Set<LocalRemoteRegion>();
  /** Files by device and inode. */
  readonly #files = new Map<string, MappedFile>();
  /** Allocations by device and handle. */
  readonly #allocations = new Map<string, { readonly handle: string; readonly storage: Storage }>();

  constructor(parts: ImportedMemoryParts) {
    this.#parts = parts;
  }

  import(info: Uint8Array, about: { readonly kind: MemoryKind; readonly bytes: number }): LocalRemoteRegion {
    this.sweep();
    let file: MappedFile | undefined;
    const region = readRegionInfo(info, about, (place) => {
      file = this.#open(place);
      return file.memory.address + place.offset;
    });
    file?.users.add(region);
    this.#regions.add(region);
    return region;
  }

  /** Transfers on the region fail from their next post on; it is unmapped once nothing touches it any more. */
  release(region: LocalRemoteRegion): void {
    if (!this.#regions.delete(region)) return;
    region.isReleased = true;
    this.#leaving.add(region);
    this.#parts.onRelease(region);
    this.#unmap();
  }

  /** Releases what the peer has taken back. */
  sweep(): void {
    for (const region of this.#regions) if (!this.#parts.isHeld(region)) this.release(region);
    if (this.#leaving.size > 0) this.#unmap();
  }

  /** GPU memory of the peer at an address of the device. */
  mapAllocation(reach: Extract<RegionReach, { kind: 'cuda' }>, device: CudaDevice): number {
    if (this.#parts.pid === process.pid) return reach.base + reach.offset;
    const { handle } = reach;
    const key = `${device.context.ordinal} ${handle}`;
    let found = this.#allocations.get(key);
    if (found === undefined) {
      found = { handle, storage: device.openPeerMemory(handle, reach.mappedBytes) };
      this.#allocations.set(key, found);
    }
    return found.storage.address + reach.offset;
  }

  /** Unmaps everything. Nothing may touch it any more. */
  close(): void {
    for (const { storage } of this.#allocations.values()) storage[Symbol.dispose]();
    for (const { memory } of this.#files.values()) memory[Symbol.dispose]();
    this.#allocations.clear();
    this.#files.clear();
    this.#regions.clear();
    this.#leaving.clear();
  }

  #open({ fd, device, inode, bytes }: SharedPlace): MappedFile {
    const key = `${device} ${inode}`;
    const known = this.#files.get(key);
    if (known !== undefined) {
      if (known.memory.bytes === bytes) return known;
      throw notUnderstood(`it lies in a file of ${bytes} bytes, which has ${known.memory.bytes}`);
    }
    const { pid, peerName } = this.#parts;
    const file = {
      memory: SharedMemory.open({ pid, fd, device, inode, bytes }, peerName),
      users: new Set<LocalRemoteRegion>(),
    };
    this.#files.set(key, file);
    return file;
  }

  #unmap(): void {
    const { isBusy, hasChannels } = this.#parts;
    for (const region of this.#leaving) {
      if (isBusy(region) || (region.reach.kind === 'cuda' && hasChannels())) continue;
      this.#leaving.delete(region);
      if (region.reach.kind === 'mapped') this.#unmapFile(region);
      else if (region.reach.kind === 'cuda') this.#unmapAllocation(region.reach.handle);
    }
  }

  #unmapFile(region: LocalRemoteRegion): void {
    for (const [key, { memory, users }] of this.#files) {
      if (!users.delete(region) || users.size > 0) continue;
      this.#files.delete(key);
      memory[Symbol.dispose]();
    }
  }

  #unmapAllocation(handle: string): void {
    const isUsed = ({ reach }: LocalRemoteRegion): boolean => reach.kind === 'cuda' && reach.handle === handle;
    if ([...this.#regions, ...this.#leaving].some(isUsed)) return;
    for (const [key, allocation] of this.#allocations) {
      if (allocation.handle !== handle) continue;
      this.#allocations.delete(key);
      allocation.storage[Symbol.dispose]();
    }
  }
}
