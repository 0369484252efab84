// A run of one GPU's memory with one owner.
import type { Device } from '../device.ts';
import type { Storage } from '../tensor.ts';

export class OwnedDeviceMemory implements Storage {
  readonly device: Device;
  readonly address: number;
  readonly bytes: number;
  readonly #free: () => void;
  #disposed = false;

  /** `free` is called once. */
  constructor(device: Device, range: { readonly address: number; readonly bytes: number }, free: () => void) {
    this.device = device;
    this.address = range.address;
    this.bytes = range.bytes;
    this.#free = free;
  }

  get disposed(): boolean {
    return this.#disposed;
  }

  [Symbol.dispose](): void {
    if (this.#disposed) return;
    this.#disposed = true;
    this.#free();
  }
}
