// The work of a GPU for sparse all-reduces: kernels on two streams, one for each way, which follow the device's stream and
// are followed by it.
import {
  SPARSE_GROUP_BLOCKS,
  SPARSE_SEGMENT_PLACES,
  type sparseIndexArguments,
  type sparseMarkArguments,
  type sparseMoveArguments,
  type sparseShareArguments,
  type sparseSumArguments,
  type sparseTellArguments,
} from '../../abi/collectives.ts';
import { reductionFormats } from '../../abi/element-formats.ts';
import { alignUp } from '../../abi/layout.ts';
import type { CudaDevice } from '../../device/cuda/cuda-device.ts';
import type { CudaEvent } from '../../device/cuda/cuda-event.ts';
import type { CudaStream } from '../../device/cuda/cuda-stream.ts';
import type { HostMemory } from '../../device/cuda/host-memory.ts';
import type { LaunchPlan } from '../../device/cuda/kernel.ts';
import type { Tensor } from '../../device/tensor.ts';
import type { CudaWindow } from '../../windows/cuda-window.ts';
import type {
  BlockIndex,
  BlockMove,
  BlockWay,
  BlockWork,
  DirectWork,
  Piece,
  SharedBytes,
  WorkMark,
} from './block-work.ts';
import { infinityOf, type SlotShape, strideOf } from './slot-shape.ts';
import { noCall, type SparseCall } from './sparse-call.ts';
import { kernelFiles } from '../../device/cuda/kernel-files.ts';

class StreamMark implements WorkMark {
  readonly #event: CudaEvent;
  readonly #stream: CudaStream;

  constructor(event: CudaEvent, stream: CudaStream) {
    this.#event = event;
    this.#stream = stream;
  }

  record(): void {
    this.#event.record(this.#stream);
  }

  isDone(): boolean {
    return this.#event.isDone();
  }

  dispose(): void {
    this.#event[Symbol.dispose]();
  }
}

class WorkStreams {
  readonly out: CudaStream;
  readonly in: CudaStream;
  readonly #device: CudaDevice;
  readonly #begun: CudaEvent;
  readonly #ended: CudaEvent;
  readonly #marks: StreamMark[] = [];

  constructor(device: CudaDevice) {
    this.#device = device;
    // Copies go before what the device computes meanwhile.
    this.out = device.createStream({ priority: 'high' });
    this.in = device.createStream({ priority: 'high' });
    this.#begun = device.createEvent();
    this.#ended = device.createEvent();
  }

  makeMark(way: BlockWay): WorkMark {
    const mark = new StreamMark(this.#device.createEvent(), this[way]);
    this.#marks.push(mark);
    return mark;
  }

  /** What is enqueued from now on follows all that the device's stream has to do now. */
  begin(): void {
    this.#begun.record(this.#device.stream);
    this.out.waitFor(this.#begun);
    this.in.waitFor(this.#begun);
  }

  /** Whatever the device's stream does next follows what was enqueued so far. */
  join(): void {
    const { stream } = this.#device;
    for (const one of [this.out, this.in]) {
      this.#ended.record(one);
      stream.waitFor(this.#ended);
    }
  }

  /** Has a kernel store in the flag, behind what was enqueued, how many parts of the output have their sums. */
  tell(plan: Plan<typeof sparseTellArguments>, flag: number, parts: number): void {
    plan.arguments.set('flag', flag);
    plan.arguments.set('parts', parts);
    plan.launch(this.in);
  }

  /** Resolves when nothing is under way any more. */
  async close(): Promise<void> {
    const { context } = this.#device;
    if (!context.disposed && context.lost === undefined) {
      await this.out.drained();
      await this.in.drained();
    }
    for (const mark of this.#marks) mark.dispose();
    for (const owned of [this.#begun, this.#ended, this.out, this.in]) owned[Symbol.dispose]();
  }
}

const word = new Uint32Array(1);
const value = new Float32Array(word.buffer);
const MAX_WORD = 2 ** 32 - 1;

/**
 * The threshold as kernels compare it. For f32 and bf16 these are its bits as f32, which order magnitudes as they are, and
 * any NaN above; for i32 it is an integer.
 */
export function markLimit(dtype: SparseCall['dtype'], threshold: number): number {
  if (dtype === 'i32') return Math.min(Math.floor(threshold), MAX_WORD);
  value[0] = threshold;
  return word[0]!;
}

const THREADS = 256;
const WARPS = THREADS / 32;
/** Thread blocks that a multiprocessor has at the same time; more of them would only begin later. */
const RESIDENT = 8;
/** Thread blocks of the kernel that sums, whose threads hold more. */
const RESIDENT_SUMS = 4;
/** Multiprocessors that the host's link keeps busy. */
const MOVE_MULTIPROCESSORS = 16;
const WORD_BYTES = 4;

type Plan<Layout> = Layout extends { readonly offset: infer Offset } ? LaunchPlan<keyof Offset & string> : never;

interface Plans {
  readonly mark: Plan<typeof sparseMarkArguments>;
  readonly survey: Plan<typeof sparseIndexArguments>;
  readonly index: Plan<typeof sparseIndexArguments>;
  readonly gather: Plan<typeof sparseMoveArguments>;
  readonly scatter: Plan<typeof sparseMoveArguments>;
  readonly tell: Plan<typeof sparseTellArguments>;
}

/** The work of a GPU for a worker's tensors, whose messages lie in the host's memory. */
export class CudaBlockWork implements BlockWork {
  readonly #device: CudaDevice;
  readonly #plans: Plans;
  readonly #stride: number;
  readonly #infinity: number;
  readonly #blockSize: number;
  readonly #streams: WorkStreams;
  #tables: { readonly host: HostMemory; readonly tensors: readonly Tensor[]; readonly list: Tensor } | undefined;
  #call: SparseCall = noCall;
  #blocks = 0;

  /** Compiles the kernels unless they are in a cache. Fails with WL_COMPILE, WL_UNSUPPORTED, WL_MEMORY or WL_CUDA. */
  static async create(device: CudaDevice, shape: SlotShape): Promise<CudaBlockWork> {
    const kernels = await device.loadKernels(kernelFiles.sparseBlock);
    const { sparseMark, sparseSurvey, sparseIndex, sparseGather, sparseScatter, sparseTell } = kernels;
    const [moves, groups] = [
      { grid: 1, block: THREADS },
      { grid: 1, block: SPARSE_GROUP_BLOCKS },
    ];
    return new CudaBlockWork(device, shape, {
      mark: sparseMark.plan(moves),
      survey: sparseSurvey.plan(groups),
      index: sparseIndex.plan(groups),
      gather: sparseGather.plan(moves),
      scatter: sparseScatter.plan(moves),
      tell: sparseTell.plan({ grid: 1, block: 1 }),
    });
  }

  private constructor(device: CudaDevice, shape: SlotShape, plans: Plans) {
    this.#device = device;
    this.#plans = plans;
    this.#stride = strideOf(shape);
    this.#infinity = infinityOf(shape);
    this.#blockSize = shape.blockSize;
    this.#streams = new WorkStreams(device);
  }

  reserve(blocks: number): BlockIndex {
    this.#releaseTables();
    const device = this.#device;
    const places = Math.max(1, blocks);
    const segments = this.#segmentsOf(places);
    // `found`, then `numbers`, then `nexts`.
    const host = device.allocateHost((1 + 2 * places) * WORD_BYTES);
    const tensors: Tensor[] = [];
    try {
      const make = (bytes: number): Tensor => {
        const tensor = device.empty('u8', [bytes]);
        tensors.push(tensor);
        return tensor;
      };
      const marks = make(places);
      const counts = make(Math.ceil(places / SPARSE_GROUP_BLOCKS) * WORD_BYTES);
      const firsts = make(segments * this.#stride * WORD_BYTES);
      const list = make(places * WORD_BYTES);
      this.#tables = { host, tensors, list };
      const numbersAt = host.deviceAddress + WORD_BYTES;
      for (const { arguments: set } of [this.#plans.survey, this.#plans.index]) {
        set.set('marks', marks.address);
        set.set('counts', counts.address);
        set.set('firsts', firsts.address);
        set.set('list', list.address);
        set.set('numbers', numbersAt);
        set.set('nexts', numbersAt + places * WORD_BYTES);
        set.set('found', host.deviceAddress);
        set.set('stride', this.#stride);
        set.set('infinity', this.#infinity);
      }
      this.#plans.mark.arguments.set('marks', marks.address);
    } catch (error) {
      for (const tensor of tensors) tensor.close();
      host[Symbol.dispose]();
      throw error;
    }
    const { buffer } = host;
    return {
      found: new Uint32Array(buffer, 0, 1),
      numbers: new Uint32Array(buffer, WORD_BYTES, places),
      nexts: new Uint32Array(buffer, (1 + places) * WORD_BYTES, places),
    };
  }

  allocateHost(bytes: number): SharedBytes {
    return this.#device.allocateHost(bytes);
  }

  makeMark(way: BlockWay): WorkMark {
    return this.#streams.makeMark(way);
  }

  begin(call: SparseCall, blocks: number): void {
    this.#call = call;
    this.#blocks = blocks;
    const { input, output, count, elementBytes } = call;
    this.#streams.begin();
    const { gather, scatter } = this.#plans;
    for (const [{ arguments: set }, tensor] of [
      [gather, input],
      [scatter, output],
    ] as const) {
      set.set('tensor', tensor);
      set.set('bytes', count * elementBytes);
      set.set('blockBytes', this.#blockSize * elementBytes);
      set.set('unit', tensor % 16 === 0 ? 16 : elementBytes);
    }
  }

  mark(): void {
    const { input, output, count, dtype, elementBytes, threshold } = this.#call;
    const { mark, survey, index } = this.#plans;
    const stream = this.#streams.out;
    const set = mark.arguments;
    set.set('input', input);
    set.set('output', output);
    set.set('bytes', count * elementBytes);
    set.set('blocks', this.#blocks);
    set.set('blockBytes', this.#blockSize * elementBytes);
    set.set('format', reductionFormats[dtype]);
    set.set('limit', markLimit(dtype, threshold));
    set.set('isAligned', input % 16 === 0 && output % 16 === 0 ? 1 : 0);
    mark.setGrid(Math.min(Math.ceil(this.#blocks / WARPS), RESIDENT * this.#device.properties.multiprocessors));
    mark.launch(stream);
    const groups = Math.ceil(this.#blocks / SPARSE_GROUP_BLOCKS);
    const segments = this.#segmentsOf(this.#blocks);
    for (const plan of [survey, index]) {
      plan.arguments.set('blocks', this.#blocks);
      plan.arguments.set('groups', groups);
      plan.arguments.set('segments', segments);
      plan.setGrid(groups + Math.ceil((segments * this.#stride) / SPARSE_GROUP_BLOCKS));
      plan.launch(stream);
    }
  }

  gather(first: number, move: BlockMove): void {
    const { isDense, input, count, elementBytes } = this.#call;
    const { out } = this.#streams;
    if (isDense) {
      // All blocks lie one behind the other already.
      const blockBytes = this.#blockSize * elementBytes;
      const from = first * blockBytes;
      const bytes = Math.min(move.count * blockBytes, count * elementBytes - from);
      this.#device.context.workCount += 1;
      this.#device.context.call('cuMemcpyAsync', move.packed, input + from, bytes, out.handle);
      return;
    }
    this.#move(this.#plans.gather, this.#tables!.list.address + first * WORD_BYTES, move, out);
  }

  scatter(list: number, move: BlockMove): void {
    this.#move(this.#plans.scatter, list, move, this.#streams.in);
  }

  tell(flag: number, parts: number): void {
    this.#streams.tell(this.#plans.tell, flag, parts);
  }

  join(): void {
    // The marks may still clear the output where nothing was scattered.
    this.#streams.join();
  }

  async close(): Promise<void> {
    await this.#streams.close();
    this.#releaseTables();
  }

  #move(plan: Plans['gather'], list: number, { packed, count }: BlockMove, stream: CudaStream): void {
    plan.arguments.set('list', list);
    plan.arguments.set('packed', packed);
    plan.arguments.set('count', count);
    const most = RESIDENT * Math.min(MOVE_MULTIPROCESSORS, this.#device.properties.multiprocessors);
    plan.setGrid(Math.min(Math.ceil(count / WARPS), most));
    plan.launch(stream);
  }

  #segmentsOf(blocks: number): number {
    return Math.ceil(blocks / (this.#stride * SPARSE_SEGMENT_PLACES));
  }

  #releaseTables(): void {
    const tables = this.#tables;
    this.#tables = undefined;
    for (const tensor of tables?.tensors ?? []) tensor.close();
    tables?.host[Symbol.dispose]();
  }
}

const PIECE_BYTES = 32 << 20;
const BUFFERS = 2;
const MIN_ELEMENT_BYTES = 2;
const ALIGNMENT = 256;

type SumPlan = Plan<typeof sparseSumArguments>;

export interface DirectKernels {
  readonly mark: Plan<typeof sparseMarkArguments>;
  readonly share: Plan<typeof sparseShareArguments>;
  readonly sums: Readonly<Record<SparseCall['dtype'], SumPlan>>;
  readonly tell: Plan<typeof sparseTellArguments>;
}

/** Compiles the kernels. Fails with WL_COMPILE, WL_UNSUPPORTED or WL_CUDA. */
export async function loadDirectKernels(device: CudaDevice): Promise<DirectKernels> {
  const shape = { grid: 1, block: THREADS };
  const load = (FORMAT: number): ReturnType<typeof device.loadKernels<typeof kernelFiles.sparseDirect>> =>
    device.loadKernels(kernelFiles.sparseDirect, { FORMAT });
  const [{ sparseMark, sparseTell }, bf16, f32, i32] = await Promise.all([
    device.loadKernels(kernelFiles.sparseBlock),
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

/** Bytes of a rank's window: buffers, each with a byte for each block and then the blocks. */
export function directWindowBytes(blockSize: number): number {
  return BUFFERS * (marksBytes(blockSize) + PIECE_BYTES);
}

function marksBytes(blockSize: number): number {
  return alignUp(Math.ceil(PIECE_BYTES / (blockSize * MIN_ELEMENT_BYTES)), ALIGNMENT);
}

/** The work of a GPU for sums with GPUs whose memory it reaches: kernels over windows that all have mapped. */
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
    this.#streams.tell(this.#kernels.tell, flag, parts);
  }

  join(): void {
    this.#streams.join();
  }

  async close(): Promise<void> {
    await this.#streams.close();
    this.#counts.close();
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
