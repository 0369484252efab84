// Runs in the browser that shows a report, where Plot and d3 stand before it: draws the charts as wide as there is room.
// The build makes one text of it and of what it imports, page-script.mjs, which each page holds (page-html.ts).
import type { Chart } from '../chart.ts';
import { optionsOf } from './chart-options.ts';
import { document, type Element, Plot, ResizeObserver, shared } from './chart-parts.ts';

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
