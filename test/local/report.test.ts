// --report and weftline compare on the command line.
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import test, { type TestContext } from 'node:test';
import { fileURLToPath } from 'node:url';

const main = fileURLToPath(new URL('../../../dist/programs/cli/main.js', import.meta.url));

interface Ended {
  readonly status: number | null;
  readonly stdout: string;
  readonly stderr: string;
}

function inFolder(t: TestContext): { readonly folder: string; readonly weftline: (...words: string[]) => Ended } {
  const folder = mkdtempSync(join(tmpdir(), 'weftline-report-'));
  t.after(() => rmSync(folder, { recursive: true }));
  const run = (...words: string[]): Ended =>
    spawnSync(process.execPath, [main, ...words], { encoding: 'utf8', timeout: 600_000, cwd: folder });
  return { folder, weftline: run };
}

test('a page beside the document, and two documents compared', (t) => {
  const { folder, weftline } = inFolder(t);
  const sim = ['sim', 'pair', '--nmsg', '2', '--msize', '10K'];
  for (const seed of ['1', '2']) {
    const { status, stderr } = weftline(...sim, '--seed', seed, '--json', `${seed}.json`, '--report', `${seed}.html`);
    assert.equal(status, 0, stderr);
  }
  const page = readFileSync(join(folder, '1.html'), 'utf8');
  assert.match(page, /^<!doctype html>[^]*<h1>pair, simulated<\/h1>[^]*Against theory[^]*<\/html>\n$/);
  const same = weftline('compare', '1.json', '1.json', '--fail-below', '1', '--report', 'compare.html');
  assert.equal(same.status, 0, same.stderr);
  assert.match(same.stdout, /goodputGbps +│ Gbps .* 1\.000 /);
  assert.match(readFileSync(join(folder, 'compare.html'), 'utf8'), /<h1>Two results compared<\/h1>/);

  const strict = weftline('compare', '1.json', '2.json', '--fail-below', '1000');
  assert.equal(strict.status, 1);
  assert.match(strict.stderr, /^weftline: WL_CHECK: \d+ of \d+ figures are below 1000 of the first; the worst, "/);
  assert.equal(weftline('compare', '1.json', '2.json').status, 0, 'without the flag nothing fails');
});

test('what is no result, and what cannot be written, is said in one line', (t) => {
  const { folder, weftline } = inFolder(t);
  writeFileSync(join(folder, 'list.json'), '[1]');
  writeFileSync(join(folder, 'empty.json'), '{}');
  for (const [words, why] of [
    [['compare', 'list.json', 'empty.json'], /WL_FILE_FORMAT: list\.json is no result document/],
    [['compare', 'empty.json', 'empty.json'], /WL_FILE_FORMAT: Cannot compare: they have no time and no rate/],
    [['compare', 'missing.json', 'empty.json'], /WL_FILE: Cannot read missing\.json/],
    [['sim', 'pair', '--nmsg', '1', '--report', 'no/such/folder.html'], /WL_FILE: Cannot write no\/such\/folder\.html/],
  ] as const) {
    const { status, stderr } = weftline(...words);
    assert.equal(status, 1);
    assert.match(stderr, why);
    assert.equal(stderr.trimEnd().split('\n').length, 1, stderr);
  }
});
