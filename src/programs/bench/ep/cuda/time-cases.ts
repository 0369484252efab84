// Times the cases of a GPU bench in turn: in every iteration each of them once for the device and once for the host.
import type { World } from '../../../../world/index.ts';
import { interleave, type Rounds } from '../../interleaved.ts';
import type { CudaCase } from './ep-case.ts';
import type { CudaStopwatch } from './stopwatch.ts';

/** Microseconds of one case, an element per iteration, each of the slowest rank. */
export interface CudaTimes {
  readonly device: readonly number[];
  readonly returned: readonly number[];
  readonly ready: readonly number[];
  /** Microseconds on the device, per rank. */
  readonly deviceOfRanks: readonly (readonly number[])[];
}

/** Collective. Every rank gets the same result. */
export async function timeCudaCases(
  world: World,
  stopwatch: CudaStopwatch,
  cases: readonly CudaCase[],
  rounds: Rounds,
): Promise<CudaTimes[]> {
  const mine = cases.map(() => ({ device: [] as number[], returned: [] as number[], ready: [] as number[] }));
  await interleave(cases.length, rounds, async (index, iteration) => {
    const { prepare, run } = cases[index] as CudaCase;
    prepare?.();
    const device = await stopwatch.onDevice(run);
    prepare?.();
    const { returned, ready } = await stopwatch.onHost(run);
    if (iteration < 0) return;
    mine[index]?.device.push(device);
    mine[index]?.returned.push(returned);
    mine[index]?.ready.push(ready);
  });
  const all: CudaTimes[] = [];
  for (const times of mine) {
    const ranks = await world.allGather('bench-times', times);
    const slowest = (of: keyof typeof times): number[] =>
      times[of].map((_, iteration) => Math.max(...ranks.map((rank) => rank[of][iteration] as number)));
    all.push({
      device: slowest('device'),
      returned: slowest('returned'),
      ready: slowest('ready'),
      deviceOfRanks: ranks.map(({ device }) => device),
    });
  }
  return all;
}
