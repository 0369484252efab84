// The names that Triton-distributed's document has for what EPAll2AllLayer takes and gives, beside the library's own.
import type { WaitOptions } from '../../core/deadline.ts';
import { WeftlineError } from '../../core/errors.ts';
import type { CudaStream } from '../../device/cuda/cuda-stream.ts';
import type { Tensor } from '../../device/tensor.ts';
import type { LayerOptions, TokenDType } from './ep-config.ts';
import type { LayerBarrierOptions, LayerCombineArguments, LayerDispatchArguments } from './layer-arguments.ts';
import type { EPAllToAllLayoutDesc } from './layout-desc.ts';

/** LayerOptions under the document's names. */
export interface TritonLayerOptions<D extends TokenDType = 'bf16'> extends Omit<
  LayerOptions<D>,
  'maxTokensPerRank' | 'maxTopk' | 'numExperts' | 'numSms'
> {
  /** maxTokensPerRank. */
  readonly maxTokens: number;
  /** maxTopk. */
  readonly topk: number;
  /** numExperts. */
  readonly numTotExperts: number;
  /** numSms. */
  readonly numSm?: number;
}

/** LayerDispatchArguments under the document's names. */
export interface TritonDispatchArguments<D extends TokenDType = 'bf16'> extends Omit<
  LayerDispatchArguments<D>,
  'x' | 'topkIdx' | 'topkWeights'
> {
  /** x. */
  readonly input: Tensor<D>;
  /** topkIdx. */
  readonly expIndices: Tensor<'i32' | 'i64'>;
  /** topkWeights. */
  readonly weight?: Tensor<'f32' | 'bf16'>;
}

/** LayerCombineArguments under the document's names; the descriptor also under the name that it has in the result of dispatch(). */
export type TritonCombineArguments<D extends TokenDType = 'bf16'> = Omit<LayerCombineArguments<D>, 'x' | 'handle'> & {
  /** x. */
  readonly input: Tensor<D>;
} & (
    | {
        /** handle. */
        readonly epA2aLayoutDesc: EPAllToAllLayoutDesc;
      }
    | {
        /** handle. */
        readonly layoutDesc: EPAllToAllLayoutDesc;
      }
  );

type Names = Readonly<Record<string, string>>;

const optionNames: Names = {
  maxTokens: 'maxTokensPerRank',
  topk: 'maxTopk',
  numTotExperts: 'numExperts',
  numSm: 'numSms',
};
const dispatchNames: Names = { input: 'x', expIndices: 'topkIdx', weight: 'topkWeights' };
const combineNames: Names = { input: 'x', epA2aLayoutDesc: 'handle', layoutDesc: 'handle' };

/** Fails with WL_INVALID_ARGUMENT for an option that is given under both names. */
export function ownOptions<D extends TokenDType>(options: LayerOptions<D> | TritonLayerOptions<D>): LayerOptions<D> {
  return renamed(options, optionNames) as LayerOptions<D>;
}

/** Hot path. Fails as ownOptions() does. */
export function ownDispatch<D extends TokenDType>(
  args: LayerDispatchArguments<D> | TritonDispatchArguments<D>,
): LayerDispatchArguments<D> {
  return renamed(args, dispatchNames) as LayerDispatchArguments<D>;
}

/** Hot path. Fails as ownOptions() does. */
export function ownCombine<D extends TokenDType>(
  args: LayerCombineArguments<D> | TritonCombineArguments<D>,
): LayerCombineArguments<D> {
  return renamed(args, combineNames) as LayerCombineArguments<D>;
}

/** Makes an object only if one of the document's names is there; what is no object is left to the checks behind. */
function renamed(given: object, names: Names): object {
  if (typeof given !== 'object' || given === null) return given;
  let own: Record<string, unknown> | undefined;
  for (const name in names) {
    if (!Object.hasOwn(given, name)) continue;
    own ??= { ...given };
    const ownName = names[name]!;
    if (Object.hasOwn(own, ownName)) {
      const message = `Invalid ${name}: it is another name of ${ownName}, which is given as well: give one of them`;
      throw new WeftlineError('WL_INVALID_ARGUMENT', message, { details: { argument: name, other: ownName } });
    }
    own[ownName] = own[name];
    delete own[name];
  }
  return own ?? given;
}

/** Weights of received rows; undefined where none were sent. */
export type LayerWeights = Tensor<'f32' | 'bf16'> | undefined;

/** The document's names of what dispatch() returns. */
export abstract class TritonDispatchResult<D extends TokenDType, W extends LayerWeights> {
  abstract readonly recvX: Tensor<D>;
  abstract readonly recvTopkWeights: W;
  abstract readonly handle: EPAllToAllLayoutDesc;

  /** recvX. */
  get output(): Tensor<D> {
    return this.recvX;
  }

  /** recvTopkWeights. */
  get weights(): W {
    return this.recvTopkWeights;
  }

  /** handle. */
  get layoutDesc(): EPAllToAllLayoutDesc {
    return this.handle;
  }
}

/** The name that a layer's context has besides its own. */
export abstract class TritonContext {
  abstract close(): Promise<void>;

  /** close(). */
  finalize(): Promise<void> {
    return this.close();
  }
}

/** The names that EPAll2AllLayer has besides its own. */
export abstract class TritonLayer extends TritonContext {
  abstract barrier(options?: LayerBarrierOptions): Promise<void>;

  /**
   * barrier().
   * @param stream As there.
   * @param intraNodeOnly As there.
   * @param options How long to wait.
   */
  epBarrierAll(stream?: CudaStream, intraNodeOnly = false, options: WaitOptions = {}): Promise<void> {
    return this.barrier({ ...options, intraNodeOnly, ...(stream && { stream }) });
  }
}
