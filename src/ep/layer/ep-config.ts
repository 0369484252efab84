// EPConfig: what one all-to-all layer is made for.
import type { elementFormats } from '../../abi/element-formats.ts';
import { checkOptions, isWhole, type OptionNames, requireFlag } from '../../core/check-options.ts';
import type { WaitOptions } from '../../core/deadline.ts';
import { dtypes } from '../../core/dtype.ts';
import { invalidArgument } from '../../core/errors.ts';
import type { Tensor } from '../../device/tensor.ts';
import type { RankGroup } from '../../world/rank-group.ts';
import { MAX_TOPK, requireExperts } from '../buffer/buffer-size.ts';
import { type CombinePrecision, combinePrecisions } from '../across-hosts/network-size.ts';

/** What tokens may consist of; their sums are made in f32 and rounded once to the same dtype. */
export type TokenDType = keyof typeof elementFormats;

/** The fields of an EPConfig: those of a layer, and of the group that it works over. */
type EPConfigOptions = Omit<
  LayerOptions<TokenDType>,
  keyof WaitOptions | 'capacity' | 'dtype' | 'enableLocalCombine' | 'numSms' | 'rdmaBuffer' | 'useAot'
> & {
  readonly rank: number;
  readonly worldSize: number;
  readonly localWorldSize: number;
  /** Dtype of the tokens; 'bf16' by default. */
  readonly tokenDtype?: TokenDType;
};

const configNames: OptionNames<EPConfigOptions> = {
  maxTokensPerRank: true,
  hidden: true,
  maxTopk: true,
  numExperts: true,
  rank: true,
  worldSize: true,
  localWorldSize: true,
  tokenDtype: true,
  weightDtype: true,
  offsetDtype: true,
  keepDispatchOutput: true,
  combinePrecision: true,
  numRdmaBytes: true,
};

/** Sizes of a layer and of the group that it works over, checked. */
export class EPConfig {
  readonly maxTokensPerRank: number;
  readonly hidden: number;
  readonly maxTopk: number;
  readonly numExperts: number;
  readonly rank: number;
  readonly worldSize: number;
  readonly localWorldSize: number;
  readonly tokenDtype: TokenDType;
  readonly weightDtype: 'f32' | 'bf16';
  readonly offsetDtype: 'i32' | 'i64';
  readonly keepDispatchOutput: boolean;
  readonly combinePrecision: CombinePrecision;
  readonly numRdmaBytes: number;

  /** Fails with WL_INVALID_ARGUMENT naming the first value that is not allowed. */
  constructor(options: EPConfigOptions) {
    checkOptions(options, configNames, 'options of EPConfig');
    const { hidden, maxTopk, numExperts, rank, worldSize, localWorldSize } = options;
    const { tokenDtype = 'bf16', weightDtype = 'f32', offsetDtype = 'i32', combinePrecision = 'bf16' } = options;
    for (const name of [
      'maxTokensPerRank',
      'hidden',
      'maxTopk',
      'numExperts',
      'worldSize',
      'localWorldSize',
    ] as const) {
      if (!isWhole(options[name], 1)) throw invalidArgument(name, options[name], 'a whole number of at least 1');
    }
    if (!isWhole(rank, 0) || rank >= worldSize) throw invalidArgument('rank', rank, `0 to ${worldSize - 1}`);
    if (hidden % 8 !== 0) throw invalidArgument('hidden', hidden, 'a multiple of 8');
    if (maxTopk > MAX_TOPK) throw invalidArgument('maxTopk', maxTopk, `1 to ${MAX_TOPK}`);
    if (numExperts % worldSize !== 0)
      throw invalidArgument('numExperts', numExperts, `a multiple of the ${worldSize} ranks`);
    requireOneOf('tokenDtype', tokenDtype, ['bf16', 'f16', 'f32']);
    requireOneOf('weightDtype', weightDtype, ['f32', 'bf16']);
    requireOneOf('offsetDtype', offsetDtype, ['i32', 'i64']);
    requireOneOf('combinePrecision', combinePrecision, combinePrecisions);
    const { numRdmaBytes = 0, keepDispatchOutput = false } = options;
    requireFlag('keepDispatchOutput', keepDispatchOutput);
    if (!isWhole(numRdmaBytes, 0)) throw invalidArgument('numRdmaBytes', numRdmaBytes, 'a whole number of at least 0');
    this.maxTokensPerRank = options.maxTokensPerRank;
    this.hidden = hidden;
    this.maxTopk = maxTopk;
    this.numExperts = numExperts;
    this.rank = rank;
    this.worldSize = worldSize;
    this.localWorldSize = localWorldSize;
    this.tokenDtype = tokenDtype;
    this.weightDtype = weightDtype;
    this.offsetDtype = offsetDtype;
    this.keepDispatchOutput = keepDispatchOutput;
    this.combinePrecision = combinePrecision;
    this.numRdmaBytes = numRdmaBytes;
  }

  /** Triton-distributed's name for maxTokensPerRank. */
  get maxTokens(): number {
    return this.maxTokensPerRank;
  }

  /** Triton-distributed's name for maxTopk. */
  get topk(): number {
    return this.maxTopk;
  }

  /** Experts of each rank; rank r holds a contiguous r-th part. */
  get numExpertsPerRank(): number {
    return this.numExperts / this.worldSize;
  }

  /** @internal Bytes of one token. */
  get rowBytes(): number {
    return this.hidden * dtypes[this.tokenDtype].bytes;
  }

  /** True if all ranks are on one host. */
  get isIntraNode(): boolean {
    return this.localWorldSize === this.worldSize;
  }

  /** @internal Rows that one rank receives when all choices of every rank are experts of it. */
  get maxRecvRows(): number {
    return this.worldSize * this.maxTokensPerRank * this.maxTopk;
  }
}

function requireOneOf(name: string, value: unknown, allowed: readonly string[]): void {
  if (allowed.includes(value as string)) return;
  throw invalidArgument(name, value, allowed.map((one) => `"${one}"`).join(' or '));
}

// What an EPAll2AllLayer is made with, and its checked configuration.

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
  /** Dtype of the tokens: 'bf16' (the default), 'f16' or 'f32'. Sums are made in f32 and rounded once. */
  readonly dtype?: D;
  /** Dtype of the routing weights; 'f32' by default. */
  readonly weightDtype?: 'f32' | 'bf16';
  /** Dtype of rows and counts in layout descriptors; 'i32' by default. */
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
  /**
   * Memory of this rank's device for the network side, `outputSize(…).network.bytes` at least, on a GPU what the error of a
   * smaller one says: [bytes]. Peers write to it until the layer is closed; it stays the caller's, who closes it after that. Made by the layer if it is absent, and not
   * used on one host. On a GPU that no RDMA device reaches create() fails with WL_UNSUPPORTED, and says why.
   */
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
  requireFlag('enableLocalCombine', options.enableLocalCombine);
  requireFlag('useAot', options.useAot);
  if (!isWhole(numSms, 1)) throw invalidArgument('numSms', numSms, 'a whole number of at least 1');
  requireExperts(numExperts, group.size);
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
