// Pictures of a simulation over time: goodput, windows and the longest queue, as an SVG document.
import type { PatternResult, Sample } from '../sim/pattern-result.ts';
import { drawPanels, type PlotPoint } from './panel-plot.ts';
import type { SimDescription } from './sim-report.ts';

export async function samplePlot(description: SimDescription, { samples, theory }: PatternResult): Promise<string> {
  const panels = [
    {
      label: 'goodput of each sender, Gbps',
      points: points(samples, (sample) => sample.goodputGbps),
      at: theory.fairShareGbps,
    },
    {
      label: 'window, KiB',
      points: points(samples, (sample) => sample.windowBytes.map((bytes) => (bytes === null ? NaN : bytes / 1024))),
    },
    { label: 'smoothed round trip, µs', points: points(samples, (sample) => sample.roundTrip) },
    { label: 'longest queue, KiB', points: points(samples, (sample) => [sample.queueBytes / 1024]) },
  ].filter((panel) => panel.points.some(({ value }) => Number.isFinite(value)));
  const { pattern, congestion, network, seed } = description;
  return drawPanels(`${pattern}, ${congestion}, ${network}, seed ${seed}`, panels);
}

function points(samples: readonly Sample[], values: (sample: Sample) => readonly number[]): PlotPoint[] {
  return samples.flatMap((sample) =>
    values(sample).map((value, pair) => ({ ms: sample.at / 1000, value, line: String(pair) })),
  );
}
