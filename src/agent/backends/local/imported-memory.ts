// Memory of one peer as this process holds it: mapped files and allocations of GPUs, for as long as a region needs them.
import type { CudaDevice } from '../../../device/cuda/cuda-device.ts';
import type { Storage } from '../../../device/tensor.ts';
import { SharedMemory } from '../../../windows/shared-memory.ts';
import type { MemoryKind } from '../../agent-memory.ts';
import {
  type LocalRemoteRegion,
  notUnderstood,
  readRegionInfo,
  type RegionReach,
  type SharedPlace,
} from './remote-region.ts';

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
  /** By device and inode. */
  readonly #files = new Map<string, MappedFile>();
  /** By device and handle. */
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
