// Elastic EpLowLatency on GPUs, by the programs that check it on CPUs: ranks that are killed, stop, are masked and come back.
import assert from 'node:assert/strict';
import test from 'node:test';
import { cudaDeviceCount } from 'weftline';
import { resultOf, runRanks } from '../local/support/run-ranks.ts';
import { testSeed } from '../support/seed.ts';
import { cacheFolder, noGpu } from './support/gpu.ts';
import { settingsTable } from '#lib/settings/settings.js';

const killed = new URL('../local/ranks/low-latency-killed.js', import.meta.url);
const founders = new URL('../local/ranks/low-latency-founders.js', import.meta.url);
const faults = new URL('../local/ranks/low-latency-elastic.js', import.meta.url);
const graphs = new URL('./processes/low-latency-elastic-graph.js', import.meta.url);
const peers = new URL('./processes/dead-peer-memory.js', import.meta.url);
const seed = testSeed();
const env = { WEFTLINE_TEST_DEVICE: 'cuda', [settingsTable.cacheFolder.env]: cacheFolder };
const timeoutMs = 60_000;

interface Outcome {
  readonly life: number;
  readonly firstDispatch: number;
  readonly end: number;
  readonly without: number;
  readonly longestMs: number;
  readonly deadlineMs: number;
}

for (const how of ['killed', 'late', 'stopped', 'disconnected'] as const) {
  test(`a rank that is ${how} in mid-call: the others complete, and it joins again`, { skip: noGpu }, async () => {
    const run = await runRanks(3, killed, { args: [how], maxRestarts: 1, env, timeoutMs });
    assert.equal(run.exitCode, 0, run.transcript);
    const [first, victim, third] = run.ranks.map((rank) => resultOf(rank) as Outcome);
    for (const other of [first!, third!]) assert.ok(other.without > 0, run.transcript);
    assert.equal(victim?.life, how === 'killed' ? 1 : 0, run.transcript);
    assert.equal(victim?.end, first?.end, run.transcript);
    assert.equal(victim?.firstDispatch === 1, how !== 'killed', run.transcript);
    assert.deepEqual(
      run.notices,
      how === 'killed' ? ['rank 1 ended with signal SIGKILL; it is started again (1 of 1)'] : [],
    );
  });
}

test(
  'the last active rank dies while the others wait to be connected: they begin anew by themselves',
  { skip: noGpu },
  async () => {
    const run = await runRanks(3, founders, { maxRestarts: 1, env, timeoutMs });
    assert.equal(run.exitCode, 0, run.transcript);
    const [first, ...others] = run.ranks.map(
      (rank) => resultOf(rank) as { readonly end: number; readonly life: number },
    );
    assert.equal(first?.life, 1);
    for (const other of others) assert.equal(other.end, first?.end, run.transcript);
  },
);

/** WEFTLINE_TEST_EP=… multiplies the dispatches; the seed stands in every failure's output. */
const times = Number(process.env['WEFTLINE_TEST_EP'] ?? 1);
for (const mode of ['rank-sums', 'choices', 'rank-major']) {
  test(`random deaths, masks and joins, every result as the reference says: ${mode}`, { skip: noGpu }, async () => {
    const dispatches = 100 * times;
    const args = [String(seed), mode, String(dispatches), String(2 * times)];
    const run = await runRanks(3, faults, { args, maxRestarts: 4 * times, env, timeoutMs: timeoutMs * times });
    assert.equal(run.exitCode, 0, `seed ${seed}\n${run.transcript}`);
    // A rank that fails by itself is started again too, and must not pass for one that was killed.
    for (const notice of run.notices) assert.match(notice, /signal SIGKILL/, `seed ${seed}\n${run.transcript}`);
    const { checked } = resultOf(run.ranks[0]) as { readonly checked: number };
    assert.ok(checked > dispatches / 2, run.transcript);
  });
}

for (const mode of ['rank-sums', 'choices', 'rank-major']) {
  test(`deadlines that end within calls, of which kernels store late: ${mode}`, { skip: noGpu }, async () => {
    const args = [String(seed), mode, '200', '0', '5'];
    const run = await runRanks(3, faults, { args, env, timeoutMs: timeoutMs * times });
    assert.equal(run.exitCode, 0, `seed ${seed}\n${run.transcript}`);
    const { without } = resultOf(run.ranks[0]) as { readonly without: number };
    // Ranks that have a GPU each may all be in time.
    if (cudaDeviceCount() < 3) assert.ok(without > 0, run.transcript);
  });
}

test('calls of an elastic object are refused in a recording, by name', { skip: noGpu }, async () => {
  const run = await runRanks(2, graphs, { env, timeoutMs });
  assert.equal(run.exitCode, 0, run.transcript);
});

test('memory of a process that was killed stays as it was for those that have it mapped', { skip: noGpu }, async () => {
  const run = await runRanks(2, peers, { maxRestarts: 1, env, timeoutMs });
  assert.equal(run.exitCode, 0, run.transcript);
});
