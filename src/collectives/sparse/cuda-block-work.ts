// The work of a GPU for a worker's tensors: kernels on two streams, one for each way, which follow the device's stream and are
// followed by it.
import { reductionFormats } from '../../abi/element-formats.ts';
import {
  SPARSE_GROUP_BLOCKS,
  SPARSE_SEGMENT_PLACES,
  type sparseIndexArguments,
  type sparseMarkArguments,
  type sparseMoveArguments,
  type sparseTellArguments,
} from '../../abi/collectives.ts';
import type { CudaDevice } from '../../device/cuda/cuda-device.ts';
import type { CudaStream } from '../../device/cuda/cuda-stream.ts';
import type { HostMemory } from '../../device/cuda/host-memory.ts';
import { sparseBlockKernels } from '../../device/cuda/kernels/collectives.ts';
import type { LaunchPlan } from '../../device/cuda/kernel.ts';
import type { Tensor } from '../../device/tensor.ts';
import type { BlockIndex, BlockMove, BlockWay, BlockWork, SharedBytes, WorkMark } from './block-work.ts';
import { markLimit, WorkStreams } from './work-streams.ts';
import { infinityOf, type SlotShape, strideOf } from './slot-shape.ts';
import { noCall, type SparseCall } from './sparse-call.ts';

const MOVE_THREADS = 256;
const WARPS = MOVE_THREADS / 32;
/** Thread blocks that a multiprocessor has at the same time; more of them would only begin later. */
const RESIDENT = 8;
/** As many multiprocessors as the host's link keeps busy. */
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
    const kernels = await device.loadKernels(sparseBlockKernels);
    const { sparseMark, sparseSurvey, sparseIndex, sparseGather, sparseScatter, sparseTell } = kernels;
    const [moves, groups] = [
      { grid: 1, block: MOVE_THREADS },
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
    // found, numbers, nexts.
    const host = device.allocateHost((1 + 2 * places) * WORD_BYTES);
    const tensors: Tensor[] = [];
    this.#tables = undefined;
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
      for (const tensor of tensors) tensor.dispose();
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
    const { tell } = this.#plans;
    tell.arguments.set('flag', flag);
    tell.arguments.set('parts', parts);
    tell.launch(this.#streams.in);
  }

  join(): void {
    // Where nothing was scattered, the marks may still clear the output.
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
    for (const tensor of tables?.tensors ?? []) tensor.dispose();
    tables?.host[Symbol.dispose]();
  }
}
