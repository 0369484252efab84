// How fast the kernel finds blocks that are not zero, against a plain read of the same memory by the C library.
import { reductionFormats } from '../../../abi/element-formats.ts';
import { median } from '../../../core/quantile.ts';
import type { CpuDevice } from '../../../device/cpu/cpu-device.ts';
import type { Tensor } from '../../../device/tensor.ts';
import type { BitmapRates, SparseWorkload } from './sparse-results.ts';

const ROUNDS = 15;

/** `tensor` becomes zero; its blocks are all read then, as those of a sparse tensor are. */
export function measureBitmap(device: CpuDevice, tensor: Tensor, { blockSize, dtype }: SparseWorkload): BitmapRates {
  const bytes = device.hostView('u8', tensor.address, tensor.bytes);
  bytes.fill(0);
  const blockBytes = (tensor.bytes / tensor.elements) * blockSize;
  using bitmap = device.allocate(Math.ceil(tensor.bytes / blockBytes));
  const text = Buffer.from(bytes.buffer as ArrayBuffer, bytes.byteOffset, bytes.length);
  const format = reductionFormats[dtype];
  const { kernels } = device;
  const cases = {
    bitmap: (): number =>
      kernels.markBlocks(tensor.address, tensor.bytes, blockBytes, format, 0, bitmap.address, tensor.address),
    // One byte, which memchr looks for and never finds.
    read: (): number => text.indexOf(1),
  };
  const times = { bitmap: [] as number[], read: [] as number[] };
  for (let round = -2; round < ROUNDS; round++) {
    for (const name of ['bitmap', 'read'] as const) {
      const begin = performance.now();
      cases[name]();
      if (round >= 0) times[name].push(performance.now() - begin);
    }
  }
  const rate = (of: readonly number[]): number => tensor.bytes / median(of) / 1e6;
  return { bitmap: rate(times.bitmap), read: rate(times.read) };
}
