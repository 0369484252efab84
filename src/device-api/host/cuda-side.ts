// A DeviceHost's side of a GPU: requests and queues that kernels reach, memory of peers mapped by CUDA IPC.
import { Block } from '../../abi/layout.ts';
import { TRAP_ANY_PEER, trapReasons, trapRecord, trapStates } from '../../abi/trap-record.ts';
import { invalidArgument, WeftlineError } from '../../core/errors.ts';
import type { CudaDevice } from '../../device/cuda/cuda-device.ts';
import { CUDA_SUCCESS } from '../../device/cuda/cuda-context.ts';
import type { HostMemory } from '../../device/cuda/host-memory.ts';
import { whyNoPeerAtomics } from '../../device/cuda/device-properties.ts';
import type { Fence } from '../../device/cuda/cuda-stream.ts';
import { type Storage, Tensor } from '../../device/tensor.ts';
import { type Out, viewAt } from '../../native/library.ts';
import { CudaRequests } from '../service/cuda-requests.ts';
import type { RequestShape } from '../service/command-queue.ts';
import type { CpuKernelApi } from './cpu-kernel-api.ts';
import type { DescRange, DeviceSide, DeviceSideOptions, MappedRanges, TransferDescs } from './device-side.ts';

// What the device API's kernels report to their host and what it tells them: the trap record of one DeviceHost.

interface DeviceTrapsOptions {
  readonly device: CudaDevice;
  readonly agent: string;
  /** Names peers by the number that requests carry. */
  readonly peerName: (number: number) => string | undefined;
}

export class DeviceTraps implements Disposable {
  readonly #options: DeviceTrapsOptions;
  readonly #memory: HostMemory;
  readonly #record: Block<keyof typeof trapRecord.offset>;
  readonly #state: Int32Array;
  #abortedBy: WeftlineError | undefined;
  /** The last abort that was told. Kernels of other streams may leave, and say so, after that. */
  #toldAbort: WeftlineError | undefined;
  /** Passed when no kernel runs any more that is to leave. */
  #leaving: Fence | undefined;

  constructor(options: DeviceTrapsOptions) {
    this.#options = options;
    this.#memory = options.device.allocateHost(trapRecord.size);
    this.#record = new Block(trapRecord, this.#memory.buffer, 0);
    this.#state = this.#memory.view('i32', trapRecord.offset.state, 1);
  }

  get address(): number {
    return this.#memory.deviceAddress;
  }

  /** Kernels that wait leave within a few milliseconds; take() then returns the error once. */
  abort(reason: WeftlineError): void {
    this.#abortedBy ??= reason;
    this.#leaving = undefined;
    this.#record.set('abort', 1);
  }

  /**
   * Why a kernel left early; undefined if none did. The record is empty again. An abort is told when the work that was
   * waited for is done: kernels see it until all of them have left; only then is the caller told, so that it may launch others.
   */
  take(isDone: boolean): WeftlineError | undefined {
    if (this.#leaving?.isPassed() === true) this.#endAbort();
    if (this.#abortedBy !== undefined && !isDone) return undefined;
    const isReadable = Atomics.load(this.#state, 0) === trapStates.readable;
    const error = isReadable ? this.#describe() : undefined;
    if (isReadable) Atomics.store(this.#state, 0, trapStates.empty);
    const aborted = this.#abortedBy;
    if (aborted !== undefined) {
      this.#abortedBy = undefined;
      this.#toldAbort = aborted;
      const leaving = this.#options.device.workFence();
      if (leaving.isPassed()) this.#endAbort();
      else this.#leaving = leaving;
    }
    return aborted ?? error;
  }

  #endAbort(): void {
    this.#leaving = undefined;
    this.#record.set('abort', 0);
  }

  [Symbol.dispose](): void {
    this.#memory[Symbol.dispose]();
  }

  #describe(): WeftlineError {
    const read = (field: keyof typeof trapRecord.offset): number => this.#record.get(field);
    const { agent, peerName } = this.#options;
    const number = read('peer');
    const peer = number === TRAP_ANY_PEER ? 'its peers' : (peerName(number) ?? `peer ${number}`);
    const details = {
      agent,
      peer,
      channel: read('channel'),
      expected: read('expected'),
      seen: read('seen'),
      timeoutMs: read('timeoutNs') / 1e6,
    };
    const { channel, expected, seen, timeoutMs } = details;
    const reason = read('reason');
    if (reason === trapReasons.aborted && this.#toldAbort !== undefined) return this.#toldAbort;
    const kernel = `A kernel of ${agent}`;
    const invalid = (message: string): WeftlineError => new WeftlineError('WL_INVALID_ARGUMENT', message, { details });
    switch (reason) {
      case trapReasons.outOfRange:
        return invalid(
          seen === 0 || expected === 0
            ? `${kernel} named a counter or a cell of ${peer} that is not aligned: counters lie at multiples of 8, cells of words at multiples of 16; nothing was written`
            : `${kernel} named a range for ${peer} that ends at ${seen}, outside of ${expected} (bytes, or ranges of the request); nothing was written`,
        );
      case trapReasons.missingLanes:
        return invalid(
          `${kernel} made a call at warp level for ${peer} by the lanes ${maskText(seen)} without the others it needs (${maskText(expected)}); nothing was written. Puts need all 32 lanes of a warp until the deadline; a signal needs lane 0, and a __syncwarp() before it where lanes have gone different ways`,
        );
      case trapReasons.unknownFlags:
        return invalid(
          `Invalid flags of a post to ${peer} by a kernel of ${agent}: expected 0 or ${expected} (defer), got ${seen}; nothing was written`,
        );
      case trapReasons.commandFailed: {
        const message = `${kernel} left because the host could not carry out a command of request ${seen}`;
        return new WeftlineError('WL_PEER_FAILED', message, { details });
      }
      default: {
        const what = `(channel ${channel}: expected ${expected}, seen ${seen}); ${peer} may still compute, or have ended`;
        return new WeftlineError('WL_TIMEOUT', `${kernel} waited ${timeoutMs} ms for ${peer} ${what}`, { details });
      }
    }
  }
}

/** Lanes of a warp. */
function maskText(lanes: number): string {
  return `0x${lanes.toString(16).padStart(8, '0')}`;
}

/** What the driver shares at once; smaller allocations would show neighbours to the other processes as well. */
const SHARED_BLOCK = 2 << 20;
/** Flags of cuMemHostRegister: for all contexts of the process, with an address that kernels use. */
const PORTABLE = 1;
const DEVICE_MAPPED = 2;

export class CudaSide implements DeviceSide {
  readonly #device: CudaDevice;
  readonly #requests: CudaRequests;
  readonly #traps: DeviceTraps;
  readonly #owned = new Map<number, Storage>();
  /** Host memory that kernels reach, by where they find it. */
  readonly #pinned = new Map<number, { readonly host: number; readonly bytes: number }>();
  /** Allocations of peers by the name of their memory: each is mapped once, while requests use it. */
  readonly #mapped = new Map<string, { readonly memory: Storage; users: number }>();
  readonly #endJudging: () => void;

  static async create(options: DeviceSideOptions & { readonly device: CudaDevice }): Promise<CudaSide> {
    const { device, agent, peerName } = options;
    const traps = new DeviceTraps({ device, agent, peerName });
    const requests = await CudaRequests.create({ ...options, trap: traps.address });
    return new CudaSide(device, requests, traps);
  }

  private constructor(device: CudaDevice, requests: CudaRequests, traps: DeviceTraps) {
    this.#device = device;
    this.#requests = requests;
    this.#traps = traps;
    this.#endJudging = device.context.judgeWaits((isDone) => this.#throwIfFailed(isDone));
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

  /** A tensor over memory that someone else owns. */
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
