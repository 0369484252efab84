// EpBuffer and EPAll2AllLayer on two hosts whose network loses, doubles, delays and changes packets: the same bytes as the
// references all the same. WEFTLINE_TEST_MIDDLEBOX: how many times as much as in the gate.
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import test from 'node:test';
import { fileURLToPath } from 'node:url';
import { skipWithout } from '../local/support/requirements.ts';
import { testSeed } from '../support/seed.ts';
import type { ImpairmentCounts } from './middlebox/impairment.ts';
import type { EpTraffic } from './middlebox/run-ep.ts';
import { whyNoTwoHosts } from './middlebox/two-hosts.ts';
import { settingsTable } from '#lib/settings/settings.js';

const seed = testSeed();
const times = Number(process.env['WEFTLINE_TEST_MIDDLEBOX'] ?? 1);
const script = fileURLToPath(new URL('./middlebox/run-ep.js', import.meta.url));
const skip = skipWithout('tun', whyNoTwoHosts());
const impairment = { loss: 0.01, duplication: 0.02, reordering: 0.05, corruption: 0.01 } as const;

for (const [what, title, runs] of [
  ['buffer', 'buffer: random cases agree with the reference', 2],
  ['layer', 'layer: random cases agree with the reference', 2],
  ['repeats', 'the same calls of both give the same bytes again and again', 5],
] as const) {
  test(`${title} through a bad network`, { skip }, () => {
    const traffic: EpTraffic = { what, runs: runs * times, seed, impairment };
    const { status, stdout, stderr } = spawnSync('unshare', ['-n', process.execPath, script, JSON.stringify(traffic)], {
      encoding: 'utf8',
      timeout: 600_000 * times,
      env: {
        ...process.env,
        NODE_TEST_CONTEXT: undefined,
        WEFTLINE_TEST_GROUP: 'all',
        WEFTLINE_TOKEN: 'a token of both hosts',
        [settingsTable.timeoutMs.env]: '200000',
      },
    });
    assert.equal(status, 0, `seed ${seed}\n${stdout}${stderr}`);
    const { lost, doubled, late, changed } = JSON.parse(stdout.trim().split('\n').at(-1)!) as ImpairmentCounts;
    // The network really did what it was to do.
    assert.ok(lost > 0 && doubled > 0 && late > 0 && changed > 0, stdout);
  });
}
