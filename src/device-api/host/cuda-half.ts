// A DeviceHost's side of a GPU: requests and queues that kernels reach, memory of peers mapped by CUDA IPC.
import { invalidArgument, WeftlineError } from '../../core/errors.ts';
import type { CudaDevice } from '../../device/cuda/cuda-device.ts';
import { CUDA_SUCCESS } from '../../device/cuda/cuda-status.ts';
import { whyNoPeerAtomics } from '../../device/cuda/peer-atomics.ts';
import { type Storage, Tensor } from '../../device/tensor.ts';
import { type Out, viewAt } from '../../native/library.ts';
import type { CpuKernelApi } from './cpu-kernel-api.ts';
import { CudaRequests } from '../service/cuda-requests.ts';
import type { DeviceHalf, DeviceHalfOptions, MappedRanges } from './device-half.ts';
import { DeviceTraps } from './device-traps.ts';
import type { RequestShape } from '../service/request-shape.ts';
import type { DescRange, TransferDescs } from './transfer-descs.ts';

export interface CudaHalfOptions extends DeviceHalfOptions {
  readonly device: CudaDevice;
}

/** What the driver shares at once; smaller allocations would show neighbours to the other processes as well. */
const SHARED_BLOCK = 2 << 20;
/** Of cuMemHostRegister: for all contexts of the process, with an address that kernels use. */
const PORTABLE = 1;
const DEVICE_MAPPED = 2;

export class CudaHalf implements DeviceHalf {
  readonly #device: CudaDevice;
  readonly #requests: CudaRequests;
  readonly #traps: DeviceTraps;
  readonly #owned = new Map<number, Storage>();
  /** Host memory that kernels reach, by where they find it. */
  readonly #pinned = new Map<number, { readonly host: number; readonly bytes: number }>();
  /** Allocations of peers by the name of their memory: each is mapped once, while requests use it. */
  readonly #mapped = new Map<string, { readonly memory: Storage; users: number }>();
  readonly #endJudging: () => void;

  static async create(options: CudaHalfOptions): Promise<CudaHalf> {
    const { device, agent, peerName } = options;
    const traps = new DeviceTraps({ device, agent, peerName });
    const requests = await CudaRequests.create({ ...options, trap: traps.address });
    return new CudaHalf(device, requests, traps);
  }

  private constructor(device: CudaDevice, requests: CudaRequests, traps: DeviceTraps) {
    this.#device = device;
    this.#requests = requests;
    this.#traps = traps;
    this.#endJudging = device.context.judgeWaits((isDone) => this.#throwIfFailed(isDone));
  }

  get deviceId(): number {
    return this.#device.context.ordinal;
  }

  get ordinal(): number {
    return this.#device.context.ordinal;
  }

  get kernelApi(): CpuKernelApi {
    throw new WeftlineError(
      'WL_UNSUPPORTED',
      'kernelApi is for the CPU: on a GPU launch kernels that include weftline/weftline.cuh (device.compile)',
    );
  }

  get waits(): number {
    return this.#requests.state;
  }

  get queueMemory(): { readonly address: number; readonly bytes: number } {
    return this.#requests.rings;
  }

  async allocate(bytes: number): Promise<{ readonly address: number }> {
    const storage = this.#device.allocateShared(Math.ceil(bytes / SHARED_BLOCK) * SHARED_BLOCK);
    this.#owned.set(storage.address, storage);
    // No peer may write before the memory is zeroed.
    await this.#device.stream.idle();
    return { address: storage.address };
  }

  addressOf(tensor: Tensor): number {
    if (tensor.device === this.#device) return tensor.address;
    throw invalidArgument('memory', `a tensor of another ${tensor.device.kind} device`, 'one of this GPU');
  }

  owns(address: number, bytes: number): boolean {
    const { context } = this.#device;
    const base: Out = [0];
    const size: Out = [0];
    if (context.status('cuMemGetAddressRange', base, size, address) !== CUDA_SUCCESS) return false;
    return address + bytes <= base[0] + size[0];
  }

  pin(address: number, bytes: number): number {
    const { context } = this.#device;
    context.call('cuMemHostRegister', address, bytes, PORTABLE | DEVICE_MAPPED);
    const mapped: Out = [0];
    context.call('cuMemHostGetDevicePointer', mapped, address, 0);
    this.#pinned.set(mapped[0], { host: address, bytes });
    return mapped[0];
  }

  unpin(): void {
    for (const address of this.#pinned.keys()) this.release(address);
  }

  release(address: number): void {
    const pinned = this.#pinned.get(address);
    if (pinned !== undefined) this.#device.context.release('cuMemHostUnregister', pinned.host);
    this.#pinned.delete(address);
    this.#owned.get(address)?.[Symbol.dispose]();
    this.#owned.delete(address);
  }

  isFar(address: number): boolean {
    return !this.#pinned.has(address);
  }

  view({ address, bytes }: { readonly address: number; readonly bytes: number }): Uint8Array {
    const pinned = this.#pinned.get(address);
    return pinned === undefined ? this.#device.hostView() : new Uint8Array(viewAt(pinned.host, bytes));
  }

  async read(memory: { readonly address: number; readonly bytes: number }): Promise<Uint8Array> {
    return this.#pinned.has(memory.address) ? this.view(memory).slice() : this.#tensor(memory).toHost();
  }

  async write(address: number, values: Uint8Array): Promise<void> {
    if (this.#pinned.has(address)) {
      this.view({ address, bytes: values.length }).set(values);
      return;
    }
    await this.#tensor({ address, bytes: values.length }).fromHost(values);
  }

  exportMemory(address: number, bytes: number): DescRange['ipc'] {
    for (const [mapped, pinned] of this.#pinned) {
      if (address >= mapped && address < mapped + pinned.bytes) return undefined;
    }
    const allocation = this.#device.exportAllocation(address);
    const offset = address - allocation.base;
    if (offset + bytes > allocation.bytes) {
      throw new WeftlineError(
        'WL_INVALID_ARGUMENT',
        `A range of ${bytes} bytes is not inside one allocation of the GPU: ${allocation.bytes - offset} bytes are left there`,
        { details: { address, bytes, allocation: allocation.base, allocationBytes: allocation.bytes } },
      );
    }
    return { handle: allocation.handle, offset, bytes: allocation.bytes };
  }

  map(descs: TransferDescs): MappedRanges | string {
    if (descs.process === process.pid) return 'it is in this process, which cannot map its own memory';
    const keys: string[] = [];
    const addresses: number[] = [];
    const unmap = (): void => {
      for (const key of keys.splice(0)) this.#unmap(key);
    };
    for (const { ipc } of descs.ranges) {
      const mapped = ipc === undefined ? 'its memory is not that of a GPU' : this.#mapOne(descs.process, ipc);
      if (typeof mapped === 'string') {
        unmap();
        return mapped;
      }
      keys.push(mapped.key);
      addresses.push(mapped.address);
    }
    return { addresses, [Symbol.dispose]: unmap };
  }

  #mapOne(
    process: number,
    ipc: NonNullable<DescRange['ipc']>,
  ): { readonly key: string; readonly address: number } | string {
    const key = `${process} ${ipc.handle}`;
    let mapped = this.#mapped.get(key);
    if (mapped === undefined) {
      try {
        const memory = this.#device.openPeerMemory(ipc.handle, ipc.bytes);
        // Signals are additions; the host can make them instead.
        const reason = whyNoPeerAtomics(this.#device.context, memory.address);
        if (reason !== undefined) {
          memory[Symbol.dispose]();
          return reason;
        }
        mapped = { memory, users: 0 };
      } catch (error) {
        if (!(error instanceof WeftlineError) || error.code !== 'WL_CUDA' || this.#device.context.lost) throw error;
        return `its memory cannot be mapped: ${error.message}`;
      }
      this.#mapped.set(key, mapped);
    }
    mapped.users += 1;
    return { key, address: mapped.memory.address + ipc.offset };
  }

  #unmap(key: string): void {
    const mapped = this.#mapped.get(key);
    if (mapped === undefined || (mapped.users -= 1) > 0) return;
    this.#mapped.delete(key);
    mapped.memory[Symbol.dispose]();
  }

  addRequest(request: RequestShape): Promise<number> {
    return this.#requests.add(request);
  }

  removeRequest(handle: number): void {
    this.#requests.remove(handle);
  }

  abort(error: WeftlineError): void {
    this.#traps.abort(error);
  }

  throwIfFailed(): void {
    this.#throwIfFailed(true);
  }

  #throwIfFailed(isDone: boolean): void {
    const error = this.#traps.take(isDone);
    if (error === undefined) return;
    this.#requests.clearFailures();
    throw error;
  }

  /** Over memory that someone else owns. */
  #tensor({ address, bytes }: { readonly address: number; readonly bytes: number }): Tensor<'u8'> {
    const storage: Storage = { device: this.#device, address, bytes, disposed: false, [Symbol.dispose]: () => {} };
    return new Tensor(storage, 'u8', [bytes]);
  }

  [Symbol.dispose](): void {
    this.#endJudging();
    for (const { memory } of this.#mapped.values()) memory[Symbol.dispose]();
    this.#requests[Symbol.dispose]();
    this.#traps[Symbol.dispose]();
    for (const storage of this.#owned.values()) storage[Symbol.dispose]();
  }
}
