// Where each rank's part of the window can be read on this host: its own, or the mirror of a rank of another host.
import type { MemoryRange } from '../../device/tensor.ts';
import type { SymmetricWindow } from '../../windows/symmetric-window.ts';
import type { RankGroup } from '../../world/rank-group.ts';
import { hostRoutes } from '../../group/network/host-routes.ts';

/** What a rank's part begins with, and what mirrors are of. */
export interface MirroredRegions {
  readonly bytes: number;
}

/** By rank of the group, all of them. */
export interface RankParts {
  /** Ranks of the world. */
  readonly ranks: readonly number[];
  /** This rank. */
  readonly index: number;
  readonly addresses: readonly number[];
  /** All of the window. */
  readonly storage: MemoryRange;
}

/** Offset of a mirror in the part of the rank that has it. `slot`: of the mirrored rank among those that it stands for. */
export function mirrorOffset(mirrors: number, slot: number, { bytes }: MirroredRegions): number {
  return mirrors + slot * bytes;
}

/** `mirrors`: offset of the mirrors in each part; unused on one host. */
export function rankParts(
  { rank: index, ranks, topology }: RankGroup,
  window: SymmetricWindow,
  { regions, mirrors }: { readonly regions: MirroredRegions; readonly mirrors: number },
): RankParts {
  const partOf = (rank: number): number => window.addresses[topology.scaleUpIndexOf(rank)]!;
  const addresses = ranks.map((_, rank) => {
    if (topology.hostOf(rank) === topology.hostIndex) return partOf(rank);
    const way = hostRoutes(topology.hosts, rank).ways.find(({ host }) => host === topology.hostIndex)!;
    return partOf(way.forwarder) + mirrorOffset(mirrors, way.slot, regions);
  });
  return { ranks, index, addresses, storage: window.storage };
}
