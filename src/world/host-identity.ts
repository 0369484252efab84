// Which ranks share a host's memory: the same boot, the same /dev/shm, the same host name.
import { statSync } from 'node:fs';
import { hostname } from 'node:os';
import { bootId } from '../meeting/boot-id.ts';
import { SHARED_MEMORY_FOLDER } from './shared-memory-files.ts';

/** Equal for two processes exactly if shared-memory files of one are visible to the other. */
export function hostIdentity(): string {
  return [bootId(), sharedMemoryDevice(), hostname()].join('/');
}

export interface Placement {
  readonly localRanks: readonly number[];
  readonly localRank: number;
  readonly nodeRank: number;
  readonly nodeCount: number;
}

/** Groups ranks by identity; nodes are numbered by their lowest rank. */
export function placeRanks(rank: number, identities: readonly string[]): Placement {
  const nodes = [...new Set(identities)];
  const own = identities[rank];
  const localRanks = identities.flatMap((identity, other) => (identity === own ? [other] : []));
  return {
    localRanks,
    localRank: localRanks.indexOf(rank),
    nodeRank: nodes.indexOf(own ?? ''),
    nodeCount: nodes.length,
  };
}

/** Tells containers of one host apart: each has its own /dev/shm unless they share it. */
function sharedMemoryDevice(): string {
  try {
    return String(statSync(SHARED_MEMORY_FOLDER).dev);
  } catch {
    return 'no-shm';
  }
}
