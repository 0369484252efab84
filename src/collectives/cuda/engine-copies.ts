// What each rank copies, by copy engines, in a call whose output lies at the same registered place on all ranks.
import type { RankGroup } from '../../world/rank-group.ts';
import type { CollectiveCall } from '../collective-call.ts';
import type { RegisteredPlace } from './registrations.ts';

interface EngineCopy {
  /** Whose output it goes to, from its begin on. */
  readonly rank: number;
  readonly to: number;
  readonly from: number;
  readonly bytes: number;
}

/**
 * In turns: in the n-th one a rank copies to the one n behind it, so that no link is busy for two. Undefined for calls that are
 * no copies of whole parts, or whose output is not registered, or would reach further than a registration of some rank.
 */
export function copiesByEngines(
  { kind, count, elementBytes, input, output }: CollectiveCall,
  { rank: me, size }: Pick<RankGroup, 'rank' | 'size'>,
  { id, leastBytes }: Readonly<RegisteredPlace>,
): EngineCopy[] | undefined {
  const isGather = kind === 'allGather';
  if (!isGather && (kind !== 'allToAll' || input === output)) return undefined;
  const bytes = count * elementBytes;
  if (id === 0 || bytes * size > leastBytes) return undefined;
  const copies: EngineCopy[] = [];
  for (let turn = 0; turn < size; turn++) {
    const rank = (me + turn) % size;
    const from = isGather ? input : input + rank * bytes;
    const isThere = rank === me && from === output + me * bytes;
    if (!isThere) copies.push({ rank, to: me * bytes, from, bytes });
  }
  return copies;
}
