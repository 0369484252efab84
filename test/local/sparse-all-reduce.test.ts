// Sparse all-reduces against the reference, byte by byte, on real ranks; what ranks hear when they disagree, or when one dies.
// WEFTLINE_TEST_COLLECTIVES above 1: as many times the cases, longer tensors, and more repeats.
import assert from 'node:assert/strict';
import { readdirSync } from 'node:fs';
import test from 'node:test';
import { testSeed } from '../support/seed.ts';
import { runRanks } from './support/run-ranks.ts';

const factor = Number(process.env['WEFTLINE_TEST_COLLECTIVES'] ?? 1);
const scripts = {
  property: new URL('./ranks/sparse-property.js', import.meta.url),
};

function filesOf(transcript: string): string[] {
  const jobId = /job ([\w-]+)/.exec(transcript)?.[1] ?? 'no job';
  return readdirSync('/dev/shm').filter((name) => name.includes(jobId));
}

for (const [hosts, cases] of [
  ['1', 10],
  ['2', 4],
  ['6', 3],
] as const) {
  test(`random calls of 1 to 4 workers agree with the reference; hosts ${hosts}`, async () => {
    const seed = String(testSeed());
    const args = [String(cases * factor), seed, factor > 1 ? '1000000' : '100000'];
    const env = { WEFTLINE_HOSTS: hosts };
    const { exitCode, transcript } = await runRanks(6, scripts.property, { args, env, timeoutMs: 120_000 * factor });
    assert.equal(exitCode, 0, `seed ${seed}\n${transcript}`);
    assert.deepEqual(filesOf(transcript), []);
  });
}
