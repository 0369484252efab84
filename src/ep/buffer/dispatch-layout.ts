// What get_dispatch_layout tells: how many tokens each rank and expert gets, and which rank gets which token.
import { invalidArgument } from '../../core/errors.ts';
import type { CpuDevice } from '../../device/cpu/cpu-device.ts';
import type { Tensor } from '../../device/tensor.ts';
import type { TensorAllocator } from '../../device/tensor-set.ts';

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
export interface DispatchLayout extends LayoutTensors, Disposable {}

export interface LayoutShape {
  readonly ranks: number;
  readonly experts: number;
  /** An id besides -1 that means "no expert"; -1 for none. */
  readonly dropped: number;
  /** Of the choices, for errors. */
  readonly name: string;
  /** i32 [experts] for the kernel. */
  readonly scratch: Tensor<'i32'>;
}

/**
 * Fills `layout` from topkIdx [T, K]. Fails with WL_INVALID_ARGUMENT at a choice that is out of range or repeats an
 * expert of its token, naming the token, the choice and its value.
 */
export function computeLayout(topkIdx: Tensor<'i32' | 'i64'>, layout: LayoutTensors, shape: LayoutShape): void {
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
    shape.scratch.address,
  );
  if (bad < 0) return;
  const value = Number(topkIdx.view()[bad]);
  const place = `${shape.name}[${Math.floor(bad / k)}, ${bad % k}]`;
  const inRange = value >= 0 && value < shape.experts;
  throw invalidArgument(
    place,
    value,
    inRange
      ? 'an expert that the token has not chosen before'
      : `an expert from 0 to ${shape.experts - 1}, or -1${shape.dropped < 0 ? '' : ` or ${shape.dropped}`} for none`,
  );
}

/** Memory for a layout of `tokens` tokens, owned like the allocator's tensors. */
export function emptyLayout(tensors: TensorAllocator, tokens: number, shape: LayoutShape): LayoutTensors {
  return {
    numTokensPerRank: tensors.empty('i32', [shape.ranks]),
    numTokensPerExpert: tensors.empty('i32', [shape.experts]),
    isTokenInRank: tensors.empty('u8', [tokens, shape.ranks]),
  };
}

/** Fails with WL_INVALID_ARGUMENT when a caller's layout is not what its choices give. `cells` is tokens * ranks. */
export function requireSameLayout(given: LayoutTensors, counted: LayoutTensors, cells: number): void {
  const marks = given.isTokenInRank.view();
  const same =
    given.numTokensPerRank.view().every((count, rank) => count === counted.numTokensPerRank.view()[rank]) &&
    given.numTokensPerExpert.view().every((count, expert) => count === counted.numTokensPerExpert.view()[expert]) &&
    Buffer.compare(marks, counted.isTokenInRank.view().subarray(0, cells)) === 0;
  if (!same)
    throw invalidArgument('layout', 'one of other choices', 'what getDispatchLayout returned for this topkIdx');
}

/** Fails with WL_INVALID_ARGUMENT when the counts per rank are not those of the marks: rows would land on others'. */
export function requireConsistentLayout({ isTokenInRank, numTokensPerRank }: LayoutTensors, ranks: number): void {
  const counts = new Int32Array(ranks);
  for (const [cell, mark] of isTokenInRank.view().entries()) {
    if (mark !== 0) counts[cell % ranks] = counts[cell % ranks]! + 1;
  }
  for (const [rank, count] of numTokensPerRank.view().entries()) {
    if (count === counts[rank]) continue;
    throw invalidArgument(`layout.numTokensPerRank[${rank}]`, count, `${counts[rank]}, the marks of isTokenInRank`);
  }
}
