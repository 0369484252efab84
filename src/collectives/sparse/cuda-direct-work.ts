// The work of a GPU for sums with GPUs whose memory it reaches: kernels on two streams, over windows that all have mapped.
import { reductionFormats } from '../../abi/element-formats.ts';
import { alignUp } from '../../abi/layout.ts';
import type {
  sparseMarkArguments,
  sparseShareArguments,
  sparseSumArguments,
  sparseTellArguments,
} from '../../abi/collectives.ts';
import type { CudaDevice } from '../../device/cuda/cuda-device.ts';
import type { HostMemory } from '../../device/cuda/host-memory.ts';
import { sparseBlockKernels, sparseDirectKernels } from '../../device/cuda/kernels/collectives.ts';
import type { LaunchPlan } from '../../device/cuda/kernel.ts';
import type { Tensor } from '../../device/tensor.ts';
import type { CudaWindow } from '../../windows/cuda-window.ts';
import type { BlockWay, DirectWork, Piece, WorkMark } from './block-work.ts';
import { markLimit, WorkStreams } from './work-streams.ts';
import { noCall, type SparseCall } from './sparse-call.ts';

const THREADS = 256;
const WARPS = THREADS / 32;
/** Thread blocks that a multiprocessor has at the same time; of the kernel that sums, whose threads hold more. */
const RESIDENT = 8;
const RESIDENT_SUMS = 4;
const PIECE_BYTES = 32 << 20;
const BUFFERS = 2;
const MIN_ELEMENT_BYTES = 2;
const ALIGNMENT = 256;

type Plan<Layout> = Layout extends { readonly offset: infer Offset } ? LaunchPlan<keyof Offset & string> : never;
type SumPlan = Plan<typeof sparseSumArguments>;

export interface DirectKernels {
  readonly mark: Plan<typeof sparseMarkArguments>;
  readonly share: Plan<typeof sparseShareArguments>;
  readonly sums: Readonly<Record<SparseCall['dtype'], SumPlan>>;
  readonly tell: Plan<typeof sparseTellArguments>;
}

/** Compiles. Fails with WL_COMPILE, WL_UNSUPPORTED or WL_CUDA. */
export async function loadDirectKernels(device: CudaDevice): Promise<DirectKernels> {
  const shape = { grid: 1, block: THREADS };
  const load = (FORMAT: number): ReturnType<typeof device.loadKernels<typeof sparseDirectKernels>> =>
    device.loadKernels(sparseDirectKernels, { FORMAT });
  const [{ sparseMark, sparseTell }, bf16, f32, i32] = await Promise.all([
    device.loadKernels(sparseBlockKernels),
    load(reductionFormats.bf16),
    load(reductionFormats.f32),
    load(reductionFormats.i32),
  ]);
  return {
    mark: sparseMark.plan(shape),
    tell: sparseTell.plan({ grid: 1, block: 1 }),
    share: f32.sparseShare.plan(shape),
    sums: { bf16: bf16.sparseSum.plan(shape), f32: f32.sparseSum.plan(shape), i32: i32.sparseSum.plan(shape) },
  };
}

/** Of a rank's window: buffers, of which each has a byte for each block and then the blocks. */
export function directWindowBytes(blockSize: number): number {
  return BUFFERS * (marksBytes(blockSize) + PIECE_BYTES);
}

function marksBytes(blockSize: number): number {
  return alignUp(Math.ceil(PIECE_BYTES / (blockSize * MIN_ELEMENT_BYTES)), ALIGNMENT);
}

export class CudaDirectWork implements DirectWork {
  readonly pieceBytes = PIECE_BYTES;
  readonly buffers = BUFFERS;
  readonly found: Uint32Array;
  readonly #device: CudaDevice;
  readonly #kernels: DirectKernels;
  readonly #window: CudaWindow;
  readonly #blockSize: number;
  readonly #marksBytes: number;
  readonly #streams: WorkStreams;
  readonly #counts: Tensor;
  readonly #host: HostMemory;
  #call: SparseCall = noCall;

  /** Takes the window. Fails with WL_MEMORY or WL_CUDA. */
  constructor(device: CudaDevice, kernels: DirectKernels, window: CudaWindow, blockSize: number) {
    this.#device = device;
    this.#kernels = kernels;
    this.#window = window;
    this.#blockSize = blockSize;
    this.#marksBytes = marksBytes(blockSize);
    this.#counts = device.empty('i32', [2]);
    this.#host = device.allocateHost(8);
    this.found = new Uint32Array(this.#host.buffer, 0, 2);
    this.#streams = new WorkStreams(device);
    kernels.tell.arguments.set('parts', 0);
    for (const { arguments: set } of Object.values(kernels.sums)) {
      set.set('found', this.#counts.address);
      set.set('ranks', window.addresses.length);
      set.set('rank', window.index);
    }
  }

  makeMark(way: BlockWay): WorkMark {
    return this.#streams.makeMark(way);
  }

  begin(call: SparseCall): void {
    this.#call = call;
    this.#streams.begin();
    this.#device.setBytes(this.#counts, 0, this.#streams.in);
    const blockBytes = this.#blockSize * call.elementBytes;
    const { mark, share, sums } = this.#kernels;
    for (const { arguments: set } of [mark, share, sums[call.dtype]]) set.set('blockBytes', blockBytes);
    mark.arguments.set('format', reductionFormats[call.dtype]);
    mark.arguments.set('limit', markLimit(call.dtype, call.threshold));
    mark.arguments.set('isAligned', call.input % 16 === 0 && call.output % 16 === 0 ? 1 : 0);
  }

  share({ first, blocks, buffer }: Piece): void {
    if (blocks === 0) return;
    const { input, output, isDense } = this.#call;
    const { context } = this.#device;
    const { out } = this.#streams;
    const { mark, share } = this.#kernels;
    const at = first * this.#blockSize * this.#call.elementBytes;
    const bytes = this.#bytesOf(first, blocks);
    const marks = this.#window.address + this.#bufferAt(buffer);
    const grid = Math.min(Math.ceil(blocks / WARPS), RESIDENT * this.#device.properties.multiprocessors);
    if (isDense) {
      context.workCount += 1;
      context.call('cuMemsetD8Async', marks, 0, blocks, out.handle);
    } else {
      const set = mark.arguments;
      set.set('input', input + at);
      set.set('output', output + at);
      set.set('marks', marks);
      set.set('bytes', bytes);
      set.set('blocks', blocks);
      mark.setGrid(grid);
      mark.launch(out);
    }
    const set = share.arguments;
    set.set('tensor', input + at);
    set.set('shared', marks + this.#marksBytes);
    set.set('marks', marks);
    set.set('bytes', bytes);
    set.set('blocks', blocks);
    share.setGrid(grid);
    share.launch(out);
  }

  sum({ first, blocks, buffer }: Piece, isLast: boolean): void {
    const { context, properties } = this.#device;
    const { in: into } = this.#streams;
    if (blocks > 0) {
      const plan = this.#kernels.sums[this.#call.dtype];
      const set = plan.arguments;
      for (const [rank, address] of this.#window.addresses.entries()) {
        const marks = address + this.#bufferAt(buffer);
        set.set('marks', marks, rank);
        set.set('shared', marks + this.#marksBytes, rank);
      }
      set.set('output', this.#call.output + first * this.#blockSize * this.#call.elementBytes);
      set.set('bytes', this.#bytesOf(first, blocks));
      set.set('blocks', blocks);
      plan.setGrid(Math.min(Math.ceil(blocks / WARPS), RESIDENT_SUMS * properties.multiprocessors));
      plan.launch(into);
    }
    if (!isLast) return;
    context.workCount += 1;
    context.call('cuMemcpyAsync', this.#host.deviceAddress, this.#counts.address, this.#host.bytes, into.handle);
  }

  tell(flag: number, parts: number): void {
    const { tell } = this.#kernels;
    tell.arguments.set('flag', flag);
    tell.arguments.set('parts', parts);
    tell.launch(this.#streams.in);
  }

  join(): void {
    this.#streams.join();
  }

  async close(): Promise<void> {
    await this.#streams.close();
    this.#counts.dispose();
    this.#host[Symbol.dispose]();
    this.#window[Symbol.dispose]();
  }

  #bufferAt(buffer: number): number {
    return buffer * (this.#marksBytes + PIECE_BYTES);
  }

  #bytesOf(first: number, blocks: number): number {
    const { count, elementBytes } = this.#call;
    return Math.min(blocks * this.#blockSize, count - first * this.#blockSize) * elementBytes;
  }
}
