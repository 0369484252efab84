// Device memory that other processes of this host map into their own address space.
import { WeftlineError } from '../../core/errors.ts';
import { IPC_HANDLE_BYTES } from '../../native/cuda-driver.ts';
import type { Out } from '../../native/library.ts';
import type { Device } from '../device.ts';
import type { Storage } from '../tensor.ts';
import type { CudaContext } from './cuda-context.ts';

const LAZY_ENABLE_PEER_ACCESS = 1;

/** Names the memory for other processes; valid as long as the memory is. */
export function exportMemory(context: CudaContext, address: number): string {
  const handle = new Uint8Array(IPC_HANDLE_BYTES);
  context.call('cuIpcGetMemHandle', handle, address);
  return Buffer.from(handle).toString('base64');
}

/** The allocation that holds an address: it is shared as a whole. Fails with WL_CUDA for memory that cannot be shared. */
export function exportAllocation(
  context: CudaContext,
  address: number,
): { readonly base: number; readonly bytes: number; readonly handle: string } {
  const base: Out = [0];
  const bytes: Out = [0];
  context.call('cuMemGetAddressRange', base, bytes, address);
  return { base: base[0], bytes: bytes[0], handle: exportMemory(context, base[0]) };
}

/** Another process's memory in this one. A process cannot open its own. */
export class PeerMemory implements Storage {
  readonly device: Device;
  readonly address: number;
  readonly bytes: number;
  readonly #context: CudaContext;
  #disposed = false;

  /** Use device.openPeerMemory(). */
  constructor(device: Device, context: CudaContext, peer: { readonly handle: string; readonly bytes: number }) {
    const reserved = new Uint8Array(Buffer.from(peer.handle, 'base64'));
    if (reserved.length !== IPC_HANDLE_BYTES) {
      throw new WeftlineError(
        'WL_PROTOCOL',
        `Invalid memory handle: expected ${IPC_HANDLE_BYTES} bytes, got ${reserved.length}`,
      );
    }
    const address: Out = [0];
    const status = context.status('cuIpcOpenMemHandle', address, { reserved }, LAZY_ENABLE_PEER_ACCESS);
    context.check('cuIpcOpenMemHandle', status, 'mapping the memory of another process');
    this.device = device;
    this.address = address[0];
    this.bytes = peer.bytes;
    this.#context = context;
    context.own(this);
  }

  get disposed(): boolean {
    return this.#disposed;
  }

  /** No work that uses the memory may be running. */
  [Symbol.dispose](): void {
    if (this.#disposed) return;
    this.#disposed = true;
    this.#context.disown(this);
    this.#context.release('cuIpcCloseMemHandle', this.address);
  }
}
