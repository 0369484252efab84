// How fast the kernel of a GPU finds blocks that are not zero, against a kernel that only reads the same memory.
import { reductionFormats } from '../../../abi/element-formats.ts';
import { median } from '../../../core/quantile.ts';
import type { CudaDevice } from '../../../device/cuda/cuda-device.ts';
import type { Tensor } from '../../../device/tensor.ts';
import { measureInTurn } from '../harness.ts';
import { kernelFiles } from '../../../device/cuda/kernel-files.ts';

const ROUNDS = { warmup: 3, iterations: 20 } as const;
const THREADS = 256;
/** Thread blocks per multiprocessor of the plain read: the fastest counts. */
const READ_BLOCKS = [4, 8, 16, 32] as const;
const MARK_BLOCKS = 8;

/** Alone on the GPU. `tensor` becomes zero; its blocks are all read then, as those of a sparse tensor are. */
export async function measureCudaBitmap(
  device: CudaDevice,
  tensor: Tensor,
  { blockSize, dtype }: { readonly blockSize: number; readonly dtype: 'f32' | 'i32' | 'bf16' },
): Promise<{ readonly bitmap: number; readonly read: number }> {
  const { sparseMark, benchRead } = await device.loadKernels(kernelFiles.sparseBlock);
  const blocks = Math.ceil(tensor.elements / blockSize);
  using marks = device.empty('u8', [blocks]);
  using sink = device.empty('u8', [4]);
  device.setBytes(tensor, 0);
  const { multiprocessors } = device.properties;
  const mark = sparseMark.plan({ grid: MARK_BLOCKS * multiprocessors, block: THREADS });
  const set = mark.arguments;
  set.set('input', tensor.address);
  set.set('output', tensor.address);
  set.set('marks', marks.address);
  set.set('bytes', tensor.bytes);
  set.set('blocks', blocks);
  set.set('blockBytes', (tensor.bytes / tensor.elements) * blockSize);
  set.set('format', reductionFormats[dtype]);
  set.set('limit', 0);
  set.set('isAligned', 1);
  const reads = READ_BLOCKS.map((each) => {
    const read = benchRead.plan({ grid: each * multiprocessors, block: THREADS });
    read.arguments.set('input', tensor.address);
    read.arguments.set('bytes', tensor.bytes);
    read.arguments.set('sink', sink.address);
    return read;
  });
  using begin = device.createEvent({ timing: true });
  using end = device.createEvent({ timing: true });
  const samples = await measureInTurn(undefined, [mark, ...reads], ROUNDS, async (plan) => {
    begin.record(device.stream);
    plan.launch();
    end.record(device.stream);
    await end.wait();
    return { time: end.millisecondsSince(begin) };
  });
  const rates = samples.map((of) => tensor.bytes / median(of.slowest('time')) / 1e6);
  return { bitmap: rates[0]!, read: Math.max(...rates.slice(1)) };
}
