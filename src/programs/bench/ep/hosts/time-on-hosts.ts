// Times cases on ranks of several hosts, whose clocks have nothing in common: every rank times itself.
import { addTraceSink } from '../../../../core/trace.ts';
import { type BenchCase, type BenchGroup, interleave, type Rounds } from '../../interleaved.ts';
import { PhaseTimes, phaseNames } from './phase-times.ts';

export interface HostCase extends BenchCase {
  /** Bytes that this rank has put to other hosts so far, where the case puts them. */
  readonly sentBytes: () => number;
}

/** Of one rank and case, an element per iteration. */
export interface RankTimes {
  readonly microseconds: readonly number[];
  readonly sentBytes: readonly number[];
  /** [phase][iteration], by phaseNames. */
  readonly phases: readonly (readonly number[])[];
}

/** Collective. [case][rank], the same on every rank; nothing is exchanged before the last iteration has ended. */
export async function timeOnHosts(
  group: BenchGroup,
  cases: readonly HostCase[],
  rounds: Rounds,
): Promise<RankTimes[][]> {
  const made = cases.map(() => ({
    microseconds: [] as number[],
    sentBytes: [] as number[],
    phases: phaseNames.map((): number[] => []),
  }));
  const sink = new PhaseTimes();
  const removeSink = addTraceSink(sink);
  try {
    await interleave(cases.length, rounds, async (index, iteration) => {
      const of = cases[index]!;
      await of.prepare?.();
      await group.barrier('bench');
      sink.reset();
      const sentBefore = of.sentBytes();
      const begin = performance.now();
      await of.run();
      const end = performance.now();
      if (iteration < 0) return;
      const to = made[index]!;
      to.microseconds.push((end - begin) * 1000);
      to.sentBytes.push(of.sentBytes() - sentBefore);
      for (const [phase, times] of to.phases.entries()) times.push(sink.microseconds[phase]!);
    });
  } finally {
    removeSink();
  }
  const gathered: RankTimes[][] = [];
  // One case at a time: a value of the store has a limit, which all cases of many iterations would exceed.
  for (const times of made) gathered.push(await group.allGather<RankTimes>('bench-times', times));
  return gathered;
}
