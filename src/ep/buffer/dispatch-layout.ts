// What get_dispatch_layout tells: how many tokens each rank and expert gets, and which rank gets which token.
import { invalidArgument, WeftlineError } from '../../core/errors.ts';
import type { CountExchange } from '../../group/exchange.ts';
import type { CpuDevice } from '../../device/cpu/cpu-device.ts';
import type { Tensor } from '../../device/tensor.ts';
import type { TensorAllocator } from '../../device/device.ts';

/** All on the device. */
export interface LayoutTensors {
  /** i32 [ranks]: distinct tokens that go to each rank. */
  readonly numTokensPerRank: Tensor<'i32'>;
  /** i32 [experts]: choices of each expert. */
  readonly numTokensPerExpert: Tensor<'i32'>;
  /** u8 [T, ranks]: 1 where the token goes to the rank. */
  readonly isTokenInRank: Tensor<'u8'>;
}

/** Owned by the caller. */
export interface DispatchLayout extends LayoutTensors, Disposable {
  /** Gives its tensors back at once rather than when they are collected. Idempotent. */
  close(): void;
}

export interface LayoutShape {
  readonly ranks: number;
  readonly experts: number;
  /** An id besides -1 that means "no expert"; -1 for none. */
  readonly dropped: number;
  /** Name of the choices, for errors. */
  readonly name: string;
}

/** Why a rank cannot send what it was given, and the number by which it tells the others, who expect its rows. */
export interface Refusal {
  readonly error: WeftlineError;
  /** 1 + flat index of a choice that is out of range, or REFUSED_LAYOUT. */
  readonly status: number;
}

const REFUSED_LAYOUT = 0xffff_ffff;

/** Fills `layout` from topkIdx [T, K], unless a choice is out of range, which the refusal names with its value. */
export function computeLayout(
  topkIdx: Tensor<'i32' | 'i64'>,
  layout: LayoutTensors,
  shape: LayoutShape,
): Refusal | undefined {
  const device = topkIdx.device as CpuDevice;
  const [tokens = 0, k = 0] = topkIdx.shape;
  const bad = device.kernels.countChoices(
    topkIdx.address,
    topkIdx.dtype === 'i64' ? 8 : 4,
    tokens,
    k,
    shape.ranks,
    shape.experts,
    shape.dropped,
    layout.isTokenInRank.address,
    layout.numTokensPerRank.address,
    layout.numTokensPerExpert.address,
  );
  if (bad < 0) return undefined;
  const { place, range } = choiceAt(shape, k, bad);
  return { error: invalidArgument(place, Number(topkIdx.view()[bad]), range), status: bad + 1 };
}

/** Hot path. After the exchange of counts: if a rank has refused, every rank fails; the one that did says why. */
export function throwIfRefused(exchange: CountExchange, shape: LayoutShape, own: Refusal | undefined): void {
  const rank = exchange.refusedBy();
  if (rank >= 0) throw own?.error ?? refusedThere(shape, exchange.refusalOf(rank));
}

/** The error of a rank that hears of the refusal of `rank`, of the world, whose tokens have k choices each. */
export function refusedThere(shape: LayoutShape, of: { status: number; rank: number; k: number }): WeftlineError {
  const { status, rank, k } = of;
  if (status === REFUSED_LAYOUT) {
    return invalidThere({ place: 'layout', range: 'what getDispatchLayout returned for its topkIdx' }, rank, 'it');
  }
  return invalidThere(choiceAt(shape, k, status - 1), rank, 'the value');
}

/**
 * The error of a rank that hears of a bad argument of `rank`, of the world: it names the rank where the error began.
 * `shown`: what the error of that rank shows.
 */
function invalidThere({ place, range }: ChoicePlace, rank: number, shown?: string): WeftlineError {
  const hint = shown === undefined ? '' : `; the error of rank ${rank} shows ${shown}`;
  return new WeftlineError('WL_INVALID_ARGUMENT', `Invalid ${place} of rank ${rank}: expected ${range}${hint}`, {
    details: { argument: place, rank },
    rank,
  });
}

/** What is wrong, and what would be right. */
interface ChoicePlace {
  readonly place: string;
  readonly range: string;
}

/** The place of the choice at the flat index `cell` of tokens that have k each. */
export function choiceAt(
  { name, experts, dropped }: Pick<LayoutShape, 'name' | 'experts' | 'dropped'>,
  k: number,
  cell: number,
): ChoicePlace {
  const none = dropped < 0 ? '-1' : `-1 or ${dropped}`;
  return {
    place: `${name}[${Math.floor(cell / k)}, ${cell % k}]`,
    range: `an expert from 0 to ${experts - 1}, or ${none} for none`,
  };
}

/**
 * The error of a choice that a rank has refused. `choice` is its value if this rank passed it, undefined if another one did, and
 * 'unknown' if no rank knows it any more.
 */
export function badChoice(
  where: ChoicePlace,
  rank: number,
  choice: number | bigint | 'unknown' | undefined,
): WeftlineError {
  if (choice === undefined) return invalidThere(where, rank, 'the value');
  if (choice === 'unknown') return invalidThere(where, rank);
  return invalidArgument(where.place, Number(choice), where.range);
}

/** The error of kernels whose ranks passed different kinds of tensors. `words`: where each field of a record is. */
export function recordMismatch(
  words: Readonly<Record<string, number>>,
  { rank, first, word }: { readonly rank: number; readonly first: number; readonly word: number },
): WeftlineError {
  const field = Object.entries(words).find(([, at]) => at === word)?.[0] ?? `word ${word}`;
  return new WeftlineError(
    'WL_CONFIG_MISMATCH',
    `The ranks disagree on ${field}: rank ${rank} differs from rank ${first}; all must pass the same kind of tensors`,
    { details: { field, rank } },
  );
}

/** Memory for a layout of `tokens` tokens, owned like the allocator's tensors. */
export function emptyLayout(
  tensors: TensorAllocator,
  tokens: number,
  shape: Pick<LayoutShape, 'ranks' | 'experts'>,
): LayoutTensors {
  return {
    numTokensPerRank: tensors.empty('i32', [shape.ranks]),
    numTokensPerExpert: tensors.empty('i32', [shape.experts]),
    isTokenInRank: tensors.empty('u8', [tokens, shape.ranks]),
  };
}

/** Refuses a caller's layout that is not what its choices give. `cells` is tokens * ranks. */
export function compareLayouts(given: LayoutTensors, counted: LayoutTensors, cells: number): Refusal | undefined {
  const marks = given.isTokenInRank.view();
  const same =
    given.numTokensPerRank.view().every((count, rank) => count === counted.numTokensPerRank.view()[rank]) &&
    given.numTokensPerExpert.view().every((count, expert) => count === counted.numTokensPerExpert.view()[expert]) &&
    Buffer.compare(marks, counted.isTokenInRank.view().subarray(0, cells)) === 0;
  if (same) return undefined;
  const allowed = 'what getDispatchLayout returned for this topkIdx';
  return { error: invalidArgument('layout', 'one of other choices', allowed), status: REFUSED_LAYOUT };
}

/** Refuses a layout whose counts per rank are not those of its marks: rows would land on others'. */
export function checkCounts({ isTokenInRank, numTokensPerRank }: LayoutTensors, ranks: number): Refusal | undefined {
  const counts = new Int32Array(ranks);
  for (const [cell, mark] of isTokenInRank.view().entries()) {
    if (mark !== 0) counts[cell % ranks] = counts[cell % ranks]! + 1;
  }
  for (const [rank, count] of numTokensPerRank.view().entries()) {
    if (count === counts[rank]) continue;
    const allowed = `${counts[rank]}, the marks of isTokenInRank`;
    const error = invalidArgument(`layout.numTokensPerRank[${rank}]`, count, allowed);
    return { error, status: REFUSED_LAYOUT };
  }
  return undefined;
}

/** `least`: what a bound that always suffices is. */
export function capacityError(
  rank: number,
  { rows, bound }: { readonly rows: number; readonly bound: number },
  least = "the sum of all ranks' tokens",
): WeftlineError {
  return new WeftlineError(
    'WL_CAPACITY',
    `Rank ${rank} would receive ${rows} rows, more than its numWorstTokens ${bound}; pass at least ${least}`,
    { details: { rank, rows, numWorstTokens: bound } },
  );
}
