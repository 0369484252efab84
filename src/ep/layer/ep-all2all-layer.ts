// EPAll2AllLayer: dispatch gives one row per (token, expert), grouped by expert; combine sums a token's rows.
import { type CallWait, startCall } from '../../core/deadline.ts';
import { invalidArgument } from '../../core/errors.ts';
import type { CpuDevice } from '../../device/cpu/cpu-device.ts';
import type { CudaDevice } from '../../device/cuda/cuda-device.ts';
import { Tensor } from '../../device/tensor.ts';
import type { WaitOptions } from '../../core/deadline.ts';
import type { RankGroup } from '../../world/rank-group.ts';
import { agreeOn, requireOneHost } from '../../collective/agree.ts';
import { isWhole } from '../buffer/buffer-size.ts';
import { CallGuard } from '../../collective/call-guard.ts';
import { callOptions } from '../buffer/engine.ts';
import { overlaps } from '../../collective/tensor-check.ts';
import { createCpuLayerEngine } from './cpu/cpu-layer-engine.ts';
import { DispatchCombineContext } from './dispatch-combine-context.ts';
import { EPConfig } from './ep-config.ts';
import {
  checkDescriptor,
  checkLayerCombine,
  checkLayerDispatch,
  type LayerCombineArguments,
  type LayerDispatchArguments,
} from './layer-arguments.ts';
import type { LayerCombineResult, LayerDispatchResult, LayerEngine, LayerEngineOptions } from './layer-engine.ts';
import type { EPAllToAllLayoutDesc } from './layout-desc.ts';

export interface LayerOptions extends WaitOptions {
  readonly maxTokens: number;
  readonly hidden: number;
  readonly topk: number;
  readonly numTotExperts: number;
  /** Of the tokens; only 'bf16'. */
  readonly dtype?: 'bf16';
  /** Of the routing weights; 'f32' by default. */
  readonly weightDtype?: 'f32' | 'bf16';
  /** Sum a token's rows on each rank first, so that combine moves one row per (token, rank); one more rounding to bf16. */
  readonly enableLocalCombine?: boolean;
  /** Multiprocessors for the kernels of a GPU, 20 by default; a CPU rank works on its one thread whatever it says. */
  readonly numSm?: number;
  /**
   * Run kernels compiled ahead of time: on a GPU those that `weftline compile` put into the device's aotFolder, else
   * WL_COMPILE; those of a CPU rank always are.
   */
  readonly useAot?: boolean;
  /** Rows of the output buffer as a multiple of maxTokens * topk; 2 by default. It grows on demand. */
  readonly capacity?: number;
}

export class EPAll2AllLayer implements AsyncDisposable {
  readonly config: EPConfig;
  readonly context: DispatchCombineContext;
  readonly enableLocalCombine: boolean;
  readonly #engine: LayerEngine;
  readonly #guard = new CallGuard('EPAll2AllLayer');

  /**
   * Collective over the group (a world is one), whose ranks must all be on one host and use the same kind of device; the
   * same error on every rank if it cannot be.
   */
  static async create(
    group: RankGroup,
    device: CpuDevice | CudaDevice,
    options: LayerOptions,
  ): Promise<EPAll2AllLayer> {
    requireOneHost(group, 'EPAll2AllLayer');
    const { maxTokens, hidden, topk, numTotExperts, weightDtype = 'f32' } = options;
    const { enableLocalCombine = false, capacity = 2, numSm = 20, useAot = false } = options;
    const common = { maxTokens, hidden, topk, numTotExperts, weightDtype, enableLocalCombine, capacity };
    const agreement = {
      what: 'EPAll2AllLayer',
      config: { ...common, device: device.kind },
      prepare: (): EPConfig => makeConfig(options, group),
    };
    const wait = startCall(options, group.settings.timeoutMs);
    const epConfig = await agreeOn(group, agreement, wait);
    const contextOptions = { ...wait, capacity };
    const context = await DispatchCombineContext.create(group, device, epConfig, contextOptions);
    try {
      const engine = await createEngine(context, { ...wait, enableLocalCombine, numSm, useAot });
      return new EPAll2AllLayer(context, engine, enableLocalCombine);
    } catch (error) {
      await context.finalize();
      throw error;
    }
  }

  private constructor(context: DispatchCombineContext, engine: LayerEngine, enableLocalCombine: boolean) {
    this.config = context.config;
    this.context = context;
    this.enableLocalCombine = enableLocalCombine;
    this.#engine = engine;
  }

  /**
   * Collective. Sends row t of `input` to every expert in expIndices[t]; -1 and numTotExperts both mean "dropped".
   * Bad arguments fail on this rank before anything moves, and the others then wait for it; a choice or place that only
   * the kernels of a GPU see fails on every rank.
   */
  async dispatch(args: LayerDispatchArguments): Promise<LayerDispatchResult> {
    return this.#guard.run('dispatch', async () => {
      this.#engine.throwIfUnusable();
      const input = checkLayerDispatch(args, this.config, this.context.device);
      this.#rejectInWindow(input);
      return this.#engine.dispatch(input, callOptions(args, this.#timeoutMs));
    });
  }

  /**
   * Where expert output can be written so that combine() need not copy it: bf16 [recv, H] in the window. It is the
   * memory of dispatch's output, which the expert output thus replaces.
   */
  combineInput(layoutDesc: EPAllToAllLayoutDesc): Tensor<'bf16'> {
    this.#guard.requireOpen();
    const { numRecvTokens } = checkDescriptor(layoutDesc, this.context);
    return this.context.view('bf16', 'rows', [numRecvTokens, this.config.hidden]);
  }

  /**
   * Collective. bf16 [T, H]: the unweighted sum of each token's rows, in top-k order in f32, rounded once (with local
   * combine: once per rank, then once more, ranks in the order of the token's choices). The dispatch output is consumed.
   * With asyncFinish the event comes beside the tensor.
   */
  combine(args: LayerCombineArguments & { readonly asyncFinish: true }): Promise<LayerCombineResult>;
  combine(args: LayerCombineArguments & { readonly asyncFinish?: false }): Promise<Tensor<'bf16'>>;
  async combine(args: LayerCombineArguments): Promise<Tensor<'bf16'> | LayerCombineResult> {
    return this.#guard.run('combine', async () => {
      this.#engine.throwIfUnusable();
      const input = checkLayerCombine(args, this.context);
      if (input.out) this.#rejectInWindow({ out: input.out });
      const result = await this.#engine.combine(input, callOptions(args, this.#timeoutMs));
      return args.asyncFinish === true ? result : result.combined;
    });
  }

  /** Collective: returns when all ranks have called it. One host holds all ranks, so both forms are the same. */
  epBarrierAll(options: WaitOptions & { readonly intraNodeOnly?: boolean } = {}): Promise<void> {
    return this.#guard.run('barrier', () => this.#engine.barrier(startCall(options, this.#timeoutMs)));
  }

  /** Releases the symmetric memory here. Not collective; idempotent. */
  async finalize(): Promise<void> {
    if (!this.#guard.close()) return;
    await this.#engine.close();
    await this.context.finalize();
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.finalize();
  }

  get #timeoutMs(): number {
    return this.context.group.settings.timeoutMs;
  }

  #rejectInWindow(tensors: object): void {
    const { address, bytes } = this.context.memory.mapped;
    for (const [name, tensor] of Object.entries(tensors) as [string, unknown][]) {
      if (!(tensor instanceof Tensor) || !overlaps(tensor, address, bytes)) continue;
      const allowed = 'a tensor of its own, for peers read and write the window';
      throw invalidArgument(name, "a tensor in the layer's window", allowed);
    }
  }
}

async function createEngine(
  context: DispatchCombineContext,
  options: LayerEngineOptions & CallWait,
): Promise<LayerEngine> {
  const { device, memory } = context;
  if (device.kind === 'cpu' && memory.kind === 'cpu') return createCpuLayerEngine(context, device, memory, options);
  // Loaded here, so that CPU ranks never load what GPUs need.
  const { createCudaLayerEngine } = await import('./cuda/cuda-layer-engine.ts');
  return createCudaLayerEngine(context, options);
}

function makeConfig(options: LayerOptions, group: RankGroup): EPConfig {
  const { maxTokens, hidden, topk, numTotExperts, dtype = 'bf16', weightDtype = 'f32', numSm = 20 } = options;
  if (dtype !== 'bf16') throw invalidArgument('dtype', dtype, '"bf16"');
  if (!isWhole(numSm, 1)) throw invalidArgument('numSm', numSm, 'a whole number of at least 1');
  if (!isWhole(numTotExperts, 1) || numTotExperts % group.size !== 0) {
    throw invalidArgument('numTotExperts', numTotExperts, `a positive multiple of the ${group.size} ranks`);
  }
  return new EPConfig({
    maxTokens,
    hidden,
    topk,
    numExperts: numTotExperts,
    rank: group.rank,
    worldSize: group.size,
    localWorldSize: group.topology.scaleUpRanks.length,
    weightDtype,
  });
}
