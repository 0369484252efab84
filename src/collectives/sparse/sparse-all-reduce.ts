// SparseAllReduce: sums of tensors that are mostly zero, block by block, through aggregators.
import { agreeOn } from '../../group/agree.ts';
import { CallGuard } from '../../group/call-guard.ts';
import { overlaps, requireDevice, requireGroup } from '../../group/tensor-check.ts';
import { reductionFormats } from '../../abi/element-formats.ts';
import { checkOptions, type OptionNames } from '../../core/check-options.ts';
import {
  type CallWait,
  checkSignal,
  checkTimeout,
  startCall,
  type WaitOptions,
  waitOptionNames,
} from '../../core/deadline.ts';
import { dtypes } from '../../core/dtype.ts';
import { invalidArgument, type WeftlineError } from '../../core/errors.ts';
import type { CpuDevice } from '../../device/cpu/cpu-device.ts';
import type { CudaDevice } from '../../device/cuda/cuda-device.ts';
import { Tensor } from '../../device/tensor.ts';
import { shareOutcome } from '../../world/outcomes.ts';
import type { RankGroup } from '../../world/rank-group.ts';
import type { ReducedDType } from '../collective-call.ts';
import type { SparseCall, SparseTraffic } from './sparse-call.ts';
import type { SlotShape } from './slot-shape.ts';
import { SparseEngine, type ToldParts } from './sparse-engine.ts';
import {
  checkSparseOptions,
  isSilent,
  type SparseAllReduceOptions,
  type SparsePlan,
  sparsePlan,
  type ToldOptions,
} from './sparse-options.ts';

/** Arguments of SparseAllReduce.allReduce(). */
export interface SparseAllReduceArguments extends WaitOptions {
  /** This worker's elements: f32, bf16 or i32. Without it `output` holds them: in place. */
  readonly input?: Tensor;
  /** Gets the sums: as many elements, of the same dtype, the same tensor or apart from it. */
  readonly output: Tensor;
  /** A block counts if an element's magnitude is above this, or if it has a NaN; else it is taken for zero. 0 by default. */
  readonly threshold?: number;
  /** True: every block counts, and none is looked at; for tensors that are mostly not zero. Not with `threshold`. */
  readonly dense?: boolean;
  /**
   * A flag word, as a kernel or another thread polls it while the call is under way: it goes up by one for each part of
   * `output` that has its sums, from the first part on.
   */
  readonly completion?: {
    /** i32, one element, apart from `input` and `output`. It is added to: set it to where counting begins. */
    readonly flag: Tensor;
    /** Elements of a part, of which the last one may have fewer: a multiple of the block size. */
    readonly elements: number;
  };
}

const argumentNames: OptionNames<SparseAllReduceArguments> = {
  ...waitOptionNames,
  input: true,
  output: true,
  threshold: true,
  dense: true,
  completion: true,
};

const completionNames: OptionNames<NonNullable<SparseAllReduceArguments['completion']>> = {
  flag: true,
  elements: true,
};

/**
 * All-reduce of tensors whose blocks are mostly zero. A worker sends the blocks that are not, and where its next one is; an
 * aggregator adds up the blocks at one place when all workers have sent theirs or told that they have none there, in the order
 * of the workers' ranks, and tells all workers the sums and the next place at which anybody has a block. So zero blocks never
 * travel, and the same input gives the same bytes. Where a block counts at one worker only, it is copied; where at several,
 * sums are those of `Communicator.allReduce` over them; where at none, the result is +0. With `fanIn` aggregators form trees:
 * each `fanIn` neighbouring workers are summed so, then each `fanIn` neighbouring sums, and so on; bf16 sums are rounded each
 * time. `referenceSparseSum` computes the same.
 *
 * A worker that is missing, or makes another call, ends the call on all ranks with an error that names it; a rank whose process
 * ends does so at once with WL_PEER_LOST. Every later call then fails with the reason. One call at a time: await each.
 */
export class SparseAllReduce implements AsyncDisposable {
  readonly group: RankGroup;
  readonly device: CpuDevice | CudaDevice;
  /** Ranks of the group that have tensors, in the order of addition. */
  readonly workers: readonly number[];
  /** Ranks of the group that add up. */
  readonly aggregators: readonly number[];
  readonly #shape: SlotShape;
  readonly #engine: SparseEngine;
  readonly #guard: CallGuard;
  #closing: Promise<void> = Promise.resolve();

  /**
   * Collective over the group, aggregators among it. Fails on every rank with the same error: WL_INVALID_ARGUMENT,
   * WL_CONFIG_MISMATCH, WL_MEMORY, WL_SHARED_MEMORY or WL_TIMEOUT; on GPUs also WL_COMPILE or WL_CUDA.
   * @param group Workers and aggregators.
   * @param device This rank's; tensors of calls are on it.
   * @param options Who has which role, and how tensors are cut. Ranks that only aggregate may leave them out.
   */
  static async create(
    group: RankGroup,
    device: CpuDevice | CudaDevice,
    options: SparseAllReduceOptions = {},
  ): Promise<SparseAllReduce> {
    requireGroup(group);
    requireDevice(device);
    checkSparseOptions(options);
    const wait = startCall(options, group.settings.timeoutMs);
    const agreed = await agreedOptions(group, options, wait);
    const prepare = (): SparsePlan => sparsePlan(group, agreed);
    const plan = await agreeOn(group, { what: 'SparseAllReduce', config: {}, prepare }, wait);
    return new SparseAllReduce(group, device, plan, await SparseEngine.create(group, device, plan, wait));
  }

  private constructor(
    group: RankGroup,
    device: CpuDevice | CudaDevice,
    { workers, aggregators, shape }: SparsePlan,
    engine: SparseEngine,
  ) {
    this.group = group;
    this.device = device;
    this.workers = workers;
    this.aggregators = aggregators;
    this.#shape = shape;
    this.#engine = engine;
    this.#guard = new CallGuard('SparseAllReduce', group.ranks);
  }

  /** True if this rank has tensors to add: it makes calls, and others serve() or make calls as well. */
  get isWorker(): boolean {
    return this.workers.includes(this.group.rank);
  }

  /** @internal Bytes that this rank has put to other hosts so far. */
  get networkBytes(): number {
    return this.#engine.networkBytes;
  }

  /**
   * Every worker's `output` becomes the sum of the inputs. Workers make the same calls in the same order, with the same counts
   * and dtypes. Fails with WL_INVALID_ARGUMENT, WL_UNSUPPORTED within device.capture(), or WL_MEMORY without memory for the
   * marks of blocks, on this rank alone, before it does anything: the call can be made again.
   */
  allReduce(args: SparseAllReduceArguments): Promise<SparseTraffic> {
    return this.#guard.run('sparse allReduce', async () => {
      if (this.device.kind === 'cuda')
        this.device.context.refuseCapture('a sparse allReduce, whose steps the host makes,');
      const call = this.#read(args);
      if (!this.isWorker) throw this.#wrongRole('allReduce', 'serve');
      const told = this.#readCompletion(args);
      args.signal?.throwIfAborted();
      this.#engine.throwIfUnusable();
      this.#guard.bytes = call.count * call.elementBytes;
      const leave = this.device.kind === 'cuda' ? this.device.context.beginHostCall('a sparse allReduce') : undefined;
      try {
        return await this.#engine.allReduce(call, args, told);
      } finally {
        leave?.();
      }
    });
  }

  /** Adds up for the workers until all of them have closed their side, on a rank that only aggregates. */
  serve(options: Pick<WaitOptions, 'signal'> = {}): Promise<void> {
    return this.#guard.run('serve', async () => {
      checkOptions(options, { signal: true }, 'options of serve');
      const { signal } = options;
      checkSignal(signal);
      if (this.isWorker) throw this.#wrongRole('serve', 'allReduce');
      signal?.throwIfAborted();
      this.#engine.throwIfUnusable();
      return this.#engine.serve(signal === undefined ? {} : { signal });
    });
  }

  /** Aggregators go on until all workers have closed their side. Idempotent. */
  close(): Promise<void> {
    try {
      if (this.#guard.close()) this.#closing = this.#engine.close();
      return this.#closing;
    } catch (error) {
      return Promise.reject(error);
    }
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }

  #read(args: SparseAllReduceArguments): SparseCall {
    checkOptions(args, argumentNames, 'arguments of allReduce');
    const { output, input = output, threshold = 0, dense = false } = args;
    const { timeoutMs = this.group.settings.timeoutMs } = args;
    checkTimeout(timeoutMs);
    checkSignal(args.signal);
    this.#requireTensor('output', output);
    this.#requireTensor('input', input);
    const { dtype, elements: count } = output;
    if (input.dtype !== dtype || input.elements !== count) {
      throw invalidArgument('input', `${input.dtype} [${input.shape.join(', ')}]`, `${count} elements of ${dtype}`);
    }
    if (input.address !== output.address && overlaps(output, input.address, input.bytes)) {
      throw invalidArgument('input', 'a tensor that overlaps output', 'the same tensor, or one that is apart');
    }
    if (!Number.isFinite(threshold) || threshold < 0)
      throw invalidArgument('threshold', threshold, 'a number from 0 on');
    if (typeof dense !== 'boolean') throw invalidArgument('dense', dense, 'true or false');
    if (dense && threshold !== 0)
      throw invalidArgument('threshold', threshold, 'none with dense, which takes every block');
    return {
      dtype: dtype as ReducedDType,
      elementBytes: dtypes[dtype].bytes,
      count,
      input: input.address,
      output: output.address,
      threshold,
      isDense: dense,
      timeoutMs,
    };
  }

  #readCompletion({ completion, output, input = output }: SparseAllReduceArguments): ToldParts | undefined {
    if (completion === undefined) return undefined;
    checkOptions(completion, completionNames, 'completion');
    const { flag, elements } = completion;
    this.#requireTensor('completion.flag', flag);
    if (flag.dtype !== 'i32' || flag.elements !== 1) {
      throw invalidArgument('completion.flag', `${flag.dtype} [${flag.shape.join(', ')}]`, 'i32 [1]');
    }
    if (overlaps(output, flag.address, flag.bytes) || overlaps(input, flag.address, flag.bytes)) {
      throw invalidArgument('completion.flag', 'a tensor that overlaps input or output', 'one that is apart');
    }
    const { blockSize } = this.#shape;
    if (!Number.isInteger(elements) || elements < blockSize || elements % blockSize !== 0) {
      throw invalidArgument('completion.elements', elements, `a multiple of blockSize, ${blockSize}`);
    }
    return { flag: flag.address, elements };
  }

  #requireTensor(name: string, value: unknown): asserts value is Tensor {
    const expected = `a tensor of ${Object.keys(reductionFormats).join(', ')} on this ${this.device.kind} device`;
    if (!(value instanceof Tensor)) throw invalidArgument(name, value, expected);
    if (value.storage.disposed) throw invalidArgument(name, 'a closed tensor', expected);
    if (value.device !== this.device) throw invalidArgument(name, 'a tensor of another device', expected);
    if (!Object.hasOwn(reductionFormats, value.dtype))
      throw invalidArgument(name, `a tensor of ${value.dtype}`, expected);
  }

  #wrongRole(called: string, instead: string): WeftlineError {
    const { ranks, rank } = this.group;
    const role = this.isWorker ? 'a worker' : 'an aggregator';
    return invalidArgument(called, `a call of rank ${ranks[rank]}, ${role}`, `${instead}()`);
  }
}

/** Ranks that say nothing take what the first one says that does; ranks that differ are found when all agree on the plan. */
async function agreedOptions(group: RankGroup, options: SparseAllReduceOptions, wait: CallWait): Promise<ToldOptions> {
  const { aggregators, workers, blockSize, messageSize, fanIn, slots } = options;
  const own: ToldOptions = { aggregators, workers, blockSize, messageSize, fanIn, slots };
  // JSON has no word for some values that cannot be, such as NaN, so this rank's are checked here.
  const work = (): ToldOptions => {
    sparsePlan(group, own);
    return own;
  };
  const { values, failure } = await shareOutcome(group, { name: 'sparse/options', facts: {}, work }, wait);
  if (failure !== undefined) throw failure;
  return isSilent(own) ? (values.find((told) => told !== undefined && !isSilent(told)) ?? own) : own;
}
