// Reports in a browser: drawn without a word on the console, at 400 and 1600 px, light and dark, by keyboard.
import assert from 'node:assert/strict';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import test from 'node:test';
import { pathToFileURL } from 'node:url';
import { pageHtml } from '#lib/programs/report/html/page-html.js';
import { Chromium, type Page, whyNoChromium } from '../support/chromium.ts';
import { samplePages } from '../support/report-pages.ts';
import { skipWithout } from './support/requirements.ts';

const skip = skipWithout('chromium', whyNoChromium());
const views = [
  { width: 1600, scheme: 'light' },
  { width: 400, scheme: 'dark' },
] as const;

/** What a page says of itself; run in it. */
const inspect = `(() => {
  const charts = [...document.querySelectorAll('.chart')];
  return {
    overflow: document.documentElement.scrollWidth - innerWidth,
    background: getComputedStyle(document.body).backgroundColor,
    undrawn: charts.filter((chart) => chart.querySelector('svg :is(rect, path, circle)[aria-label]') === null).map((chart) => chart.ariaLabel),
    tooWide: charts.filter((chart) => [...chart.querySelectorAll('svg')].some((svg) => svg.getBoundingClientRect().right > innerWidth)).length,
    tips: [...document.querySelectorAll('.chart svg')].filter((svg) => getComputedStyle(svg).getPropertyValue('--plot-background') !== getComputedStyle(document.documentElement).getPropertyValue('--ground')).length,
    sideBySide: (() => {
      const pair = document.querySelector('.pair:has(.figure)');
      const [chart, table] = pair.children;
      return chart.getBoundingClientRect().right <= table.getBoundingClientRect().left;
    })(),
  };
})()`;

interface Inspected {
  readonly overflow: number;
  readonly background: string;
  readonly undrawn: readonly string[];
  readonly tooWide: number;
  /** Tips on the wrong ground. */
  readonly tips: number;
  readonly sideBySide: boolean;
}

test('every report is drawn in both widths and colour schemes, and asks for nothing', { skip }, async (t) => {
  const folder = mkdtempSync(join(tmpdir(), 'weftline-report-'));
  t.after(() => rmSync(folder, { recursive: true }));
  await using browser = Chromium.start();
  const page = await browser.page();
  const files = Object.entries(samplePages()).map(([name, content]) => {
    const file = join(folder, `${name}.html`);
    writeFileSync(file, pageHtml(content));
    return { name, url: pathToFileURL(file).href };
  });
  const backgrounds = new Set<string>();
  for (const { name, url } of files) {
    await page.open(url, views[0]);
    for (const view of views) {
      await page.view(view);
      await page.settle();
      const found = await page.evaluate<Inspected>(inspect);
      const where = `${name} at ${view.width} px`;
      assert.deepEqual(found.undrawn, [], where);
      assert.equal(found.overflow, 0, where);
      assert.equal(found.tooWide, 0, where);
      assert.equal(found.tips, 0, where);
      if (name !== 'trace') assert.equal(found.sideBySide, view.width === 1600, where);
      backgrounds.add(found.background);
    }
  }
  assert.equal(backgrounds.size, views.length, [...backgrounds].join());
  assert.deepEqual(page.problems, []);
  assert.deepEqual(
    page.requests.filter((url) => !url.startsWith('data:')),
    files.map(({ url }) => url),
  );
  await byKeyboard(page, files.find(({ name }) => name === 'moe')!.url);
});

/** Tab comes to a chart, and the arrow keys tell its values one by one. */
async function byKeyboard(page: Page, url: string): Promise<void> {
  await page.open(url, views[0]);
  const focused = (): Promise<string> => page.evaluate('document.activeElement.className');
  for (let presses = 0; presses < 20 && (await focused()) !== 'chart'; presses += 1) await page.press('Tab');
  assert.equal(await focused(), 'chart');
  const told = (): Promise<string> => page.evaluate("document.querySelector('[role=status]').textContent");
  const values: string[] = [];
  for (const key of ['ArrowRight', 'ArrowRight', 'ArrowLeft', 'Escape']) {
    await page.press(key);
    values.push(await told());
  }
  assert.match(values[0]!, /^dispatch, without copies: 1, ms$/);
  assert.notEqual(values[1], values[0]);
  assert.deepEqual(values.slice(2), [values[0], '']);
}
