// Registered memory of this side and of a peer of this host: what peers are told of it, and how its bytes are reached.
import { Block, defineLayout } from '../../../abi/layout.ts';
import { copyOf } from '../../../core/bytes.ts';
import { WeftlineError } from '../../../core/errors.ts';
import { CudaDevice } from '../../../device/cuda/cuda-device.ts';
import { letKernelsReach } from '../../../device/cuda/device-properties.ts';
import type { Storage } from '../../../device/tensor.ts';
import { viewAt } from '../../../native/library.ts';
import { admitPeersToMemory } from '../../../native/process-memory.ts';
import { SharedMemory } from '../../../windows/shared-memory.ts';
import {
  type AgentMemory,
  type BackendRegion,
  type BackendRemoteRegion,
  type MemoryKind,
  untilDone,
} from '../../backend.ts';
import type { Mailbox } from './mailbox.ts';
import { MAILBOX_REGIONS } from './mailbox-layout.ts';
import { grantOf, type RegionGrant } from './peer-mailbox.ts';

// What the agent's local backend publishes: of itself, and of each region.

/** Goes up with every change of these layouts, and of those of the mailbox: agents of another version choose another backend. */
export const LOCAL_INFO_VERSION = 3;
export const BOOT_ID_BYTES = 40;
/** Bytes of a handle of the CUDA driver. */
const MEMORY_HANDLE_BYTES = 64;

/** How to reach the mailbox of an agent. Two processes can if they live under the same boot and see the same processes. */
export const localConnectionInfo = defineLayout('LocalConnectionInfo', {
  version: 'u32',
  pid: 'u32',
  uid: 'u32',
  fd: 'u32',
  device: 'u64',
  inode: 'u64',
  /** The namespace in which `pid` means the process. */
  pidNamespace: 'u64',
  /** The address of the mailbox in its owner's memory, and how long it is. */
  address: 'u64',
  bytes: 'u64',
  bootId: { of: 'u8', count: BOOT_ID_BYTES },
});

/** 1: memory that is mapped from a file; 2: any other memory of the process; 3: memory of a GPU. */
export const localRegionKinds = { shared: 1, process: 2, cuda: 3 } as const;

export const localRegionInfo = defineLayout('LocalRegionInfo', {
  kind: 'u32',
  /** The place in the mailbox's table, and what stands there. */
  slot: 'u32',
  key: 'u32',
  /** shared: descriptor of the file in its owner. */
  fd: 'u32',
  bytes: 'u64',
  /** process: in the owner's memory. shared, cuda: from the begin of what is mapped. */
  address: 'u64',
  /** shared: of the file; cuda: `mappedBytes` of the allocation. */
  device: 'u64',
  inode: 'u64',
  mappedBytes: 'u64',
  /** cuda: name of the allocation for other processes. */
  handle: { of: 'u8', count: MEMORY_HANDLE_BYTES },
});

interface LocalRegionOptions {
  /** How long peers may take to end the steps that they are in. */
  readonly timeoutMs: number;
  /** Ends what this side does with the memory, at once; resolves when it is over. */
  readonly onRelease: (region: LocalRegion) => Promise<void>;
}

export class LocalRegion implements BackendRegion {
  readonly info: Uint8Array;
  readonly address: number;
  /** The device that owns GPU memory. */
  readonly device: CudaDevice | undefined;
  /** Keeps the memory from being collected while transfers know its address. */
  readonly memory: AgentMemory;
  readonly #mailbox: Mailbox;
  readonly #slot: number;
  readonly #options: LocalRegionOptions;
  isReleased = false;
  /** The mailbox has freed its place. */
  #isWithdrawn = false;
  readonly release = untilDone(() => this.#release());

  constructor(memory: AgentMemory, mailbox: Mailbox, options: LocalRegionOptions) {
    this.#options = options;
    const { slot, key } = mailbox.openRegion();
    this.memory = memory;
    this.#mailbox = mailbox;
    this.#slot = slot;
    this.address = memory.address;
    this.device = memory.device instanceof CudaDevice ? memory.device : undefined;
    this.info = new Uint8Array(localRegionInfo.size);
    const info = new Block(localRegionInfo, this.info.buffer, 0);
    info.set('slot', slot);
    info.set('key', key);
    info.set('bytes', memory.bytes);
    if (this.device !== undefined) describeCuda(info, this.info, memory.address, this.device);
    else if (memory.shared !== undefined) describeShared(info, memory.shared);
    else {
      admitPeersToMemory();
      info.set('kind', localRegionKinds.process);
      info.set('address', memory.address);
    }
  }

  async #release(): Promise<void> {
    this.isReleased = true;
    const ends = await Promise.allSettled([this.#withdraw(), this.#options.onRelease(this)]);
    for (const end of ends) if (end.status === 'rejected') throw end.reason;
  }

  async #withdraw(): Promise<void> {
    if (this.#isWithdrawn) return;
    await this.#mailbox.closeRegion(this.#slot, this.#options.timeoutMs);
    this.#isWithdrawn = true;
  }
}

type Info = Block<keyof typeof localRegionInfo.offset>;

function describeShared(info: Info, { memory, offset }: NonNullable<AgentMemory['shared']>): void {
  info.set('kind', localRegionKinds.shared);
  info.set('address', offset);
  info.set('fd', memory.name.fd);
  info.set('device', memory.name.device);
  info.set('inode', memory.name.inode);
  info.set('mappedBytes', memory.bytes);
}

/** An allocation is shared as a whole: peers map it and add the offset. */
function describeCuda(info: Info, bytes: Uint8Array, address: number, device: CudaDevice): void {
  const { base, bytes: mappedBytes, handle } = device.exportAllocation(address);
  info.set('kind', localRegionKinds.cuda);
  info.set('address', address - base);
  // Another agent of the same process uses the memory where it is: a process cannot open its own handle.
  info.set('device', base);
  info.set('mappedBytes', mappedBytes);
  bytes.set(Buffer.from(handle, 'base64'), localRegionInfo.offset.handle);
}

// A region of a peer of this host: mapped here, reached through a system call, or memory of a GPU.

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
  #cells: BigInt64Array | undefined;

  constructor({ bytes, slot, key, reach }: RemoteRegionParts) {
    this.bytes = bytes;
    const grant = grantOf({ slot, key });
    this.keyAt = grant.keyAt;
    this.keyValue = grant.keyValue;
    this.reach = reach;
  }

  /** Its cells of 64 bits. Fails with WL_UNSUPPORTED for memory that is not mapped here. */
  get cells(): BigInt64Array {
    const { reach } = this;
    if (reach.kind !== 'mapped' || reach.address % 8 !== 0) {
      throw new WeftlineError(
        'WL_UNSUPPORTED',
        'Signals between processes of one host need cells in memory from agent.allocate(): only that is mapped by both sides',
      );
    }
    this.#cells ??= new BigInt64Array(viewAt(reach.address, Math.floor(this.bytes / 8) * 8));
    return this.#cells;
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

  /** True if kernels of the device can use what mapAllocation() gives. Memory of another process is opened for them. */
  doKernelsReach(reach: Extract<RegionReach, { kind: 'cuda' }>, device: CudaDevice): boolean {
    return this.#parts.pid !== process.pid || letKernelsReach(device.context, reach.base);
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
