// A report page as one HTML file that needs no network: text, tables, styles, data, the chart library and what drives it.
import { readFileSync } from 'node:fs';
import { brotliDecompressSync } from 'node:zlib';
import { WeftlineError } from '../../../core/errors.ts';
import type { ReportPage, ReportSection, ReportTable } from './report-page.ts';
import { figure } from './report-page.ts';
import { reportStyle } from './report-style.ts';

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
