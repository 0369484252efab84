// Runs in the browser that shows a report, where Plot and d3 stand before it: draws the charts as wide as there is room.
// The build makes one text of it and of what it imports, page-script.mjs, which each page holds (page-html.ts).
import type { Chart, ChartOf, Rule } from '../chart.ts';

type Options = Readonly<Record<string, unknown>>;
type Mark = unknown;
type Draw = (data: readonly unknown[], options?: Options) => Mark;

/** What is used of the browser: its own types would come over all of weftline. */
interface Element {
  readonly clientWidth: number;
  readonly dataset: Readonly<Record<string, string>>;
  readonly textContent: string | null;
  readonly nextElementSibling: { textContent: string } | null;
  readonly classList: { add(name: string): void; remove(name: string): void };
  getAttribute(name: string): string | null;
  setAttribute(name: string, value: string): void;
  querySelectorAll(selector: string): Iterable<Element>;
  replaceChildren(...children: readonly Element[]): void;
  addEventListener(type: string, listener: (event: Event) => void): void;
}
interface Event {
  readonly key?: string;
  readonly target: Element;
  preventDefault(): void;
}
interface Page {
  readonly document: {
    getElementById(id: string): Element;
    querySelectorAll(selector: string): Iterable<Element>;
    readonly body: Element;
  };
  readonly Plot: { plot(options: Options): Element } & Readonly<
    Record<'axisX' | 'axisY' | 'barX' | 'cell' | 'dot' | 'line' | 'link' | 'rect' | 'ruleX' | 'ruleY' | 'text', Draw>
  >;
  readonly ResizeObserver?: new (seen: () => void) => { observe(element: Element): void };
}

const { document, Plot, ResizeObserver } = globalThis as unknown as Page;
const colours = Array.from({ length: 8 }, (_, index) => `var(--c${index + 1})`);
const CHARACTER = 6.6;
const ROW = 22;
/** More lines than this are told apart by nobody. */
const MAX_LEGEND = 16;

const short = new Intl.NumberFormat('en', { maximumSignificantDigits: 4 });
const tick = new Intl.NumberFormat('en', { notation: 'compact', maximumSignificantDigits: 3 });

function show(value: number): string {
  return Math.abs(value) >= 1000 ? Math.round(value).toLocaleString('en') : short.format(value);
}

/** What a mark says of itself, to screen readers and beside the pointer. */
function saying(text: (datum: never) => string): Options {
  return { ariaLabel: text, title: text, tip: true };
}

function scaleOf(axis: { readonly label: string; readonly scale?: 'linear' | 'log' }, width: number): Options {
  const type = axis.scale ?? 'linear';
  const ticks = Math.max(3, Math.round(width / 110));
  return { label: axis.label, type, grid: true, ticks, tickFormat: tick.format.bind(tick), nice: type === 'linear' };
}

/** Room for names on the left, which are cut where they are too long for it. */
function namesOf(names: readonly string[], width: number): { margin: number; cut: (name: string) => string } {
  const longest = names.reduce((most, name) => Math.max(most, name.length), 0);
  const margin = Math.round(Math.min(longest * CHARACTER + 16, width * 0.42));
  const room = Math.floor((margin - 16) / CHARACTER);
  return { margin, cut: (name) => (name.length <= room + 1 ? name : `${name.slice(0, Math.max(1, room - 1))}…`) };
}

interface RulePlace {
  readonly along: 'x' | 'y';
  /** The largest value of the axis: names of rules near it stand on their other side. */
  readonly most: number;
  /** The panel that has the names, if there are several. */
  readonly panel?: string;
}

function ruleMarks(rules: readonly Rule[] | undefined, { along, most, panel }: RulePlace): Mark[] {
  if (rules === undefined || rules.length === 0) return [];
  const draw = along === 'x' ? Plot.ruleX : Plot.ruleY;
  const place =
    along === 'x' ? { x: 'value', frameAnchor: 'top', dy: -12 } : { y: 'value', frameAnchor: 'left', dy: -7 };
  const names = (some: readonly Rule[], side: 'start' | 'end'): Mark =>
    Plot.text(some, {
      text: 'label',
      textAnchor: side,
      dx: side === 'start' ? 4 : -4,
      fill: 'currentColor',
      fontStyle: 'italic',
      stroke: 'var(--ground)',
      strokeWidth: 3,
      ...place,
      ...(panel === undefined ? {} : { fy: () => panel }),
    });
  const isFar = ({ value }: Rule): boolean => along === 'x' && value > 0.6 * most;
  return [
    draw(rules, { [along]: 'value', stroke: 'currentColor', strokeDasharray: '5 4', strokeOpacity: 0.75 }),
    names(
      rules.filter((rule) => !isFar(rule)),
      'start',
    ),
    names(rules.filter(isFar), 'end'),
  ];
}

/** Room above, for the names of rules. */
function topOf(rules: readonly Rule[] | undefined): number {
  return rules === undefined || rules.length === 0 ? 8 : 26;
}

function shared(width: number, label: string): Options {
  return { width, marginBottom: 42, ariaLabel: label, style: { background: 'transparent', overflow: 'visible' } };
}

// Each kind of chart.

/** Bars from zero, which a logarithm does not have. */
function bars(chart: ChartOf<'bars'>, width: number): Options {
  const series = [...new Set(chart.bars.map((bar) => bar.series))];
  const names = [...new Set(chart.bars.map((bar) => bar.name))];
  const { margin, cut } = namesOf(names, width);
  const most = chart.bars.reduce((largest, bar) => Math.max(largest, bar.value), 0);
  const one = (bar: ChartOf<'bars'>['bars'][number]): string =>
    `${bar.name}${series.length > 1 ? `, ${bar.series}` : ''}: ${show(bar.value)}, ${chart.value.label}`;
  return {
    height: names.length * (series.length * 16 + 10) + 64,
    marginLeft: margin,
    marginTop: topOf(chart.rules),
    x: { ...scaleOf(chart.value, width - margin), ...(chart.value.scale === 'log' ? {} : { zero: true }) },
    y: { axis: null, domain: series },
    fy: { axis: 'left', label: null, domain: names, tickFormat: cut, padding: 0.18 },
    color: { domain: series, range: colours, legend: series.length > 1 },
    marks: [
      Plot.barX(chart.bars, { fy: 'name', y: 'series', x: 'value', fill: 'series', ...saying(one) }),
      ...ruleMarks(chart.rules, { along: 'x', most, panel: names[0]! }),
    ],
  };
}

function numbered(chart: ChartOf<'numbered'>, width: number): Options {
  const data = chart.series.flatMap(({ name, values }) =>
    values.map((value, number) => ({ name, number, from: number - 0.5, to: number + 0.5, value })),
  );
  const several = chart.series.length > 1;
  const one = (bar: (typeof data)[number]): string =>
    `${chart.number.label} ${bar.number}${several ? `, ${bar.name}` : ''}: ${show(bar.value)}, ${chart.value.label}`;
  const most = chart.series.reduce((longest, { values }) => Math.max(longest, values.length), 0);
  const count = Math.min(most, Math.max(4, Math.round(width / 70)));
  const step = Math.max(1, Math.ceil(most / count));
  return {
    height: 70 + chart.series.length * 150,
    marginLeft: 52,
    marginTop: 26,
    x: {
      label: chart.number.label,
      ticks: Array.from({ length: Math.ceil(most / step) }, (_, index) => index * step),
      tickFormat: String,
    },
    y: { ...scaleOf(chart.value, 440), zero: true },
    ...(several ? { fy: { axis: null, domain: chart.series.map(({ name }) => name) } } : {}),
    color: { domain: chart.series.map(({ name }) => name), range: colours },
    marginRight: 12,
    marks: [
      Plot.rect(data, {
        x1: 'from',
        x2: 'to',
        y1: 0,
        y2: 'value',
        fill: 'name',
        inset: width / most > 8 ? 1 : 0,
        ...(several ? { fy: 'name' } : {}),
        ...saying(one),
      }),
      ...(several
        ? [
            Plot.text(chart.series, {
              fy: 'name',
              text: 'name',
              frameAnchor: 'top-right',
              dy: -12,
              fill: 'currentColor',
              fontWeight: 600,
            }),
          ]
        : []),
      Plot.ruleY([0]),
      ...ruleMarks(chart.rules, { along: 'y', most }),
    ],
  };
}

function lines(chart: ChartOf<'lines'>, width: number): Options {
  const data = chart.lines.flatMap(({ name, points }) => points.map(([x, y]) => ({ name, x, y })));
  const names = chart.lines.map(({ name }) => name);
  const isMarked = data.length <= 120;
  const isNamed = names.length <= MAX_LEGEND;
  const one = (point: (typeof data)[number]): string =>
    `${names.length > 1 ? `${point.name}: ` : ''}${show(point.y ?? Number.NaN)}, ${chart.y.label}, at ${show(point.x)}, ${chart.x.label}`;
  const channels = { x: 'x', y: 'y', stroke: 'name' };
  return {
    height: 330,
    marginLeft: 56,
    marginTop: 28,
    x: scaleOf(chart.x, width),
    y: { ...scaleOf(chart.y, 500), ...(chart.y.scale === 'log' ? {} : { zero: true }) },
    color: { domain: names, range: colours, legend: isNamed && names.length > 1 },
    symbol: { domain: names },
    marks: [
      Plot.line(data, { ...channels, strokeWidth: isMarked ? 2 : 1.25, strokeOpacity: isNamed ? 0.9 : 0.6 }),
      Plot.dot(data, {
        ...channels,
        ...(isMarked && isNamed ? { symbol: 'name', r: 3.5 } : { r: isMarked ? 2 : 0.7 }),
        filter: (point: (typeof data)[number]) => point.y !== null,
        ...saying(one),
      }),
      ...ruleMarks(chart.rules, { along: 'y', most: 0 }),
    ],
  };
}

function ranges(chart: ChartOf<'ranges'>, width: number): Options {
  const { margin, cut } = namesOf(
    chart.ranges.map(({ name }) => name),
    width,
  );
  const most = chart.ranges.reduce((largest, { high }) => Math.max(largest, high), 0);
  const one = ({ name, low, middle, high }: ChartOf<'ranges'>['ranges'][number]): string =>
    `${name}: ${show(middle)}, from ${show(low)} to ${show(high)}, ${chart.value.label}`;
  return {
    height: chart.ranges.length * ROW + 70,
    marginLeft: margin,
    marginTop: topOf(chart.rules),
    marginRight: 16,
    x: { ...scaleOf(chart.value, width - margin), inset: 8 },
    y: { label: null, domain: chart.ranges.map(({ name }) => name), tickFormat: cut, tickSize: 0, grid: true },
    marks: [
      Plot.link(chart.ranges, {
        x1: 'low',
        x2: 'high',
        y1: 'name',
        y2: 'name',
        stroke: 'var(--c1)',
        strokeWidth: 6,
        strokeOpacity: 0.4,
      }),
      Plot.dot(chart.ranges, { x: 'middle', y: 'name', fill: 'var(--c1)', r: 5, ...saying(one) }),
      ...ruleMarks(chart.rules, { along: 'x', most }),
    ],
  };
}

function matrix(chart: ChartOf<'matrix'>, width: number): Options {
  const { names } = chart;
  const data = chart.cells.flatMap((row, at) =>
    row.map((value, column) => ({ row: names[at]!, column: names[column]!, value })),
  );
  const { margin: room, cut } = namesOf(names, width);
  const margin = room + 8;
  const one = ({ row, column, value }: (typeof data)[number]): string =>
    `${chart.row} ${row}, ${chart.column} ${column}: ${show(value)}, ${chart.value}`;
  const cell = Math.min(64, (width - margin - 20) / Math.max(1, names.length));
  const isRoomy = cell >= 38;
  const step = Math.max(1, Math.ceil(18 / cell));
  const some = names.filter((_, index) => index % step === 0);
  return {
    width: Math.min(width, margin + 20 + names.length * cell),
    height: names.length * cell + 90,
    marginLeft: margin,
    marginTop: 30,
    marginBottom: isRoomy ? 40 : 60,
    x: {
      label: `${chart.column} →`,
      labelAnchor: 'right',
      domain: names,
      ticks: some,
      tickFormat: cut,
      tickRotate: isRoomy ? 0 : -45,
      tickSize: 0,
    },
    y: { label: `↓ ${chart.row}`, labelAnchor: 'top', domain: names, ticks: some, tickFormat: cut, tickSize: 0 },
    opacity: { domain: [0, Math.max(...data.map(({ value }) => value), 1e-9)], range: [0.05, 0.75] },
    marks: [
      Plot.cell(data, { x: 'column', y: 'row', fill: 'var(--c2)', fillOpacity: 'value', inset: 0.5, ...saying(one) }),
      ...(isRoomy
        ? [
            Plot.text(data, {
              x: 'column',
              y: 'row',
              text: ({ value }: (typeof data)[number]) => tick.format(value),
              fill: 'currentColor',
            }),
          ]
        : []),
    ],
  };
}

function timeline(chart: ChartOf<'timeline'>, width: number): Options {
  const first: number[] = [];
  let lanes = 0;
  for (const track of chart.tracks) {
    first.push(lanes);
    lanes += track.lanes + 0.5;
  }
  const { margin, cut } = namesOf(
    chart.tracks.map(({ name }) => name),
    width,
  );
  const data = chart.spans.map(([track, lane, phase, begin, length]) => ({
    track: chart.tracks[track]!.name,
    phase: chart.phases[phase]!,
    begin,
    end: begin + length,
    length,
    top: first[track]! + lane,
    bottom: first[track]! + lane + 0.9,
  }));
  const one = (span: (typeof data)[number]): string =>
    `${span.phase}, ${span.track}: ${show(span.length)} from ${show(span.begin)} on, ${chart.time.label}`;
  const middles = chart.tracks.map(({ lanes: own }, index) => first[index]! + own / 2);
  const several = chart.phases.length > 1;
  return {
    height: Math.max(140, lanes * 15 + 60),
    marginLeft: margin,
    marginTop: 10,
    x: { ...scaleOf(chart.time, width - margin), nice: false },
    y: { reverse: true, domain: [0, lanes], label: null, axis: null },
    color: { domain: chart.phases, range: colours, legend: several },
    marks: [
      Plot.axisY(middles, {
        tickSize: 0,
        tickFormat: (middle: number) => cut(chart.tracks[middles.indexOf(middle)]?.name ?? ''),
      }),
      Plot.ruleY(
        first.slice(1).map((at) => at - 0.25),
        { strokeOpacity: 0.2 },
      ),
      Plot.rect(data, {
        x1: 'begin',
        x2: 'end',
        y1: 'top',
        y2: 'bottom',
        fill: 'phase',
        stroke: 'phase',
        strokeWidth: 0.6,
        ...saying(one),
      }),
    ],
  };
}

function optionsOf(chart: Chart, width: number): Options {
  switch (chart.kind) {
    case 'bars':
      return bars(chart, width);
    case 'numbered':
      return numbered(chart, width);
    case 'lines':
      return lines(chart, width);
    case 'ranges':
      return ranges(chart, width);
    case 'matrix':
      return matrix(chart, width);
    case 'timeline':
    default:
      return timeline(chart, width);
  }
}

// Draws the charts of the page.

/** The marks that have a value to tell. */
function valuesOf(place: Element): Element[] {
  return [...place.querySelectorAll('svg :is(rect, path, circle)[aria-label]')];
}

function drawInto(place: Element, chart: Chart): void {
  const width = Math.max(280, place.clientWidth || 900);
  const label = place.getAttribute('aria-label') ?? '';
  const drawn = Plot.plot({ ...shared(width, label), ...optionsOf(chart, width) });
  place.replaceChildren(drawn);
  for (const svg of place.querySelectorAll('svg')) svg.setAttribute('role', 'img');
}

/** The arrow keys go through the values, which are told beside the chart. */
function listenToKeys(place: Element): void {
  let at = -1;
  const choose = (next: number): void => {
    const values = valuesOf(place);
    for (const value of values) value.classList.remove('current');
    at = values.length === 0 ? -1 : Math.min(Math.max(next, -1), values.length - 1);
    const chosen = values[at];
    chosen?.classList.add('current');
    const told = place.nextElementSibling;
    if (told !== null) told.textContent = chosen?.getAttribute('aria-label') ?? '';
  };
  const steps: Readonly<Record<string, () => number>> = {
    ArrowRight: () => at + 1,
    ArrowDown: () => at + 1,
    ArrowLeft: () => Math.max(0, at - 1),
    ArrowUp: () => Math.max(0, at - 1),
    Home: () => 0,
    End: () => Number.MAX_SAFE_INTEGER,
    Escape: () => -1,
  };
  place.addEventListener('keydown', (event) => {
    const step = steps[event.key ?? ''];
    if (step === undefined) return;
    event.preventDefault();
    choose(step());
  });
}

function showChart(place: Element, chart: Chart): void {
  let width = 0;
  const draw = (): void => {
    if (place.clientWidth === width && width > 0) return;
    width = place.clientWidth;
    drawInto(place, chart);
  };
  draw();
  listenToKeys(place);
  if (ResizeObserver !== undefined) new ResizeObserver(draw).observe(place);
}

const charts = JSON.parse(document.getElementById('charts').textContent ?? '[]') as readonly Chart[];
const places = [...document.querySelectorAll('[data-chart]')];
for (const place of places) {
  if (charts[Number(place.dataset['chart'])]?.kind === 'timeline') place.classList.add('wide');
}
// One after the other, so that text and tables are seen, and answer, meanwhile.
for (const place of places) {
  const chart = charts[Number(place.dataset['chart'])];
  await new Promise((resolve) => setTimeout(resolve));
  if (chart !== undefined) showChart(place, chart);
}
document.body.setAttribute('data-drawn', String(places.length));
