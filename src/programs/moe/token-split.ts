// How the tokens and experts of a block are divided over the ranks.
import { invalidArgument } from '../../core/errors.ts';

export interface Share {
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
