// EPAll2AllLayer: dispatch gives one row per (token, expert), by expert, then source rank, then token; combine sums a token's rows.
import { countTokens, type EpOp } from '../../core/counts.ts';
import { type CallWait, startCall, type WaitOptions, waitOptionNames } from '../../core/deadline.ts';
import { dtypes } from '../../core/dtype.ts';
import { checkOptions, requireFlag } from '../../core/check-options.ts';
import { invalidArgument, WeftlineError } from '../../core/errors.ts';
import type { CpuDevice } from '../../device/cpu/cpu-device.ts';
import type { CudaDevice } from '../../device/cuda/cuda-device.ts';
import type { CudaStream } from '../../device/cuda/cuda-stream.ts';
import { Tensor } from '../../device/tensor.ts';
import type { RankGroup } from '../../world/rank-group.ts';
import { agreeOn } from '../../group/agree.ts';
import { CallGuard } from '../../group/call-guard.ts';
import { shrinkObject, type ShrinkOptions } from '../../group/shrink.ts';
import { callOptions } from '../buffer/call-arguments.ts';
import { overlaps, requireDevice, requireGroup, requireLive } from '../../group/tensor-check.ts';
import { createCpuLayerEngine } from './cpu/cpu-layer-engine.ts';
import { DispatchCombineContext } from './dispatch-combine-context.ts';
import { type EPConfig, type LayerOptions, makeConfig, requireLayerOptions, type TokenDType } from './ep-config.ts';
import {
  checkDescriptor,
  checkLayerCombine,
  checkLayerDispatch,
  layerBarrierNames,
  type LayerBarrierOptions,
  type LayerCombineArguments,
  type LayerDispatchArguments,
  type LayerInput,
} from './layer-arguments.ts';
import {
  type DispatchStages,
  type LayerCombineResult,
  type LayerDispatchResult,
  type LayerEngine,
  type LayerEngineOptions,
  StagedDispatch,
} from './layer-engine.ts';
import type { DispatchSplits } from './expert-plan.ts';
import type { EPAllToAllLayoutDesc } from './layout-desc.ts';
import {
  ownCombine,
  ownDispatch,
  ownOptions,
  type TritonCombineArguments,
  type TritonDispatchArguments,
  TritonLayer,
  type TritonLayerOptions,
} from './triton-names.ts';

/**
 * Sends each token to all of its experts, one row per (token, expert) and the rows of an expert together, and sums what
 * the experts made of them. dispatch() and combine() are collective: all ranks call them in the same order. `D` is the
 * dtype of the tokens. It takes the names of Triton-distributed's document beside its own.
 */
export class EPAll2AllLayer<D extends TokenDType = 'bf16'> extends TritonLayer implements AsyncDisposable {
  readonly config: EPConfig;
  readonly context: DispatchCombineContext;
  readonly enableLocalCombine: boolean;
  readonly #engine: LayerEngine;
  readonly #guard: CallGuard;
  readonly #options: LayerOptions<D>;
  /** A dispatch of which some stages are still to come. */
  #staged: StagedDispatch | undefined;
  /** Its arguments. */
  #stagedInput: object = {};

  /**
   * Collective over the group (a world is one), whose ranks use the same kind of device and may be on several hosts. The same
   * error on every rank if it cannot be.
   * @param group The ranks that take part; a world is a group.
   * @param device This rank's.
   * @param given The same on all ranks.
   */
  static async create<D extends TokenDType = 'bf16'>(
    group: RankGroup,
    device: CpuDevice | CudaDevice,
    given: LayerOptions<D> | TritonLayerOptions<D>,
  ): Promise<EPAll2AllLayer<D>> {
    requireGroup(group);
    requireDevice(device);
    requireLayerOptions(given);
    const options = ownOptions(given);
    const {
      maxTokensPerRank,
      hidden,
      maxTopk,
      numExperts,
      dtype = 'bf16',
      weightDtype = 'f32',
      offsetDtype = 'i32',
    } = options;
    const { enableLocalCombine = false, keepDispatchOutput = false, combinePrecision = 'bf16' } = options;
    const { capacity = 2, numRdmaBytes = 0, numSms = 20, useAot = false } = options;
    const shape = { maxTokensPerRank, hidden, maxTopk, numExperts, dtype, weightDtype, offsetDtype };
    const agreement = {
      what: 'EPAll2AllLayer',
      config: {
        ...shape,
        enableLocalCombine,
        keepDispatchOutput,
        combinePrecision,
        numRdmaBytes,
        capacity,
        device: device.kind,
      },
      prepare: (): EPConfig => makeConfig(options, group),
    };
    const wait = startCall(options, group.settings.timeoutMs);
    const epConfig = await agreeOn(group, agreement, wait);
    const { rdmaBuffer, signal } = options;
    const { deadline } = wait;
    const contextOptions = { deadline, capacity, ...(signal && { signal }), ...(rdmaBuffer && { rdmaBuffer }) };
    const context = await DispatchCombineContext.create(group, device, epConfig, contextOptions);
    try {
      const engine = await createEngine(context, { ...wait, enableLocalCombine, numSms, useAot });
      return new EPAll2AllLayer<D>(context, engine, options);
    } catch (error) {
      await context.close();
      throw error;
    }
  }

  private constructor(context: DispatchCombineContext, engine: LayerEngine, options: LayerOptions<D>) {
    super();
    this.config = context.config;
    this.context = context;
    this.enableLocalCombine = options.enableLocalCombine ?? false;
    this.#options = options;
    this.#engine = engine;
    this.#guard = new CallGuard('EPAll2AllLayer', context.group.ranks);
    engine.guardLaunches?.((what) => {
      this.#guard.requireIdle(what);
      this.#requireNoStages(what);
    });
  }

  /**
   * Collective. Sends row t of `x` to every expert in topkIdx[t]; -1 and numExperts both mean "dropped".
   * Bad arguments fail on this rank before anything moves, and the others then wait for it; a choice that is out of range, or a
   * place that cannot be, fails on every rank.
   */
  dispatch<W extends 'f32' | 'bf16'>(
    args:
      | (LayerDispatchArguments<D> & { readonly topkWeights: Tensor<W> })
      | (TritonDispatchArguments<D> & { readonly weight: Tensor<W> }),
  ): Promise<LayerDispatchResult<D, Tensor<W>>>;
  dispatch(args: LayerDispatchArguments<D> | TritonDispatchArguments<D>): Promise<LayerDispatchResult<D>>;
  async dispatch(args: LayerDispatchArguments<D> | TritonDispatchArguments<D>): Promise<LayerDispatchResult<D>> {
    return this.#guard.run('dispatch', async () => {
      const input = this.#begin(args, 'dispatch');
      this.#count('dispatch', input.numTokens);
      return resultOf<D>(await this.#engine.dispatch(input, callOptions(args, this.#timeoutMs)));
    });
  }

  /**
   * Collective. The first stage of a dispatch, for callers that have work to do between the stages:
   * returns how many rows will come, and where each will go. initOutputBuffer(), dispatchToken() and
   * dispatchPostprocess() must follow, with what this returns, before any other call on the layer. The tensors must live
   * and stay as they are until dispatchToken() has ended.
   */
  async preprocess(args: LayerDispatchArguments<D> | TritonDispatchArguments<D>): Promise<StagedDispatch> {
    return this.#guard.run('preprocess', async () => {
      const input = this.#begin(args, 'preprocess');
      this.#count('dispatch', input.numTokens);
      const stages = await this.#engine.prepare(input, callOptions(args, this.#timeoutMs));
      this.#staged = new StagedDispatch(stages);
      this.#stagedInput = input;
      return this.#staged;
    });
  }

  /**
   * Between preprocess() and the last stage: who sends how much to which expert, and where rows will begin. Not collective, since
   * preprocess() has exchanged the counts.
   */
  getAgSplitsAndRecvOffsetForDispatch(staged: StagedDispatch): Promise<DispatchSplits> {
    return this.#guard.run('getAgSplitsAndRecvOffsetForDispatch', () => this.#present(staged).stages.splits());
  }

  /**
   * Between preprocess() and the last stage: i32 [nodes, 2, maxTokensPerRank], the ranges of this rank's tokens that each other node is
   * asked to take, as sendReqsRecvTensor has them there. Undefined on one host.
   */
  getDispatchSendReqs(staged: StagedDispatch): Int32Array | undefined {
    this.#guard.requireOpen();
    return this.#present(staged).stages.sendReqs();
  }

  /** Collective, after preprocess(): makes the output buffer larger on all ranks if some rank's rows would not fit. */
  async initOutputBuffer(staged: StagedDispatch, options: WaitOptions = {}): Promise<void> {
    const stage = { call: 'initOutputBuffer', after: 'preprocess', options };
    await this.#stage(staged, stage, (stages, wait) => stages.makeRoom(wait));
  }

  /** Collective, after initOutputBuffer(): moves the rows. */
  async dispatchToken(staged: StagedDispatch, options: WaitOptions = {}): Promise<void> {
    const stage = { call: 'dispatchToken', after: 'initOutputBuffer', options };
    await this.#stage(staged, stage, (stages, wait) => {
      requireLive(this.#stagedInput, 'dispatchToken() has ended');
      return stages.send(wait);
    });
  }

  /** The last stage, after dispatchToken(): what dispatch() returns. Not collective. */
  async dispatchPostprocess(staged: StagedDispatch): Promise<LayerDispatchResult<D>> {
    const result = await this.#stage(staged, { call: 'dispatchPostprocess', after: 'dispatchToken' }, (stages) =>
      stages.finish(),
    );
    this.#staged = undefined;
    return resultOf<D>(result);
  }

  /**
   * Where expert output can be written so that combine() need not copy it: [recv, H] of the layer's dtype in the window.
   * It is the memory of dispatch's output, which the expert output thus replaces, unless the layer was made with
   * keepDispatchOutput.
   */
  combineInput(handle: EPAllToAllLayoutDesc): Tensor<D> {
    this.#guard.requireOpen();
    const { numRecvTokens } = checkDescriptor(handle, this.context);
    const { tokenDtype, hidden } = this.config;
    return this.context.view(tokenDtype, 'expertRows', [numRecvTokens, hidden]) as Tensor<D>;
  }

  /**
   * Collective. [T, H] of the layer's dtype: the unweighted sum of each token's rows, in top-k order in f32, rounded once
   * (with local combine: once per rank, then once more, ranks in the order of the token's choices). Overwrites dispatch's
   * output, unless the layer was made with keepDispatchOutput. With asyncFinish the event comes beside the tensor.
   */
  combine(args: CombineArguments<D> & { readonly asyncFinish: true }): Promise<LayerCombineResult<D>>;
  combine(args: CombineArguments<D> & { readonly asyncFinish?: false }): Promise<Tensor<D>>;
  combine(args: CombineArguments<D>): Promise<Tensor<D> | LayerCombineResult<D>>;
  async combine(args: CombineArguments<D>): Promise<Tensor<D> | LayerCombineResult<D>> {
    return this.#guard.run('combine', async () => {
      this.#engine.throwIfUnusable();
      this.#requireNoStages('combine');
      const input = checkLayerCombine(ownCombine(args), this.context);
      if (input.out) this.#rejectInWindow({ out: input.out });
      this.#count('combine', input.desc.numDispatchTokenCurRank);
      const result = (await this.#engine.combine(input, callOptions(args, this.#timeoutMs))) as LayerCombineResult<D>;
      return args.asyncFinish === true ? result : result.combinedX;
    });
  }

  /**
   * Collective. With a stream of the layer's GPU it only enqueues: what comes behind it on that stream begins when all
   * ranks have come so far on theirs, and calls of the layer come behind it too. Without a stream it resolves when all
   * ranks have called it and their earlier calls on the layer are done. With `intraNodeOnly` the ranks of each host meet
   * among themselves; all ranks of a host must pass the same.
   */
  override barrier(options: LayerBarrierOptions = {}): Promise<void> {
    return this.#guard.run('barrier', async () => {
      checkOptions(options, layerBarrierNames, 'options of EPAll2AllLayer.barrier');
      this.#requireNoStages('barrier');
      const { stream, intraNodeOnly = false } = options;
      requireFlag('intraNodeOnly', intraNodeOnly);
      const wait = startCall(options, this.#timeoutMs);
      if (stream === undefined) return this.#engine.barrier({ ...wait, intraNodeOnly });
      this.#engine.throwIfUnusable();
      this.#engine.barrierOnStream(requireStream(stream), { ...wait, intraNodeOnly });
    });
  }

  /**
   * Collective over the ranks of the group that live, after a failure: closes this layer and makes another one over the group that
   * they form (RankGroup.shrink), which the caller owns. It has this one's options, but for what `config` says; descriptors of this
   * layer are of no use to it. Works on a closed layer, and again where it failed. Fails with WL_INACTIVE on a rank that was left
   * out, WL_INVALID_ARGUMENT if the options do not fit the ranks that are left, else as RankGroup.shrink() and create() do.
   */
  shrink(options: ShrinkOptions<LayerConfig<D>> = {}): Promise<EPAll2AllLayer<D>> {
    const { timeoutMs: _time, signal: _signal, ...made } = this.#options;
    const { group, device } = this.context;
    return shrinkObject(
      {
        object: 'EPAll2AllLayer',
        group,
        close: () => this.close(),
        create: (present, changes, wait) => EPAll2AllLayer.create<D>(present, device, { ...made, ...changes, ...wait }),
      },
      options,
    );
  }

  /** Releases the symmetric memory here. Not collective; idempotent. */
  override async close(): Promise<void> {
    if (!this.#guard.close()) return;
    await this.#engine.close();
    await this.context.close();
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }

  get #timeoutMs(): number {
    return this.context.group.settings.timeoutMs;
  }

  #count(op: EpOp, tokens: number): void {
    countTokens(op, 'layer', tokens);
    this.#guard.bytes = tokens * this.config.hidden * dtypes[this.config.tokenDtype].bytes;
  }

  #begin(args: LayerDispatchArguments<D> | TritonDispatchArguments<D>, call: string): LayerInput {
    this.#engine.throwIfUnusable();
    this.#requireNoStages(call);
    const { capacityRows } = this.context.memory.size;
    const of = { config: this.config, device: this.context.device, capacityRows, call };
    const input = checkLayerDispatch(ownDispatch(args), of);
    this.#rejectInWindow(input);
    return input;
  }

  async #stage<T>(
    staged: StagedDispatch,
    { call, after, options = {} }: { readonly call: string; readonly after: string; readonly options?: WaitOptions },
    run: (stages: DispatchStages, wait: CallWait) => Promise<T>,
  ): Promise<T> {
    return this.#guard.run(call, async () => {
      this.#engine.throwIfUnusable();
      const present = this.#present(staged);
      checkOptions(options, waitOptionNames, `options of EPAll2AllLayer.${call}`);
      const wait = startCall(options, this.#timeoutMs);
      try {
        return await present.run(call, after, (stages) => run(stages, wait));
      } catch (error) {
        // A stage that came too early has done nothing.
        if (present.failed) this.#staged = undefined;
        throw error;
      }
    });
  }

  #present(staged: unknown): StagedDispatch {
    if (staged instanceof StagedDispatch && staged === this.#staged) return staged;
    const allowed = 'what the last preprocess() of this layer returned, before its last stage';
    throw invalidArgument('staged', staged, allowed);
  }

  #requireNoStages(call: string): void {
    if (this.#staged === undefined) return;
    const next = this.#staged.next;
    throw new WeftlineError(
      'WL_INVALID_ARGUMENT',
      `Cannot call ${call} on an EPAll2AllLayer between the stages of a dispatch: expected ${next}`,
      { details: { call, expected: next } },
    );
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

/** What a layer is made for, but for the dtype of its tokens, which is in its type. */
type LayerConfig<D extends TokenDType> = Omit<LayerOptions<D>, keyof WaitOptions | 'dtype'>;

type CombineArguments<D extends TokenDType> = LayerCombineArguments<D> | TritonCombineArguments<D>;

/** The dtype of a result is that of the layer, which was checked when it was made. */
function resultOf<D extends TokenDType>(result: LayerDispatchResult<TokenDType>): LayerDispatchResult<D> {
  return result as LayerDispatchResult<D>;
}

function requireStream(stream: unknown): CudaStream {
  const isStream = typeof stream === 'object' && stream !== null && 'handle' in stream;
  if (!isStream) throw invalidArgument('stream', stream, 'a stream of the device, as device.createStream() returns');
  return stream as CudaStream;
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
