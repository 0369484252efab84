// The weights of a rank's experts, twice: those in force, and those of the next epoch while they come.
import { setImmediate as nextTurn } from 'node:timers/promises';
import type { CpuDevice } from '../../device/cpu/cpu-device.ts';
import type { Tensor } from '../../device/tensor.ts';

/** Bytes that are copied or summed before the event loop gets its turn. */
const SLICE_BYTES = 1 << 20;

/** Which of the two copies. */
export type Half = 0 | 1;

interface ExpertMemoryShape {
  readonly layers: number;
  /** Physical experts of the rank. */
  readonly slots: number;
  readonly expertBytes: number;
}

export class ExpertMemory implements Disposable {
  /** u8 [2, layers, slots, expertBytes], the same on all ranks. */
  readonly tensor: Tensor<'u8'>;
  readonly #shape: ExpertMemoryShape;
  readonly #device: CpuDevice;

  /** Fails with WL_MEMORY. */
  constructor(device: CpuDevice, shape: ExpertMemoryShape) {
    const { layers, slots, expertBytes } = shape;
    this.#device = device;
    this.#shape = shape;
    this.tensor = device.empty('u8', [2, layers, slots, expertBytes]);
  }

  /** Of an expert's bytes, from the beginning of the tensor. */
  offset(half: Half, layer: number, slot: number): number {
    const { layers, slots, expertBytes } = this.#shape;
    return ((half * layers + layer) * slots + slot) * expertBytes;
  }

  /** [layers, slots, expertBytes] */
  half(half: Half): Tensor<'u8'> {
    return this.tensor.slice(half, half + 1).reshape(this.tensor.shape.slice(1));
  }

  /** The bytes of an expert in place. */
  bytes(half: Half, layer: number, slot: number): Uint8Array {
    const first = this.offset(half, layer, slot);
    return this.tensor.view().subarray(first, first + this.#shape.expertBytes);
  }

  /** CRC-32C of an expert's bytes, in slices between which other work of the thread is done. */
  async checksum(half: Half, layer: number, slot: number): Promise<number> {
    const address = this.tensor.address + this.offset(half, layer, slot);
    const { expertBytes } = this.#shape;
    let crc = 0;
    for (let done = 0; done < expertBytes; done += SLICE_BYTES) {
      if (done > 0) await nextTurn();
      crc = this.#device.kernels.crc32c(crc, address + done, Math.min(SLICE_BYTES, expertBytes - done));
    }
    return crc >>> 0;
  }

  /** Copies an expert of this rank to a slot of the other half, in slices. */
  async copy(
    from: { readonly half: Half; readonly layer: number; readonly slot: number },
    slot: number,
  ): Promise<void> {
    const { half, layer } = from;
    const source = this.bytes(half, layer, from.slot);
    const target = this.bytes(half === 0 ? 1 : 0, layer, slot);
    for (let done = 0; done < source.length; done += SLICE_BYTES) {
      if (done > 0) await nextTurn();
      target.set(source.subarray(done, done + SLICE_BYTES), done);
    }
  }

  [Symbol.dispose](): void {
    this.tensor.dispose();
  }
}
