// --report and weftline compare on the command line.
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
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
  writeFileSync(join(folder, 'words.json'), 'no JSON\nof two lines');
  writeFileSync(join(folder, 'deep.json'), `{"a":${'['.repeat(50_000)}1${']'.repeat(50_000)}}`);
  writeFileSync(join(folder, 'job.json.node0.7.part'), 'no part');
  mkdirSync(join(folder, 'folder'));
  const otherData = { weftline: 'trace' };
  for (const [name, event] of Object.entries({
    times: { ph: 'X', name: 'call', pid: 1, tid: 1, ts: 'soon', dur: 1 },
    words: { ph: 'X', name: 'call', pid: 1, tid: 1, ts: 1, dur: 1, args: null },
  })) {
    const trace = {
      otherData,
      traceEvents: [{ ph: 'M', name: 'process_name', pid: 1, args: { name: 'rank 0' } }, event],
    };
    writeFileSync(join(folder, `trace-${name}.json`), JSON.stringify(trace));
  }
  for (const [words, why] of [
    [['compare', 'list.json', 'empty.json'], /WL_FILE_FORMAT: list\.json is no result document/],
    [['compare', 'empty.json', 'empty.json'], /WL_FILE_FORMAT: Cannot compare: they have no time and no rate/],
    [['compare', 'missing.json', 'empty.json'], /WL_FILE: Cannot read missing\.json/],
    [['compare', 'deep.json', 'deep.json'], /WL_FILE_FORMAT: deep\.json is no result document/],
    [['trace', 'words.json'], /WL_FILE_FORMAT: words\.json is no trace of weftline: /],
    [['trace', 'folder'], /WL_FILE: Cannot read folder: it is a folder; name the trace in it/],
    [
      ['trace', 'trace-times.json'],
      /trace-times\.json is no trace of weftline: "ts" of event 1 is not what weftline writes/,
    ],
    [['trace', 'trace-words.json'], /"args" of event 1 is not what weftline writes/],
    [
      ['trace', 'job.json'],
      /WL_FILE: There is no job\.json, and no part beside it is of use: job\.json\.node0\.7\.part /,
    ],
    [['run', '-n', '1', '.'], /WL_LAUNCH: Cannot start "\.": no folder of PATH has a program of this name/],
    [['sim', 'pair', '--nmsg', '1', '--report', 'no/such/folder.html'], /WL_FILE: Cannot write no\/such\/folder\.html/],
  ] as const) {
    const { status, stderr } = weftline(...words);
    assert.equal(status, 1);
    assert.match(stderr, why);
    assert.equal(stderr.trimEnd().split('\n').length, 1, stderr);
  }
});
