// Report pages as documents: what a browser without scripts shows, and what the scripts draw.
import assert from 'node:assert/strict';
import test from 'node:test';
import { createContext, runInContext } from 'node:vm';

import type { Chart } from '#lib/programs/report/html/chart.js';
import { pageHtml } from '#lib/programs/report/html/page-html.js';
import { parseHTML } from '../../../support/parse-html.ts';
import { samplePages } from '../../../support/report-pages.ts';

const MAX_BYTES = 1_500_000;
const pages = samplePages();

test('a page is one file that names everything: headings, charts, tables, and nothing from elsewhere', () => {
  for (const [name, page] of Object.entries(pages)) {
    const html = pageHtml(page);
    assert.ok(html.length < MAX_BYTES, `${name}: ${html.length} bytes`);
    const { document } = parseHTML(html);
    const texts = (selector: string): (string | null)[] =>
      [...document.querySelectorAll(selector)].map((element) => element.textContent);
    assert.equal(document.documentElement.getAttribute('lang'), 'en');
    assert.deepEqual(texts('h1'), [page.title]);
    assert.deepEqual(
      texts('h2'),
      page.sections.map(({ title }) => title),
    );
    for (const element of document.querySelectorAll('[src], link[href]'))
      assert.equal(element.getAttribute('href'), 'data:,', name);
    const charts = [...document.querySelectorAll('.chart')];
    assert.equal(charts.length, page.sections.filter(({ chart }) => chart !== undefined).length);
    for (const chart of charts) {
      assert.equal(chart.getAttribute('tabindex'), '0');
      assert.ok((chart.getAttribute('aria-label') ?? '') !== '');
    }
    const tables = [...document.querySelectorAll('table')];
    assert.equal(tables.length, page.sections.length);
    for (const [index, { table }] of page.sections.entries()) {
      assert.equal(tables[index]!.querySelectorAll('tbody tr').length, table.rows.length, `${name}: ${index}`);
      for (const row of table.rows) assert.equal(row.length, table.head.length, `${name}: ${row.join()}`);
    }
    const data = JSON.parse(texts('#charts')[0]!) as Chart[];
    assert.equal(data.length, charts.length);
  }
});

test('no text of a result becomes a part of the page', () => {
  const html = pageHtml(pages['trace']!);
  assert.ok(!html.includes('<b>t</b>'));
  assert.ok(html.includes('&lt;/script&gt;&lt;b&gt;t&lt;/b&gt;.json'));
  const name = '</script><script>alert(1)</script>';
  const table = { head: [name], rows: [[name]] };
  const bars = [{ name, series: name, value: 1 }];
  const hostile = pageHtml({
    title: name,
    about: [name],
    sections: [{ title: name, note: name, chart: { kind: 'bars', value: { label: name }, bars }, table }],
  });
  assert.equal(hostile.split('<script').length, html.split('<script').length);
  assert.ok(!hostile.includes('<script>alert'));
});

test('the scripts of a page draw every kind of chart, with a name for each value', async () => {
  const kinds = new Set<string>();
  for (const [name, page] of Object.entries(pages)) {
    const { document, window } = parseHTML(pageHtml(page));
    const context = createContext({ window, document, setTimeout, console });
    const [library, modules] = [...document.querySelectorAll('script:not([type="application/json"])')];
    runInContext(library!.textContent ?? '', context);
    await runInContext(`(async () => {${modules!.textContent ?? ''}})()`, context);
    const charts = page.sections.flatMap(({ chart }) => (chart === undefined ? [] : [chart]));
    for (const [index, place] of [...document.querySelectorAll('.chart')].entries()) {
      const { kind } = charts[index]!;
      kinds.add(kind);
      assert.equal(place.querySelectorAll('svg[role="img"]').length > 0, true, `${name}: ${kind}`);
      const values = [...place.querySelectorAll('svg :is(rect, path, circle)[aria-label]')];
      assert.ok(values.length > 0, `${name}: ${kind} has no values`);
      for (const value of values) assert.doesNotMatch(value.getAttribute('aria-label') ?? '', /NaN|undefined|null/);
    }
  }
  assert.deepEqual([...kinds].toSorted(), ['bars', 'lines', 'matrix', 'numbered', 'ranges', 'timeline']);
});

test('a wait matrix names the rank for which the others wait', () => {
  const { chart } = pages['trace']!.sections.find(({ title }) => title === 'Who waited for whom')!;
  assert.ok(chart?.kind === 'matrix');
  assert.deepEqual(chart.names, ['rank 0', 'rank 1', 'rank 2', 'rank 3']);
  for (const row of [0, 1, 3]) {
    assert.ok(chart.cells[row]![2]! > 5, String(chart.cells[row]));
    assert.equal(chart.cells[row]![0], 0);
  }
  assert.deepEqual(chart.cells[2], [0, 0, 0, 0]);
});
