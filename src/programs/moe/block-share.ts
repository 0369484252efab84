// What one rank reads of a block file: its tokens with their choices, its experts, and its part of the reference.
import { invalidArgument } from '../../core/errors.ts';
import type { Tensor } from '../../device/tensor.ts';
import { type BlockSource, WeightReader } from './block-source.ts';
import type { MoeBlock } from './moe-block.ts';
import type { LocalExperts, MoeDevice, MoeEngine, Routing } from './moe-engine.ts';
import { formatError } from './safetensors-header.ts';

export interface BlockShare extends Disposable {
  readonly tokens: Share;
  /** [T, H] of this rank's tokens; so are the following. */
  readonly x: Tensor<'bf16'>;
  /** [T, K] */
  readonly topkIdx: Tensor<'i64'>;
  /** [T, K] */
  readonly topkWeights: Tensor<'f32'>;
  /** Computes topkIdx and topkWeights anew from x, where the routing 'gate' is part of each pass. */
  readonly route: (() => void) | undefined;
  readonly experts: LocalExperts;
  /** What all tokens of this rank go through here, if the block has it. */
  readonly shared: SharedExpert | undefined;
  /** [T, H] */
  readonly reference: Float32Array | undefined;
}

interface SharedExpert {
  /** One expert. */
  readonly experts: LocalExperts;
  /** [T]; 1 for each token without it. */
  readonly weights?: Tensor<'f32'>;
}

export interface ShareOptions {
  readonly engine: MoeEngine;
  readonly source: BlockSource;
  readonly rank: number;
  readonly ranks: number;
}

/** Reads no more than this rank needs. Fails with WL_FILE_FORMAT if expert ids are out of range. */
export async function readBlockShare(device: MoeDevice, options: ShareOptions): Promise<BlockShare> {
  const { source, engine, rank, ranks } = options;
  const { block } = source;
  const mine = expertShare(block.experts, rank, ranks);
  const tokens = tokenShare(block.tokens, rank, ranks);
  const end = tokens.first + tokens.count;
  const xValues = await source.tokens(tokens.first, end);
  const x = await device.tensor('bf16', [tokens.count, block.hidden], xValues);
  const routing =
    block.routing === 'file'
      ? await readChoices(device, source, tokens)
      : await engine.openGate({ block, x, xValues, weights: await source.gate() });
  const reference = block.hasReference ? await source.reference(tokens.first, end) : undefined;
  const experts = await readExperts(
    device,
    options,
    Array.from({ length: mine.count }, (_, index) => mine.first + index),
  );
  const shared = block.sharedIntermediate === undefined ? undefined : await readShared(device, options, routing);
  return {
    tokens,
    x,
    topkIdx: routing.topkIdx,
    topkWeights: routing.topkWeights,
    route: routing.route,
    experts,
    shared,
    reference,
    [Symbol.dispose]() {
      x.close();
      routing[Symbol.dispose]();
      experts[Symbol.dispose]();
      shared?.experts[Symbol.dispose]();
    },
  };
}

async function readChoices(device: MoeDevice, source: BlockSource, tokens: Share): Promise<Routing> {
  const { block } = source;
  const shape = [tokens.count, block.topk];
  const { ids, weights } = await source.choices(tokens.first, tokens.first + tokens.count);
  checkIds(ids, block, tokens);
  const topkIdx = await device.tensor('i64', shape, ids);
  const topkWeights = await device.tensor('f32', shape, weights);
  const release = (): void => {
    topkIdx.close();
    topkWeights.close();
  };
  return { topkIdx, topkWeights, route: undefined, [Symbol.dispose]: release };
}

function checkIds(ids: BigInt64Array, block: MoeBlock, tokens: Share): void {
  for (let token = 0; token < tokens.count; token++) {
    for (const id of ids.subarray(token * block.topk, (token + 1) * block.topk)) {
      if (id >= -1n && id < BigInt(block.experts)) continue;
      const what = `expert ${id}, expected -1 to ${block.experts - 1}`;
      throw formatError(block.path, `topk_idx of token ${tokens.first + token} has ${what}`, { token, id });
    }
  }
}

/** The experts with these numbers, in this order. */
export async function readExperts(
  device: MoeDevice,
  { source, engine }: Pick<ShareOptions, 'source' | 'engine'>,
  ids: readonly number[],
): Promise<LocalExperts> {
  return engine.createExperts(await source.experts(device, new WeightReader(device, engine), ids));
}

async function readShared(
  device: MoeDevice,
  { source, engine }: ShareOptions,
  { sharedWeights }: Routing,
): Promise<SharedExpert> {
  const experts = engine.createExperts(await source.sharedExpert(device, new WeightReader(device, engine)));
  return { experts, ...(sharedWeights === undefined ? {} : { weights: sharedWeights }) };
}

// How the tokens and experts of a block are divided over the ranks.

interface Share {
  readonly first: number;
  readonly count: number;
}

/** Rank's contiguous part of `tokens`; the first ranks get one more where it does not divide, late ones may get none. */
export function tokenShare(tokens: number, rank: number, ranks: number): Share {
  const least = Math.floor(tokens / ranks);
  const withOneMore = tokens % ranks;
  return { first: rank * least + Math.min(rank, withOneMore), count: least + (rank < withOneMore ? 1 : 0) };
}

/** The most tokens that any rank gets. */
export function largestTokenShare(tokens: number, ranks: number): number {
  return Math.ceil(tokens / ranks);
}

/** Rank's contiguous part of `experts`, the same number on all ranks. Fails with WL_INVALID_ARGUMENT. */
export function expertShare(experts: number, rank: number, ranks: number): Share {
  if (ranks < 1 || experts % ranks !== 0) {
    const divisors = Array.from({ length: experts }, (_, index) => index + 1).filter((count) => experts % count === 0);
    throw invalidArgument('ranks', ranks, `a divisor of the ${experts} experts: ${divisors.join(', ')}`);
  }
  const count = experts / ranks;
  return { first: rank * count, count };
}

/** Fails with WL_INVALID_ARGUMENT unless the experts and their further copies divide evenly among the ranks, which divide the experts. */
export function requireEvenExperts(experts: number, redundant: number, ranks: number): void {
  if ((experts + redundant) % ranks === 0) return;
  const [below, above] = [redundant - (redundant % ranks), redundant + ranks - (redundant % ranks)];
  throw invalidArgument(
    '--redundant-experts',
    redundant,
    `a multiple of the ${ranks} ranks, such as ${below} or ${above}`,
  );
}
