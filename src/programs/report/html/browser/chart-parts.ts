// What all charts of a report share in the browser: scales, names, rules, and what is used of the browser and of Plot.
import type { Rule } from '../chart.ts';

export type Options = Readonly<Record<string, unknown>>;
export type Mark = unknown;
type Draw = (data: readonly unknown[], options?: Options) => Mark;

/** What is used of the browser: its own types would come over all of weftline. */
export interface Element {
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

export const { document, Plot, ResizeObserver } = globalThis as unknown as Page;
export const colours = Array.from({ length: 8 }, (_, index) => `var(--c${index + 1})`);
const CHARACTER = 6.6;
export const ROW = 22;
/** More lines than this are told apart by nobody. */
export const MAX_LEGEND = 16;

const short = new Intl.NumberFormat('en', { maximumSignificantDigits: 4 });
export const tick = new Intl.NumberFormat('en', { notation: 'compact', maximumSignificantDigits: 3 });

export function show(value: number): string {
  return Math.abs(value) >= 1000 ? Math.round(value).toLocaleString('en') : short.format(value);
}

export function scaleOf(axis: { readonly label: string; readonly scale?: 'linear' | 'log' }, width: number): Options {
  const type = axis.scale ?? 'linear';
  const ticks = Math.max(3, Math.round(width / 110));
  return { label: axis.label, type, grid: true, ticks, tickFormat: tick.format.bind(tick), nice: type === 'linear' };
}

/** Room for names on the left, which are cut where they are too long for it. */
export function namesOf(names: readonly string[], width: number): { margin: number; cut: (name: string) => string } {
  const longest = names.reduce((most, name) => Math.max(most, name.length), 0);
  const margin = Math.round(Math.min(longest * CHARACTER + 16, width * 0.42));
  const room = Math.floor((margin - 16) / CHARACTER);
  return { margin, cut: (name) => (name.length <= room + 1 ? name : `${name.slice(0, Math.max(1, room - 1))}…`) };
}

interface RulePlace {
  readonly along: 'x' | 'y';
  /** The largest value of the axis: names of rules near it stand on their other side. */
  readonly most: number;
  /** Of several panels the one that has the names. */
  readonly panel?: string;
}

export function ruleMarks(rules: readonly Rule[] | undefined, { along, most, panel }: RulePlace): Mark[] {
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
export function topOf(rules: readonly Rule[] | undefined): number {
  return rules === undefined || rules.length === 0 ? 8 : 26;
}

export function shared(width: number, label: string): Options {
  return { width, marginBottom: 42, ariaLabel: label, style: { background: 'transparent', overflow: 'visible' } };
}
