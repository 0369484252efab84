// What EPAll2AllLayer asks of the engine that carries its calls out; one per kind of device. Arguments were checked before.
import type { CallWait } from '../../core/deadline.ts';
import { WeftlineError } from '../../core/errors.ts';
import type { CudaStream } from '../../device/cuda/cuda-stream.ts';
import type { DeviceEvent } from '../../device/device.ts';
import type { Tensor } from '../../device/tensor.ts';
import type { EpCallOptions } from '../buffer/call-arguments.ts';
import type { DispatchSplits } from './expert-plan.ts';
import type { TokenDType } from './ep-config.ts';
import type { CheckedLayerCombine, LayerInput } from './layer-arguments.ts';
import type { EPAllToAllLayoutDesc } from './layout-desc.ts';
import { type LayerWeights, TritonDispatchResult } from './triton-names.ts';

/** What EPAll2AllLayer.dispatch() returns; `D` is the dtype of the tokens, `W` the type of the weights that came with them. */
export class LayerDispatchResult<
  D extends TokenDType = 'bf16',
  W extends LayerWeights = LayerWeights,
> extends TritonDispatchResult<D, W> {
  /**
   * [recv, H] of the layer's dtype in this rank's window, by local expert, then source rank, then token. Valid until the
   * next dispatch; combine overwrites it with the experts' output, unless the layer was made with keepDispatchOutput.
   * On a GPU it is written in the order of the device's stream.
   */
  override readonly recvX: Tensor<D>;
  /** [recv], of weightDtype, in the window like recvX, valid until the next dispatch; absent when no weights were passed. */
  override readonly recvTopkWeights: W;
  override readonly handle: EPAllToAllLayoutDesc;
  /** When the rows are there; only with asyncFinish. The caller closes it. */
  readonly event: DeviceEvent | undefined;

  /** @internal */
  constructor({ recvX, recvTopkWeights, handle }: LayerReceived<D, W>, event: DeviceEvent | undefined) {
    super();
    this.recvX = recvX;
    this.recvTopkWeights = recvTopkWeights;
    this.handle = handle;
    this.event = event;
  }
}

/** What an engine has of a dispatch before it has an event for it. */
export type LayerReceived<D extends TokenDType = TokenDType, W extends LayerWeights = LayerWeights> = Pick<
  LayerDispatchResult<D, W>,
  'recvX' | 'recvTopkWeights' | 'handle'
>;

/** What EPAll2AllLayer.combine() returns with asyncFinish. */
export interface LayerCombineResult<D extends TokenDType = 'bf16'> {
  /** [T, H] of the layer's dtype. */
  readonly combinedX: Tensor<D>;
  /** When the sums are there; only with asyncFinish. The caller closes it. */
  readonly event: DeviceEvent | undefined;
}

/** A dispatch stage by stage, in this order; every rank calls the same stages. */
export interface DispatchStages {
  /** Rows that each rank receives. */
  readonly recvRows: readonly number[];
  /** Rows that each of this rank's experts receives. */
  readonly perExpert: readonly number[];
  /** How much each rank sends to each expert. Not collective. */
  splits(): Promise<DispatchSplits>;
  /** What this rank asks other nodes to take: see sendRequests(). Undefined on one host. */
  sendReqs(): Int32Array | undefined;
  /** Makes room for the rows where some rank has too little; alike on all ranks. */
  makeRoom(options: CallWait): Promise<void>;
  send(options: CallWait): Promise<void>;
  /** What dispatch returns. Not collective. */
  finish(): Promise<LayerDispatchResult<TokenDType>>;
}

export interface LayerEngine {
  /** Engines whose calls a graph can repeat have it. `requireIdle` fails while the layer cannot begin a call, which it is told. */
  guardLaunches?(requireIdle: (what: string) => void): void;
  /** Fails when an earlier call left the ranks in disagreement, or a peer is gone. */
  throwIfUnusable(): void;
  dispatch(input: LayerInput, options: EpCallOptions): Promise<LayerDispatchResult<TokenDType>>;
  /** The part of a dispatch that decides where rows go. No other call may come before the last stage. */
  prepare(input: LayerInput, options: EpCallOptions): Promise<DispatchStages>;
  combine(input: CheckedLayerCombine, options: EpCallOptions): Promise<LayerCombineResult<TokenDType>>;
  barrier(options: CallWait & { readonly intraNodeOnly: boolean }): Promise<void>;
  /** Enqueues a barrier and returns. Fails with WL_INVALID_ARGUMENT where the device has no streams. */
  barrierOnStream(stream: CudaStream, options: CallWait & { readonly intraNodeOnly: boolean }): void;
  /** Releases what the engine has besides the context's memory. */
  close(): Promise<void>;
}

/** What a layer's engine is made for, besides its context. */
export interface LayerEngineOptions {
  readonly enableLocalCombine: boolean;
  readonly numSms: number;
  readonly useAot: boolean;
}

// A dispatch of EPAll2AllLayer whose stages the caller runs one by one.

/** The call after each stage. */
const following: Readonly<Record<string, string>> = {
  preprocess: 'initOutputBuffer',
  initOutputBuffer: 'dispatchToken',
  dispatchToken: 'dispatchPostprocess',
};

/** Between preprocess() and dispatchPostprocess(): what will arrive. */
export class StagedDispatch {
  /** Rows that each rank will receive. */
  readonly recvRows: readonly number[];
  /** Rows that each expert of this rank will receive, in the order in which they will stand in the output. */
  readonly numRecvTokensPerExpert: readonly number[];
  readonly #stages: DispatchStages;
  #done = 'preprocess';
  #failed = false;

  /** @internal */
  constructor(stages: DispatchStages) {
    this.recvRows = stages.recvRows;
    this.numRecvTokensPerExpert = stages.perExpert;
    this.#stages = stages;
  }

  /** The call of EPAll2AllLayer that must come next. */
  get next(): string {
    return following[this.#done] ?? 'nothing';
  }

  /** True when a stage began and failed; no other one can follow. */
  get failed(): boolean {
    return this.#failed;
  }

  /** @internal */
  get stages(): DispatchStages {
    return this.#stages;
  }

  /** @internal */
  async run<T>(call: string, after: string, stage: (stages: DispatchStages) => Promise<T>): Promise<T> {
    if (this.#done !== after) {
      throw new WeftlineError('WL_INVALID_ARGUMENT', `Cannot call ${call} now: expected ${this.next}`, {
        details: { call, expected: this.next },
      });
    }
    try {
      const result = await stage(this.#stages);
      this.#done = call;
      return result;
    } catch (error) {
      this.#failed = true;
      throw error;
    }
  }
}
