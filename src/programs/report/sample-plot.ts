// Pictures of a simulation over time: goodput, windows and the longest queue, as an SVG document.
import { WeftlineError } from '../../core/errors.ts';
import type { PatternResult, Sample } from '../sim/pattern-result.ts';
import type { SimDescription } from './sim-report.ts';

/** What is used of the two packages. Their own types need those of a browser. */
interface Plot {
  plot(options: Readonly<Record<string, unknown>>): {
    setAttribute(name: string, value: string): void;
    readonly outerHTML: string;
  };
  line(points: readonly Point[], options: Readonly<Record<string, unknown>>): unknown;
  ruleY(values: readonly number[], options: Readonly<Record<string, unknown>>): unknown;
}
interface Linkedom {
  parseHTML(text: string): { readonly document: unknown };
}

const PLOT_PACKAGE: string = '@observablehq/plot';
const DOCUMENT_PACKAGE: string = 'linkedom';

interface Point {
  readonly ms: number;
  readonly value: number;
  readonly pair: string;
}

const WIDTH = 860;
const PANEL_HEIGHT = 190;

/** Observable Plot draws it; that package is not installed with weftline: WL_UNSUPPORTED says what to install. */
export async function samplePlot(description: SimDescription, { samples, theory }: PatternResult): Promise<string> {
  const { plot, document } = await loadPlot();
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
  const figures = panels.map((panel, index) => {
    const figure = plot.plot({
      document,
      width: WIDTH,
      height: PANEL_HEIGHT,
      marginLeft: 56,
      x: { label: index === panels.length - 1 ? 'ms' : null },
      y: { label: panel.label, grid: true, zero: true },
      color: { type: 'categorical' },
      marks: [
        plot.line(panel.points, { x: 'ms', y: 'value', stroke: 'pair', strokeOpacity: 0.8 }),
        ...(panel.at === undefined ? [] : [plot.ruleY([panel.at], { strokeDasharray: '4 3' })]),
      ],
    });
    figure.setAttribute('y', String(30 + index * PANEL_HEIGHT));
    return figure.outerHTML;
  });
  const { pattern, congestion, network, seed } = description;
  const title = `${pattern}, ${congestion}, ${network}, seed ${seed}`;
  const height = 30 + panels.length * PANEL_HEIGHT;
  return [
    `<svg xmlns="http://www.w3.org/2000/svg" width="${WIDTH}" height="${height}" viewBox="0 0 ${WIDTH} ${height}">`,
    '<rect width="100%" height="100%" fill="white"/>',
    `<text x="12" y="20" font-family="system-ui, sans-serif" font-size="14">${title}</text>`,
    ...figures,
    '</svg>',
    '',
  ].join('\n');
}

async function loadPlot(): Promise<{ readonly plot: Plot; readonly document: unknown }> {
  try {
    const plot = (await import(PLOT_PACKAGE)) as Plot;
    const linkedom = (await import(DOCUMENT_PACKAGE)) as Linkedom;
    return { plot, document: linkedom.parseHTML('<html><body></body></html>').document };
  } catch (cause) {
    throw new WeftlineError(
      'WL_UNSUPPORTED',
      'Cannot draw: install @observablehq/plot and linkedom beside weftline (npm install @observablehq/plot linkedom)',
      { cause },
    );
  }
}

function points(samples: readonly Sample[], values: (sample: Sample) => readonly number[]): Point[] {
  return samples.flatMap((sample) =>
    values(sample).map((value, pair) => ({ ms: sample.at / 1000, value, pair: String(pair) })),
  );
}
