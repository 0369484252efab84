// How the machine of rank 0 is, while all other ranks wait.
import type { World } from '../../../world/index.ts';
import { type PlacementSample, samplePlacement } from '../placement.ts';

/** Collective. On rank 0 only: two threads of one process measure the machine. */
export async function sampleMachine(world: World): Promise<PlacementSample | undefined> {
  await world.barrier('bench-quiet');
  const sample = world.rank === 0 ? await samplePlacement() : undefined;
  await world.barrier('bench-sampled');
  return sample;
}
