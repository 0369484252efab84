// What a DeviceHost asks of the kind of device that it serves; the implementations are CpuSide and CudaSide.
import { z } from '#zod';
import { invalidArgument, WeftlineError } from '../../core/errors.ts';
import type { Tensor } from '../../device/tensor.ts';
import type { SharedBytes } from '../service/proxy-worker.ts';
import type { RequestShape } from '../service/command-queue.ts';
import type { CpuKernelApi } from './cpu-kernel-api.ts';

export interface DeviceSide extends Disposable {
  /** The GPU's ordinal; undefined on the CPU. */
  readonly ordinal: number | undefined;
  readonly kernelApi: CpuKernelApi;
  /** What kernels wait with. */
  readonly waits: number;
  readonly queueMemory: SharedBytes;
  /** Memory of the device; `id` if it is registered already. */
  allocate(bytes: number): Promise<{ readonly address: number; readonly id?: number }>;
  /** The address at which kernels and the host find a tensor. Fails with WL_INVALID_ARGUMENT for one of another device. */
  addressOf(tensor: Tensor): number;
  /** Whether all these bytes are memory of the device, or of this process on the CPU. */
  owns(address: number, bytes: number): boolean;
  /** Lets kernels reach host memory of this process; returns where they find it. */
  pin(address: number, bytes: number): number;
  /** True for memory that the host reads only by copies of the device. */
  isFar(address: number): boolean;
  /** Gives up the agent's memory, which is freed next: waits that look at it end, and nothing of it is pinned any more. */
  unpin(): void;
  view(memory: { readonly address: number; readonly bytes: number }): Uint8Array;
  read(memory: { readonly address: number; readonly bytes: number }): Promise<Uint8Array>;
  write(address: number, values: Uint8Array): Promise<void>;
  /** How other processes of the host map the range; undefined if not at all. */
  exportMemory(address: number, bytes: number): DescRange['ipc'];
  /** Addresses at which the ranges of a peer of this host are mapped, until that is disposed, or why they are not. */
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

// Ranges of registered memory as bytes for a peer, who makes requests from them: serialised transfer descriptors.

const rangeSchema = z.object({
  /** The number of the owner's registered memory in its metadata. */
  region: z.number().int().nonnegative(),
  offset: z.number().int().nonnegative(),
  bytes: z.number().int().positive(),
  /** How another process of the host maps the GPU memory; the range begins `offset` behind the allocation's start. */
  ipc: z
    .object({ handle: z.string(), offset: z.number().int().nonnegative(), bytes: z.number().int().positive() })
    .optional(),
});

const descsSchema = z.object({
  schema: z.literal('weftline.descs/1'),
  agent: z.string(),
  /** Tells hosts apart: memory is mapped only on the same one. */
  host: z.string(),
  process: z.number().int(),
  ranges: z.array(rangeSchema).min(1),
});

export type DescRange = z.infer<typeof rangeSchema>;
export type TransferDescs = Omit<z.infer<typeof descsSchema>, 'schema'>;

export function encodeDescs(descs: TransferDescs): Uint8Array {
  return Buffer.from(JSON.stringify({ schema: 'weftline.descs/1', ...descs }));
}

/** Fails with WL_PROTOCOL for bytes that are none, WL_INVALID_ARGUMENT for what is not bytes. */
export function decodeDescs(bytes: Uint8Array): TransferDescs {
  if (!(bytes instanceof Uint8Array)) {
    throw invalidArgument('remoteDescs', bytes, 'the Uint8Array that serializeXferDescs() of the peer returned');
  }
  try {
    return descsSchema.parse(JSON.parse(Buffer.from(bytes).toString('utf8')));
  } catch (cause) {
    throw new WeftlineError(
      'WL_PROTOCOL',
      `${bytes.length} bytes are no transfer descriptors: pass what serializeXferDescs() of the peer returned`,
      { cause },
    );
  }
}
