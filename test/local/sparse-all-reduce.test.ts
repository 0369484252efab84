// Sparse all-reduces against the reference, byte by byte, on real ranks; what ranks hear when they disagree, or when one dies.
// WEFTLINE_TEST_COLLECTIVES above 1: as many times the cases, longer tensors, and more repeats.
import assert from 'node:assert/strict';
import { spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { readdirSync } from 'node:fs';
import test from 'node:test';
import { fileURLToPath } from 'node:url';
import { freePort } from '../support/free-port.ts';
import { isWhole } from '../support/extent.ts';
import { testSeed } from '../support/seed.ts';
import { resultOf, runRanks } from './support/run-ranks.ts';

const factor = Number(process.env['WEFTLINE_TEST_COLLECTIVES'] ?? 1);
const isLong = isWhole || factor > 1;
const scripts = {
  property: new URL('./ranks/sparse-property.js', import.meta.url),
  failures: new URL('./ranks/sparse-failures.js', import.meta.url),
  killed: new URL('./ranks/sparse-killed.js', import.meta.url),
  repeats: new URL('./ranks/sparse-repeats.js', import.meta.url),
};

const main = fileURLToPath(new URL('../../../dist/programs/cli/main.js', import.meta.url));

function filesOf(transcript: string): string[] {
  const jobId = /job ([\w-]+)/.exec(transcript)?.[1] ?? 'no job';
  return readdirSync('/dev/shm').filter((name) => name.includes(jobId));
}

// Between hosts most of the time goes into connections: some of the setups are enough for the gate.
for (const [hosts, cases, setups] of [
  ['1', 10, 'all'],
  ...(isLong ? ([['2', 1, 'all']] as const) : []),
  ['6', 1, isLong ? 'all' : '1,3,8'],
] as const) {
  test(`random calls of 1 to 4 workers agree with the reference; hosts ${hosts}`, async () => {
    const seed = String(testSeed());
    const args = [String(cases * factor), seed, factor > 1 ? '1000000' : '100000', setups];
    const env = { WEFTLINE_HOSTS: hosts };
    const { exitCode, transcript } = await runRanks(6, scripts.property, { args, env, timeoutMs: 600_000 * factor });
    assert.equal(exitCode, 0, `seed ${seed}\n${transcript}`);
    assert.deepEqual(filesOf(transcript), []);
  });
}

for (const [hosts, repeats] of [['1', 100], ...(isLong ? ([['2', 10]] as const) : [])] as const) {
  const count = String(factor > 1 ? 1000 : repeats);
  test(`${count} repeats with workers that are late give the same bytes; hosts ${hosts}`, async () => {
    const env = { WEFTLINE_HOSTS: hosts };
    const { exitCode, transcript } = await runRanks(4, scripts.repeats, { args: [count], env, timeoutMs: 600_000 });
    assert.equal(exitCode, 0, transcript);
  });
}

for (const [hosts, shape] of [
  ['1', 'one aggregator'],
  ...(isLong
    ? ([
        ['2', 'tree'],
        ['2', 'one aggregator'],
      ] as const)
    : []),
] as const) {
  test(`a worker that differs is named to every rank; ${shape}, hosts ${hosts}`, async () => {
    const options = { args: [shape], env: { WEFTLINE_HOSTS: hosts } };
    const { exitCode, ranks, transcript } = await runRanks(shape === 'tree' ? 5 : 4, scripts.failures, options);
    assert.equal(exitCode, 0, transcript);
    for (const [rank, output] of ranks.entries()) {
      const told = resultOf(output) as Readonly<Record<string, readonly [first: string, next: string]>>;
      const heard = (name: string, ...parts: RegExp[]): void => {
        const [first, next] = told[name]!;
        for (const part of parts) assert.match(first === 'ok' && rank === 1 ? next : first, part, transcript);
        assert.match(next, /^WL_/, transcript);
      };
      heard('another count', /WL_CONFIG_MISMATCH/, /allReduce of 5 f32 on rank 0/, /allReduce of 100000 f32 on rank 1/);
      heard('another dtype', /WL_CONFIG_MISMATCH/, /allReduce of 5 f32 on rank 0/, /allReduce of 5 i32 on rank 1/);
      // On a busy machine another one may be as late.
      heard('a call less', /WL_TIMEOUT/, /Ranks? (\d, )*1\b[\d, ]* did not arrive within 400 ms/);
      if (rank !== 1) heard('leaves', /WL_PEER_LOST/, /[Rr]ank 1/);
      assert.equal(told['a wrong argument']![0], 'ok', transcript);
    }
  });
}

for (const [what, victim, hosts, shape] of [
  ['before', 0, '1', 'one aggregator'],
  ...(isLong
    ? ([
        ['within', 1, '2', 'one aggregator'],
        ['handing down', 3, '2', 'tree'],
        ['within', 3, '1', 'one aggregator'],
        ['summing', 3, '1', 'tree'],
        ['within', 4, '1', 'tree'],
        ['within', 1, '1', 'one aggregator'],
        ['before', 3, '1', 'one aggregator'],
        ['within', 3, '2', 'one aggregator'],
        ['before', 0, '2', 'one aggregator'],
        ['before', 3, '2', 'tree'],
      ] as const)
    : []),
  // Rank 3 takes blocks of workers 0 and 1, rank 4 those of worker 2 and the sums of rank 3.
  ['before', 3, '1', 'tree'],
] as const) {
  test(`rank ${victim} is killed ${what} a call, and every other rank is told; ${shape}, hosts ${hosts}`, async () => {
    const args = [what, String(victim), shape];
    const env = { WEFTLINE_HOSTS: hosts };
    const ranksOf = shape === 'tree' ? 5 : 4;
    const { ranks, transcript } = await runRanks(ranksOf, scripts.killed, { args, env, graceMs: 60_000 });
    assert.equal(ranks[victim]?.signal, 'SIGKILL', transcript);
    for (const [rank, output] of ranks.entries()) {
      if (rank === victim) continue;
      const { code, message, ms } = resultOf(output) as { code: string; message: string; ms: number };
      assert.ok(['WL_PEER_LOST', 'WL_PEER_FAILED'].includes(code), transcript);
      assert.match(message, new RegExp(`[Rr]anks? ([0-9, ]*\\b)?${victim}\\b`), transcript);
      assert.ok(ms < 60_000, transcript);
    }
    assert.deepEqual(filesOf(transcript), []);
  });
}

for (const hosts of isLong ? ['1', '3'] : ['3']) {
  test(`weftline run --aggregators starts ranks that add up and end with the others; hosts ${hosts}`, () => {
    const example = fileURLToPath(new URL('../../../examples/sparse-all-reduce.mjs', import.meta.url));
    const words = [main, 'run', '-n', '2', '--aggregators', '1', '--hosts', hosts, example];
    const { status, stdout, stderr } = spawnSync(process.execPath, words, { encoding: 'utf8', timeout: 600_000 });
    assert.equal(status, 0, stderr);
    assert.equal(stdout.match(/sent 2 of 64 blocks in \d+ bytes, the sum has 3/g)?.length, 2, stdout);
  });
}

for (const { when, ways, told } of [
  { when: 'after the deadline, with a refused creation first', ways: [], told: ['the sum is 2', 'the sum is 2'] },
  { when: 'never', ways: ['never'], told: [] },
] as const) {
  test(`aggregators serve and end with ranks that join: ${when}`, () => {
    const late = fileURLToPath(new URL('./ranks/sparse-late.js', import.meta.url));
    const words = [main, 'run', '-n', '2', '--aggregators', '1', '--timeout', '2000', late, ...ways];
    const { status, stdout, stderr } = spawnSync(process.execPath, words, { encoding: 'utf8', timeout: 600_000 });
    assert.deepEqual([status, stderr], [0, ''], stdout);
    assert.deepEqual(stdout.match(/the sum is .*/g) ?? [], told);
  });
}

/** How the launchers of two nodes end, each with aggregators. */
async function runOnTwoNodes(
  ranks: number,
  program: readonly string[],
  graceMs: readonly number[],
  aggregators = 1,
): Promise<{ code: number | null; stderr: string }[]> {
  const master = `127.0.0.1:${await freePort()}`;
  const ended = graceMs.map(async (grace, node) => {
    const where = ['--nnodes', '2', '--node-rank', String(node), '--master', master, '--grace', String(grace)];
    const words = [main, 'run', '-n', String(ranks), '--aggregators', String(aggregators), ...where, ...program];
    const env = { ...process.env, WEFTLINE_TOKEN: 'token of this test' };
    const child = spawn(process.execPath, words, { env, stdio: ['ignore', 'ignore', 'pipe'], timeout: 600_000 });
    let stderr = '';
    child.stderr.on('data', (chunk: Buffer) => (stderr += chunk.toString()));
    const [code] = (await once(child, 'close')) as [number | null];
    return { code, stderr };
  });
  return Promise.all(ended);
}

// Where one node stops its aggregator long before the other does, the other one loses it.
for (const { aggregators, graceMs } of isLong
  ? [
      { aggregators: 1, graceMs: [300, 300] },
      { aggregators: 2, graceMs: [0, 3_000] },
      { aggregators: 1, graceMs: [3_000, 0] },
      { aggregators: 2, graceMs: [3_000, 0] },
    ]
  : []) {
  test(`${aggregators} aggregators a node end with ranks that never join, --grace ${graceMs.join(' and ')}`, async () => {
    const late = fileURLToPath(new URL('./ranks/sparse-late.js', import.meta.url));
    const ended = await runOnTwoNodes(1, [late, 'never'], graceMs, aggregators);
    for (const { code, stderr } of ended) assert.equal(code, 0, stderr);
  });
}

const lost = fileURLToPath(new URL('./ranks/sparse-lost.js', import.meta.url));

test('a rank that fails beside aggregators fails the job, also where the others end well', () => {
  const words = [main, 'run', '-n', '2', '--aggregators', '1', lost];
  const { status, stderr } = spawnSync(process.execPath, words, { encoding: 'utf8', timeout: 600_000 });
  assert.equal(status, 1, stderr);
  assert.match(stderr, /the job failed: rank 0 .*\n.*first error: WL_PEER_LOST: a peer is gone/);
});

// One that waits for a grace of 20 seconds.
if (isLong) {
  test('the same on two nodes, where it says that it lost a rank of the other one', async () => {
    // The node of the rank stops its ranks long before the other one would tell that its aggregator has lost one.
    const ended = await runOnTwoNodes(2, [lost, JSON.stringify([3])], [3_000, 20_000]);
    for (const { code, stderr } of ended) {
      assert.equal(code, 1, stderr);
      assert.match(stderr, /the job failed: rank 0 .*\n.*first error: WL_PEER_LOST: a peer is gone/);
    }
  });
}
