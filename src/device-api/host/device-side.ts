// What a DeviceHost asks of the kind of device that it serves; the implementations are CpuSide and CudaSide.
import type { WeftlineError } from '../../core/errors.ts';
import type { Tensor } from '../../device/tensor.ts';
import type { CpuKernelApi } from './cpu-kernel-api.ts';
import type { SharedBytes } from '../service/proxy-messages.ts';
import type { RequestShape } from '../service/request-shape.ts';
import type { DescRange, TransferDescs } from './transfer-descs.ts';

export interface DeviceSide extends Disposable {
  /** The GPU's ordinal; 0 on the CPU. */
  readonly deviceId: number;
  /** Of a GPU. */
  readonly ordinal: number | undefined;
  readonly kernelApi: CpuKernelApi;
  /** What kernels wait with. */
  readonly waits: number;
  readonly queueMemory: SharedBytes;
  /** Memory of the device; `id` if it is registered already. */
  allocate(bytes: number): Promise<{ readonly address: number; readonly id?: number }>;
  /** Where kernels and the host find a tensor. Fails with WL_INVALID_ARGUMENT for one of another device. */
  addressOf(tensor: Tensor): number;
  /** Whether all these bytes are memory of the device, or of this process on the CPU. */
  owns(address: number, bytes: number): boolean;
  /** Lets kernels reach host memory of this process; returns where they find it. */
  pin(address: number, bytes: number): number;
  /** True for memory that the host reads only by copies of the device. */
  isFar(address: number): boolean;
  /** Of the agent's memory, which is freed next: waits that look at it end, and nothing of it is pinned any more. */
  unpin(): void;
  view(memory: { readonly address: number; readonly bytes: number }): Uint8Array;
  read(memory: { readonly address: number; readonly bytes: number }): Promise<Uint8Array>;
  write(address: number, values: Uint8Array): Promise<void>;
  /** How other processes of the host map the range; undefined if not at all. */
  exportMemory(address: number, bytes: number): DescRange['ipc'];
  /** Where the ranges of a peer of this host are mapped, until that is disposed, or why they are not. */
  map(descs: TransferDescs): MappedRanges | string;
  /** The handle for kernels. */
  addRequest(request: RequestShape): Promise<number>;
  /** Kernels use the handle no more. */
  removeRequest(handle: number): void;
  /** No kernel uses the memory any more, which allocate() or pin() gave; others' memory stays. */
  release(address: number): void;
  /** Kernels that wait leave, and throwIfFailed() throws the error once. */
  abort(error: WeftlineError): void;
  throwIfFailed(): void;
}

export interface MappedRanges extends Disposable {
  readonly addresses: readonly number[];
}

/** What both implementations are made with. */
export interface DeviceSideOptions {
  readonly agent: string;
  readonly requests: readonly (RequestShape | undefined)[];
  readonly peerName: (peer: number) => string;
  readonly timeoutMs: number;
  readonly queues: number;
  readonly capacity: number;
}
