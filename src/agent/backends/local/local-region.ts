// Registered memory of this side, and what peers of the host are told of it.
import { Block, defineLayout } from '../../../abi/layout.ts';
import { CudaDevice } from '../../../device/cuda/cuda-device.ts';
import { admitPeersToMemory } from '../../../native/process-memory.ts';
import type { AgentMemory, BackendRegion } from '../../backend.ts';
import type { Mailbox } from './mailbox.ts';

// What the agent's local backend publishes: of itself, and of each region.

/** Goes up with every change of these layouts, and of those of the mailbox: agents of another version choose another backend. */
export const LOCAL_INFO_VERSION = 3;
export const BOOT_ID_BYTES = 40;
/** Bytes of a handle of the CUDA driver. */
export const MEMORY_HANDLE_BYTES = 64;

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
  #releasing: Promise<void> | undefined;

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

  release(): Promise<void> {
    this.#releasing ??= this.#release().catch((error: unknown) => {
      this.#releasing = undefined;
      throw error;
    });
    return this.#releasing;
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
