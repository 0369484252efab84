// Registered memory of this side, and what peers of the host are told of it.
import { Block } from '../../../abi/layout.ts';
import { localRegionInfo, localRegionKinds } from './local-info.ts';
import { CudaDevice } from '../../../device/cuda/cuda-device.ts';
import { admitPeersToMemory } from '../../../native/process-memory.ts';
import type { AgentMemory, BackendRegion } from '../../backend.ts';
import type { Mailbox } from './mailbox.ts';

interface LocalRegionOptions {
  /** How long peers may take to end the steps that they are in. */
  readonly timeoutMs: number;
  /** Ends what this side does with the memory, at once; resolves when it is over. */
  readonly onRelease: (region: LocalRegion) => Promise<void>;
}

export class LocalRegion implements BackendRegion {
  readonly info: Uint8Array;
  readonly address: number;
  /** Of GPU memory: the device that owns it. */
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
    else describeProcess(info, memory.address);
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

function describeProcess(info: Info, address: number): void {
  admitPeersToMemory();
  info.set('kind', localRegionKinds.process);
  info.set('address', address);
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
