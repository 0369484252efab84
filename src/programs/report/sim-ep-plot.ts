// A picture of a simulated dispatch and combine: what goes into the first rank of each host, and the queues before it.
import type { EpResult, EpSample } from '../sim/ep/ep-result.ts';
import { drawPanels, type PlotPoint } from './panel-plot.ts';
import type { SimEpDescription } from './sim-ep-report.ts';

/** Needs what `drawPanels` needs. */
export function simEpPlot(about: SimEpDescription, { samples }: EpResult): Promise<string> {
  const { hosts, ranksPerHost, tokens } = about.shape;
  const title = `dispatch and combine, ${hosts} hosts of ${ranksPerHost} ranks, ${tokens} tokens, routing ${about.routing}, seed ${about.seed}`;
  return drawPanels(title, [
    {
      label: 'into rank 0 of each host, Gbps',
      points: points(samples, (sample) => sample.intoGbps),
      at: about.gigabitsPerSecond,
    },
    {
      label: 'queue before it, KiB',
      points: points(samples, (sample) => sample.queueBytes.map((bytes) => bytes / 1024)),
    },
  ]);
}

function points(samples: readonly EpSample[], values: (sample: EpSample) => readonly number[]): PlotPoint[] {
  return samples.flatMap((sample) =>
    values(sample).map((value, host) => ({ ms: sample.at / 1000, value, line: `host ${host}` })),
  );
}
