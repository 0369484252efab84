// A report page as one HTML file that needs no network: text, tables, styles, data, the chart library and what drives it.
import { readFileSync } from 'node:fs';
import { brotliDecompressSync } from 'node:zlib';
import { WeftlineError } from '../../../core/errors.ts';
import type { Chart } from './chart.ts';

export interface ReportPage {
  readonly title: string;
  /** Workload, machine and the like, a line each. */
  readonly about: readonly string[];
  readonly sections: readonly ReportSection[];
}

export interface ReportSection {
  readonly title: string;
  /** What is shown, and how to read it. */
  readonly note?: string;
  readonly chart?: Chart;
  readonly table: ReportTable;
}

export interface ReportTable {
  readonly head: readonly string[];
  /** Numbers are aligned to the right. */
  readonly rows: readonly (readonly (string | number)[])[];
}

/** Shows at most four significant digits, or all of those before the point: "0.001235", "12,346". */
function figure(value: number): string {
  if (!Number.isFinite(value)) return '–';
  const digits = Math.abs(value) >= 1000 ? { maximumFractionDigits: 0 } : { maximumSignificantDigits: 4 };
  return value.toLocaleString('en', digits);
}

// The page as HTML.

/** Rows of a table that are shown without scrolling. */
const LONG_TABLE = 14;
/** Nothing is loaded, whatever names in the data may look like. */
const POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:";

export function pageHtml({ title, about, sections }: ReportPage): string {
  const charts = sections.flatMap(({ chart }) => (chart === undefined ? [] : [chart]));
  let chartsBefore = 0;
  const bodies = sections.map((section, index) => {
    const at = section.chart === undefined ? undefined : chartsBefore++;
    return sectionHtml(section, index, at);
  });
  return [
    '<!doctype html>',
    '<html lang="en">',
    '<head>',
    '<meta charset="utf-8">',
    `<meta http-equiv="Content-Security-Policy" content="${POLICY}">`,
    '<meta name="viewport" content="width=device-width, initial-scale=1">',
    '<meta name="color-scheme" content="light dark">',
    `<title>${escapeHtml(title)}</title>`,
    '<link rel="icon" href="data:,">',
    `<style>${reportStyle}</style>`,
    '</head>',
    '<body>',
    '<a class="skip" href="#sections">Skip to the results</a>',
    '<header>',
    `<h1>${escapeHtml(title)}</h1>`,
    ...about.map((line) => `<p>${escapeHtml(line)}</p>`),
    '</header>',
    '<nav aria-label="Sections"><ul>',
    ...sections.map((section, index) => `<li><a href="#section-${index}">${escapeHtml(section.title)}</a></li>`),
    '</ul></nav>',
    '<main id="sections">',
    ...bodies,
    '</main>',
    '<footer><p>Made by weftline. Charts: a click or Tab selects one, the arrow keys go through its values, Escape leaves them.</p></footer>',
    `<script type="application/json" id="charts">${asJson(charts)}</script>`,
    ...(charts.length === 0
      ? []
      : [
          `<script>\n${brotliDecompressSync(asset('browser/chart-library.js.br')).toString()}</script>`,
          `<script type="module">\n${asset('browser/page-script.mjs').toString()}</script>`,
        ]),
    '</body>',
    '</html>',
    '',
  ].join('\n');
}

function sectionHtml({ title, note, chart, table }: ReportSection, index: number, at: number | undefined): string {
  const heading = `heading-${index}`;
  const parts = [
    `<section id="section-${index}" aria-labelledby="${heading}">`,
    `<h2 id="${heading}">${escapeHtml(title)}</h2>`,
  ];
  if (note !== undefined) parts.push(`<p class="note" id="note-${index}">${escapeHtml(note)}</p>`);
  parts.push('<div class="pair">');
  if (chart !== undefined) {
    const described = note === undefined ? '' : ` aria-describedby="note-${index}"`;
    parts.push(
      '<div class="figure">',
      `<div class="chart" data-chart="${at}" role="group" aria-roledescription="chart" tabindex="0" aria-label="${escapeHtml(title)}"${described}></div>`,
      '<p class="value" role="status"></p>',
      '</div>',
    );
  }
  parts.push(tableHtml(table, title), '</div>', '</section>');
  return parts.join('\n');
}

function tableHtml({ head, rows }: ReportTable, title: string): string {
  const isNumber = head.map(
    (_, column) => rows.length > 0 && rows.every((row) => typeof row[column] !== 'string' || row[column] === ''),
  );
  const align = (column: number): string => (isNumber[column] === true ? ' class="number"' : '');
  const cell = (value: string | number, column: number): string => {
    const text = escapeHtml(typeof value === 'number' ? figure(value) : value);
    return column === 0 ? `<th scope="row"${align(column)}>${text}</th>` : `<td${align(column)}>${text}</td>`;
  };
  return [
    `<div class="table${rows.length > LONG_TABLE ? ' long' : ''}" role="region" tabindex="0" aria-label="${escapeHtml(title)}: table">`,
    '<table>',
    `<thead><tr>${head.map((text, column) => `<th scope="col"${align(column)}>${escapeHtml(text)}</th>`).join('')}</tr></thead>`,
    '<tbody>',
    ...rows.map((row) => `<tr>${row.map(cell).join('')}</tr>`),
    '</tbody>',
    '</table>',
    '</div>',
  ].join('\n');
}

function escapeHtml(text: string): string {
  return text.replaceAll('&', '&amp;').replaceAll('<', '&lt;').replaceAll('>', '&gt;').replaceAll('"', '&quot;');
}

/** Six digits are more than a screen shows. No text in it ends the element that it stands in. */
function asJson(value: unknown): string {
  return JSON.stringify(value, sixDigits).replaceAll('<', '\\u003c');
}

function sixDigits(_key: string, value: unknown): unknown {
  return typeof value === 'number' ? Number(value.toPrecision(6)) : value;
}

/** Files that the build puts beside this one. */
function asset(name: string): Buffer {
  try {
    return readFileSync(new URL(name, import.meta.url));
  } catch (cause) {
    throw new WeftlineError('WL_FILE', `Cannot write a report: ${name} is missing in this installation of weftline`, {
      cause,
    });
  }
}

// How a report looks: light and dark, from 400 px up, on paper.

/** The series colours keep a contrast of 3 to 1 to both backgrounds, and differ for those who see few colours. */
const reportStyle = `
:root {
  --ground: #fff; --text: #1a1d21; --soft: #5b6570; --line: #d5dae0; --panel: #f6f7f9; --focus: #1a56db;
  --c1: #1f6fb4; --c2: #c4531b; --c3: #16806a; --c4: #9a4f96; --c5: #8a6a00; --c6: #b03060; --c7: #5a6b7b; --c8: #3f7d20;
}
@media (prefers-color-scheme: dark) {
  :root {
    --ground: #14171b; --text: #e8eaed; --soft: #a3acb7; --line: #363d46; --panel: #1d2126; --focus: #8ab4f8;
    --c1: #6cb0ee; --c2: #f2945c; --c3: #4fc4a8; --c4: #cf92cb; --c5: #d8b23c; --c6: #f07ca4; --c7: #a3b3c4; --c8: #8ccb69;
  }
}
* { box-sizing: border-box; }
html { color-scheme: light dark; scroll-behavior: smooth; }
body {
  margin: 0 auto; padding: 0 clamp(12px, 3vw, 40px) 40px; max-width: 1700px;
  background: var(--ground); color: var(--text); font: 15px/1.5 system-ui, sans-serif;
}
header { padding: 24px 0 4px; }
h1 { font-size: clamp(20px, 4vw, 28px); line-height: 1.25; margin: 0 0 8px; overflow-wrap: anywhere; }
header p { margin: 0; color: var(--soft); overflow-wrap: anywhere; }
nav ul { display: flex; flex-wrap: wrap; gap: 4px 16px; list-style: none; margin: 16px 0; padding: 0; }
a { color: var(--focus); }
.skip { position: absolute; left: -9999px; }
.skip:focus { left: 12px; top: 8px; background: var(--ground); padding: 4px 8px; z-index: 2; }
section { border-top: 1px solid var(--line); padding: 12px 0 20px; }
h2 { font-size: 19px; margin: 8px 0 4px; }
.note { color: var(--soft); margin: 0 0 12px; max-width: 90ch; }
.pair { display: grid; grid-template-columns: minmax(0, 1fr); gap: 16px; align-items: start; }
@media (min-width: 1100px) {
  .pair:has(.figure) { grid-template-columns: minmax(0, 3fr) minmax(0, 2fr); }
  .pair:has(.chart.wide) { grid-template-columns: minmax(0, 1fr); }
}
.figure { min-width: 0; }
.chart { border-radius: 6px; min-height: 60px; }
.chart figure { margin: 0; }
.chart h3, .chart p { font-size: 13px; margin: 0 0 2px; }
.chart svg { --plot-background: var(--ground); display: block; max-width: 100%; height: auto; font: 12px system-ui, sans-serif; }
.chart [class*="swatches"] { margin-bottom: 4px; font: 12px system-ui, sans-serif; }
.chart .current { stroke: var(--text); stroke-width: 2.5px; stroke-opacity: 1; }
.value { min-height: 1.5em; margin: 2px 0 0; color: var(--soft); font-variant-numeric: tabular-nums; }
:focus-visible { outline: 3px solid var(--focus); outline-offset: 2px; }
.table { overflow: auto; max-width: 100%; border: 1px solid var(--line); border-radius: 6px; }
.table.long { max-height: 430px; }
table { border-collapse: collapse; width: 100%; font-size: 14px; }
th, td { padding: 4px 10px; text-align: left; border-bottom: 1px solid var(--line); white-space: nowrap; font-weight: 400; }
tbody tr:last-child > * { border-bottom: 0; }
thead th { background: var(--panel); color: var(--soft); position: sticky; top: 0; font-weight: 600; }
.number { text-align: right; font-variant-numeric: tabular-nums; }
footer { border-top: 1px solid var(--line); color: var(--soft); font-size: 14px; }
@media print { .skip, nav, .value { display: none; } .table.long { max-height: none; } section { break-inside: avoid; } }
`;
