// One way to compute a block, run and measured: the time of its phases, what they move, the load, and the output.
import { FP8_GROUP } from '../../abi/element-formats.ts';
import { createAll2AllForward } from './all2all-forward.ts';
import { createBufferForward } from './buffer-forward.ts';
import type { ForwardOptions, MoeForward, MoePhaseName } from './moe-forward.ts';
import { countRouting, gatherLoad, type MoeLoad } from './moe-load.ts';
import { type PhaseTimes, timePhases } from './phase-times.ts';

/** What carries the tokens. */
export const moeDispatchers = ['buffer', 'all2all'] as const;

export interface PhaseReport {
  readonly name: MoePhaseName;
  /** Median over the passes of the slowest rank's time. */
  readonly ms: number;
  /** Of all ranks together, here and below. */
  readonly rows: number;
  /** What dispatch and combine bring to their destinations, a rank's own rows included; choices and weights not. */
  readonly bytes?: number;
  readonly gigabytesPerSecond?: number;
  /** The part that comes from other ranks. */
  readonly wireBytes?: number;
  readonly wireGigabytesPerSecond?: number;
}

/** What one way to compute a block took. */
export interface ForwardReport {
  readonly phases: readonly PhaseReport[];
  /** Median of whole passes, without waiting for all ranks between phases. */
  readonly forwardMs: number;
  readonly load: MoeLoad;
  /** Memory per rank that all ranks of the host share. */
  readonly windowBytes: number;
}

export interface MeasureOptions extends ForwardOptions {
  readonly dispatcher: (typeof moeDispatchers)[number];
  /** Timed passes. */
  readonly repeat: number;
}

/** Collective. The report, and bf16 [T, H]: the output for this rank's tokens. `block.experts` are those of the choices. */
export async function measureForward(
  options: MeasureOptions,
): Promise<{ readonly report: ForwardReport; readonly output: Uint16Array }> {
  const { world, engine, block, share, dispatcher, repeat } = options;
  const create = dispatcher === 'buffer' ? createBufferForward : createAll2AllForward;
  await using forward = await create(options);
  const times = await timePhases(world, forward, { repeat, finish: () => engine.finish() });
  const counts = countRouting(await share.topkIdx.toHost(), { ...block, ranks: world.size });
  const load = gatherLoad(await world.allGather('moe/load', counts), dispatcher === 'buffer' ? 'rank' : 'expert');
  const phases = describePhases(forward, { ...options, times, load });
  const { windowBytes } = forward;
  return {
    report: { phases, forwardMs: times.forward, load, windowBytes },
    output: await forward.output.toHost(),
  };
}

type PhaseFacts = Pick<ForwardOptions, 'block' | 'dtype'> & { readonly times: PhaseTimes; readonly load: MoeLoad };

function describePhases(forward: MoeForward, { times, load, block, dtype }: PhaseFacts): PhaseReport[] {
  const total = (count: (rank: MoeLoad['ranks'][number]) => number): number =>
    load.ranks.reduce((sum, rank) => sum + count(rank), 0);
  const received = total((rank) => rank.received);
  const fromOthers = total((rank) => rank.receivedFromOthers);
  const { hidden } = block;
  const rowBytes = { bf16: hidden * 2, fp8: hidden + 4 * Math.ceil(hidden / FP8_GROUP) };
  const rows: Readonly<Record<MoePhaseName, number>> = {
    route: block.tokens,
    quantize: block.tokens,
    dispatch: received,
    dequantize: received,
    experts: total((rank) => rank.expertRows),
    shared: block.tokens,
    combine: received,
  };
  return forward.phases.map(({ name }, index) => {
    const ms = times.phases[index]!;
    const report = { name, ms, rows: rows[name] };
    if (name !== 'dispatch' && name !== 'combine') return report;
    const perRow = rowBytes[name === 'dispatch' ? dtype : 'bf16'];
    const bytes = received * perRow;
    const wireBytes = fromOthers * perRow;
    const perSecond = (amount: number): number => amount / ms / 1e6;
    return {
      ...report,
      bytes,
      gigabytesPerSecond: perSecond(bytes),
      wireBytes,
      wireGigabytesPerSecond: perSecond(wireBytes),
    };
  });
}
