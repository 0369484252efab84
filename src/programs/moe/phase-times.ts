// Times the phases of a forward pass: each phase begins on all ranks together and counts as long as the slowest takes.
import { median } from '../../core/quantile.ts';
import type { World } from '../../world/world.ts';
import type { MoeForward } from './moe-forward.ts';

export interface PhaseTimes {
  /** Milliseconds of each phase, in the order of the forward's phases: median over the repeats. */
  readonly phases: readonly number[];
  /** Milliseconds of all phases in one go, without waiting for each other in between. */
  readonly forward: number;
}

export interface TimingOptions {
  readonly repeat: number;
  /** Waits for what phases enqueued. */
  readonly finish: () => Promise<void>;
}

/** Collective. One pass to warm up, then `repeat` passes phase by phase and as many in one go. */
export async function timePhases(
  world: World,
  forward: MoeForward,
  { repeat, finish }: TimingOptions,
): Promise<PhaseTimes> {
  const runAll = async (): Promise<void> => {
    for (const phase of forward.phases) await phase.run();
    await finish();
  };
  await runAll();
  const phases: number[][] = forward.phases.map(() => []);
  const whole: number[] = [];
  for (let pass = 0; pass < repeat; pass++) {
    for (const [index, phase] of forward.phases.entries()) {
      const runOne = async (): Promise<void> => {
        await phase.run();
        await finish();
      };
      phases[index]?.push(await timeTogether(world, runOne));
    }
    whole.push(await timeTogether(world, runAll));
  }
  const everyone = await world.allGather('moe/times', [...phases, whole]);
  const slowest = [...phases, whole].map((own, index) =>
    own.map((_, pass) => Math.max(...everyone.map((rank) => rank[index]?.[pass] ?? 0))),
  );
  const medians = slowest.map(median);
  return { phases: medians.slice(0, -1), forward: medians.at(-1) as number };
}

async function timeTogether(world: World, work: () => Promise<void>): Promise<number> {
  await world.barrier('moe/phase');
  const start = performance.now();
  await work();
  return performance.now() - start;
}
