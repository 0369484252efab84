// What an EPAll2AllLayer is made with, and its checked configuration.
import { checkOptions, isWhole, type OptionNames } from '../../core/check-options.ts';
import type { WaitOptions } from '../../core/deadline.ts';
import { invalidArgument } from '../../core/errors.ts';
import type { Tensor } from '../../device/tensor.ts';
import type { RankGroup } from '../../world/rank-group.ts';
import type { CombinePrecision } from '../combine-precision.ts';
import { EPConfig, type TokenDType } from './ep-config.ts';

/** What an EPAll2AllLayer is made for. All ranks pass the same. */
export interface LayerOptions<D extends TokenDType = 'bf16'> extends WaitOptions {
  /** Most tokens that any rank passes to one dispatch. */
  readonly maxTokensPerRank: number;
  /** Elements of a token, a multiple of 8. */
  readonly hidden: number;
  /** Choices of each token, 1 to 32; one that has fewer fills them with -1. */
  readonly maxTopk: number;
  /** Experts of all ranks together, a multiple of the number of ranks; rank r holds a contiguous r-th part. */
  readonly numExperts: number;
  /** Of the tokens: 'bf16' (the default), 'f16' or 'f32'. Sums are made in f32 and rounded once. */
  readonly dtype?: D;
  /** Of the routing weights; 'f32' by default. */
  readonly weightDtype?: 'f32' | 'bf16';
  /** Of rows and counts in layout descriptors; 'i32' by default. */
  readonly offsetDtype?: 'i32' | 'i64';
  /** Sum a token's rows on each rank first, so that combine moves one row per (token, rank); one more rounding to dtype. */
  readonly enableLocalCombine?: boolean;
  /**
   * Keep dispatch's output as it is until the next dispatch: combine then reads the experts' output from memory of its
   * own, as large as the output. Without it, the default, combine overwrites dispatch's output.
   */
  readonly keepDispatchOutput?: boolean;
  /**
   * What a host's sum of a token's rows travels to another host as: rounded to the layer's dtype ('bf16', the default,
   * whichever dtype that is), or as 'f32', twice the bytes of 16-bit rows. On one host it makes no difference.
   */
  readonly combinePrecision?: CombinePrecision;
  /**
   * Most bytes of a rank's network side. 0, the default: as many as all tokens need at once. With fewer, combine moves sums in
   * rounds. On one host it makes no difference.
   */
  readonly numRdmaBytes?: number;
  /** See ContextOptions. */
  readonly rdmaBuffer?: Tensor<'u8'>;
  /** Multiprocessors for the kernels of a GPU, 20 by default; CPU ranks ignore it: they work on one thread. */
  readonly numSms?: number;
  /**
   * Run kernels compiled ahead of time: on a GPU those that `weftline compile` put into the device's aotFolder, else
   * WL_COMPILE; those of a CPU rank always are.
   */
  readonly useAot?: boolean;
  /** Rows of the output buffer as a multiple of maxTokensPerRank * maxTopk; 2 by default. It grows on demand. */
  readonly capacity?: number;
}

const layerOptionNames: OptionNames<LayerOptions> = {
  maxTokensPerRank: true,
  hidden: true,
  maxTopk: true,
  numExperts: true,
  dtype: true,
  weightDtype: true,
  offsetDtype: true,
  enableLocalCombine: true,
  keepDispatchOutput: true,
  combinePrecision: true,
  numRdmaBytes: true,
  rdmaBuffer: true,
  numSms: true,
  useAot: true,
  capacity: true,
  timeoutMs: true,
  signal: true,
};

/** Fails with WL_INVALID_ARGUMENT for what has no options at all; what they are is checked on all ranks together. */
export function requireLayerOptions(options: unknown): void {
  if (typeof options === 'object' && options !== null) return;
  throw invalidArgument('options of EPAll2AllLayer.create', options, 'an object');
}

/** Fails with WL_INVALID_ARGUMENT. */
export function makeConfig(options: LayerOptions<TokenDType>, group: RankGroup): EPConfig {
  checkOptions(options, layerOptionNames, 'options of EPAll2AllLayer.create');
  const { maxTokensPerRank, hidden, maxTopk, numExperts, numSms = 20 } = options;
  const { dtype = 'bf16', weightDtype = 'f32', offsetDtype = 'i32' } = options;
  const { keepDispatchOutput = false, combinePrecision = 'bf16', numRdmaBytes = 0 } = options;
  if (!isWhole(numSms, 1)) throw invalidArgument('numSms', numSms, 'a whole number of at least 1');
  if (!isWhole(numExperts, 1) || numExperts % group.size !== 0) {
    throw invalidArgument('numExperts', numExperts, `a positive multiple of the ${group.size} ranks`);
  }
  return new EPConfig({
    maxTokensPerRank,
    hidden,
    maxTopk,
    numExperts,
    rank: group.rank,
    worldSize: group.size,
    localWorldSize: group.topology.scaleUpRanks.length,
    tokenDtype: dtype,
    weightDtype,
    offsetDtype,
    keepDispatchOutput,
    combinePrecision,
    numRdmaBytes,
  });
}
