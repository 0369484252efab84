// EPConfig: what one all-to-all layer is made for.
import { invalidArgument } from '../../core/errors.ts';
import { isWhole, MAX_TOPK } from '../buffer/buffer-size.ts';

export interface EPConfigOptions {
  /** Most tokens per rank and call. */
  readonly maxTokens: number;
  /** Elements per token, a multiple of 8. */
  readonly hidden: number;
  /** Choices per token, 1 to 32. */
  readonly topk: number;
  /** Experts of all ranks together, a multiple of worldSize. */
  readonly numExperts: number;
  readonly rank: number;
  readonly worldSize: number;
  readonly localWorldSize: number;
  readonly weightDtype?: 'f32' | 'bf16';
}

export class EPConfig {
  readonly maxTokens: number;
  readonly hidden: number;
  readonly topk: number;
  readonly numExperts: number;
  readonly rank: number;
  readonly worldSize: number;
  readonly localWorldSize: number;
  readonly tokenDtype = 'bf16';
  readonly weightDtype: 'f32' | 'bf16';
  readonly offsetDtype = 'i32';

  /** Fails with WL_INVALID_ARGUMENT naming the first value that is not allowed. */
  constructor(options: EPConfigOptions) {
    const { hidden, topk, numExperts, rank, worldSize, localWorldSize, weightDtype = 'f32' } = options;
    for (const name of ['maxTokens', 'hidden', 'topk', 'numExperts', 'worldSize', 'localWorldSize'] as const) {
      if (!isWhole(options[name], 1)) throw invalidArgument(name, options[name], 'a whole number of at least 1');
    }
    if (!isWhole(rank, 0) || rank >= worldSize) throw invalidArgument('rank', rank, `0 to ${worldSize - 1}`);
    if (hidden % 8 !== 0) throw invalidArgument('hidden', hidden, 'a multiple of 8');
    if (topk > MAX_TOPK) throw invalidArgument('topk', topk, `1 to ${MAX_TOPK}`);
    if (numExperts % worldSize !== 0)
      throw invalidArgument('numExperts', numExperts, `a multiple of the ${worldSize} ranks`);
    if (weightDtype !== 'f32' && weightDtype !== 'bf16')
      throw invalidArgument('weightDtype', weightDtype, '"f32" or "bf16"');
    this.maxTokens = options.maxTokens;
    this.hidden = hidden;
    this.topk = topk;
    this.numExperts = numExperts;
    this.rank = rank;
    this.worldSize = worldSize;
    this.localWorldSize = localWorldSize;
    this.weightDtype = weightDtype;
  }

  get numExpertsPerRank(): number {
    return this.numExperts / this.worldSize;
  }

  get isIntraNode(): boolean {
    return this.localWorldSize === this.worldSize;
  }

  /** Rows that one rank receives when every rank sends every token to as many of its experts as it can. */
  get maxRecvRows(): number {
    return this.worldSize * this.maxTokens * Math.min(this.topk, this.numExpertsPerRank);
  }
}
