// All ranks must create a collective object with the same configuration; a difference is named on every rank.
import { WeftlineError } from '../core/errors.ts';
import type { WaitOptions } from '../world/store.ts';
import type { World } from '../world/world.ts';

type Scalar = string | number | boolean | undefined;

/** Collective. Fails on every rank with the same WL_CONFIG_MISMATCH: which field, which ranks, which values. */
export async function agreeOnConfig(
  world: World,
  what: string,
  config: Readonly<Record<string, Scalar>>,
  options: WaitOptions,
): Promise<void> {
  const all = await world.allGather(`config/${what}`, config, options);
  const first = all[0] ?? {};
  for (const field of new Set(all.flatMap((entry) => Object.keys(entry)))) {
    const rank = all.findIndex((entry) => entry[field] !== first[field]);
    if (rank === -1) continue;
    throw new WeftlineError(
      'WL_CONFIG_MISMATCH',
      `The ranks create ${what} with different ${field}: ${String(first[field])} on rank 0, ${String(all[rank]?.[field])} on rank ${rank}`,
      { details: { field, rank, rank0: first[field], other: all[rank]?.[field] } },
    );
  }
}

/** Collective objects live on one host until a transport between hosts carries them. */
export function requireOneHost(world: World, what: string): void {
  if (world.localRanks.length === world.size) return;
  throw new WeftlineError(
    'WL_UNSUPPORTED',
    `${what} needs all ranks on one host; of ${world.size} ranks only ${world.localRanks.join(', ')} share this one's memory`,
    { details: { size: world.size, localRanks: world.localRanks } },
  );
}
