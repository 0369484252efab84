// Pictures as SVG documents: lines over time, one panel below the other.
import { WeftlineError } from '../../core/errors.ts';

/** What is used of the two packages. Their own types need those of a browser. */
interface Plot {
  plot(options: Readonly<Record<string, unknown>>): {
    setAttribute(name: string, value: string): void;
    readonly outerHTML: string;
  };
  line(points: readonly PlotPoint[], options: Readonly<Record<string, unknown>>): unknown;
  ruleY(values: readonly number[], options: Readonly<Record<string, unknown>>): unknown;
}
interface Linkedom {
  parseHTML(text: string): { readonly document: unknown };
}

const PLOT_PACKAGE: string = '@observablehq/plot';
const DOCUMENT_PACKAGE: string = 'linkedom';

export interface PlotPoint {
  readonly ms: number;
  readonly value: number;
  /** Which line it belongs to. */
  readonly line: string;
}

export interface PlotPanel {
  readonly label: string;
  readonly points: readonly PlotPoint[];
  /** A value to compare with. */
  readonly at?: number;
}

const WIDTH = 860;
const PANEL_HEIGHT = 190;

/** Observable Plot draws them; that package is not installed with weftline: WL_UNSUPPORTED says what to install. */
export async function drawPanels(title: string, panels: readonly PlotPanel[]): Promise<string> {
  const { plot, document } = await loadPlot();
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
        plot.line(panel.points, { x: 'ms', y: 'value', stroke: 'line', strokeOpacity: 0.8 }),
        ...(panel.at === undefined ? [] : [plot.ruleY([panel.at], { strokeDasharray: '4 3' })]),
      ],
    });
    figure.setAttribute('y', String(30 + index * PANEL_HEIGHT));
    return figure.outerHTML;
  });
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
