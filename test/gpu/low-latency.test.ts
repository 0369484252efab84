// EpLowLatency on GPUs against its reference, by the programs that check it on CPUs; and what its ranks see when one fails.
import assert from 'node:assert/strict';
import test from 'node:test';
import { resultOf, runRanks, type RunRanksOptions } from '../local/support/run-ranks.ts';
import { testSeed } from '../support/seed.ts';
import { cacheFolder, noGpu, rankCounts } from './support/gpu.ts';
import { settingsTable } from '#lib/settings/settings.js';

const property = new URL('../local/ranks/low-latency-property.js', import.meta.url);
const repeats = new URL('../local/ranks/low-latency-repeats.js', import.meta.url);
const failing = new URL('../local/ranks/low-latency-failure.js', import.meta.url);
/** WEFTLINE_TEST_SEED=… repeats a failing run. */
const seed = String(testSeed());
const timeoutMs = 300_000;
const env = { WEFTLINE_TEST_DEVICE: 'cuda', [settingsTable.cacheFolder.env]: cacheFolder };

for (const ranks of new Set([...rankCounts, 3, 4])) {
  test(`30 random cases on ${ranks} ranks agree with the reference`, { skip: noGpu }, async () => {
    const { exitCode, transcript } = await runRanks(ranks, property, { args: ['30', seed], env, timeoutMs });
    assert.equal(exitCode, 0, `seed ${seed}\n${transcript}`);
  });
}

for (const ranks of [1, 2]) {
  test(`5 random cases of up to 2500 tokens on ${ranks} ranks, several to a block`, { skip: noGpu }, async () => {
    const { exitCode, transcript } = await runRanks(ranks, property, { args: ['5', seed, '2500'], env, timeoutMs });
    assert.equal(exitCode, 0, `seed ${seed}\n${transcript}`);
  });

  test(`100 dispatches and combines of ${ranks} ranks give the same bytes`, { skip: noGpu }, async () => {
    const { exitCode, transcript } = await runRanks(ranks, repeats, { args: ['100'], env, timeoutMs });
    assert.equal(exitCode, 0, transcript);
  });
}

const overlapped = new URL('../local/ranks/low-latency-overlapped.js', import.meta.url);
const alone = new URL('../local/ranks/low-latency-alone.js', import.meta.url);

for (const [scenario, name] of [
  ['hooks', 'combines of one result do not wait for the hook of a combine of another'],
  ['opposite', 'ranks may call the hooks of a combine and of the next dispatch in any order'],
] as const) {
  test(name, { skip: noGpu }, async () => {
    const { exitCode, transcript } = await runRanks(2, overlapped, { args: [scenario], env, timeoutMs });
    assert.equal(exitCode, 0, transcript);
  });
}

for (const ranks of [2, 3]) {
  test(`one of ${ranks} ranks may ask alone for the memory of its next combine`, { skip: noGpu }, async () => {
    const { exitCode, transcript } = await runRanks(ranks, alone, { env, timeoutMs });
    assert.equal(exitCode, 0, transcript);
  });
}

interface Failure {
  readonly code: string;
  readonly message: string;
}

async function failures(scenario: string, ranks: number, options: RunRanksOptions = {}) {
  const run = await runRanks(ranks, failing, { graceMs: 10_000, env, ...options, args: [scenario] });
  return { ...run, failures: run.ranks.map((rank) => resultOf(rank) as Failure) };
}

for (const scenario of ['killed between send and receive', 'killed before its rows']) {
  test(`a rank that is ${scenario} ends the waits of the others, which name it`, { skip: noGpu }, async () => {
    const { failures: got, ranks, transcript } = await failures(scenario, 3);
    assert.equal(ranks[1]?.signal, 'SIGKILL', transcript);
    for (const rank of [0, 2]) {
      assert.ok(['WL_PEER_LOST', 'WL_PEER_FAILED'].includes(got[rank]?.code ?? ''), transcript);
      assert.match(got[rank]?.message ?? '', /[Rr]ank \d\b/, transcript);
    }
  });
}

test(
  'a rank that never comes is named, with kernel and call, and hears that the others gave up',
  { skip: noGpu },
  async () => {
    const { failures: got, transcript } = await failures('absent', 3);
    const told = [got[0]!, got[2]!];
    assert.ok(
      told.some(
        ({ code, message }) =>
          code === 'WL_TIMEOUT' &&
          /Kernel lowLatencyDispatch of rank \d waited (?:3\d\d|400) ms for rank 1 \(a dispatch of fp8 rows.*, for rows/.test(
            message,
          ),
      ),
      transcript,
    );
    for (const { code } of told) assert.ok(['WL_TIMEOUT', 'WL_PEER_FAILED'].includes(code), transcript);
    assert.ok(['WL_PEER_FAILED', 'WL_PEER_LOST'].includes(got[1]?.code ?? ''), transcript);
  },
);

for (const [scenario, code, message] of [
  ['overflow', 'WL_CAPACITY', /Expert [02] got 4 rows in dispatch 1, more than its 3 \(maxTokensPerExpert\)/],
  ['overflow of one rank', 'WL_CAPACITY', /Expert 0 got 4 rows in dispatch 1, more than its 3 \(maxTokensPerExpert\)/],
  ['other format', 'WL_CONFIG_MISMATCH', /bf16 rows.*fp8 rows|fp8 rows.*bf16 rows/],
  ['other handle', 'WL_CONFIG_MISMATCH', /combine of dispatch 1.*combine of dispatch 2|dispatch 2.*dispatch 1/],
  [
    'bad choice',
    'WL_INVALID_ARGUMENT',
    /Invalid topkIdx\[1, 1\] of rank 1 in dispatch 1: expected an expert from 0 to 3/,
  ],
  ['other config', 'WL_CONFIG_MISMATCH', /different hidden: 16 on rank 0, 24 on rank 1/],
  ['wrong config', 'WL_INVALID_ARGUMENT', /Invalid maxTopk: expected 1 to 32, got 33/],
] as const) {
  test(`${scenario}: some rank hears why, the others that it failed`, { skip: noGpu }, async () => {
    const { failures: got, transcript } = await failures(scenario, 2);
    assert.ok(
      got.some((one) => one.code === code && message.test(one.message)),
      transcript,
    );
    for (const one of got) assert.ok([code, 'WL_PEER_FAILED', 'WL_PEER_LOST'].includes(one.code), transcript);
  });
}

test('arguments that cannot be are refused at once, and later calls work', { skip: noGpu }, async () => {
  const { failures: got, transcript } = await failures('arguments', 2);
  assert.deepEqual(got, ['refused', 'refused'], transcript);
});
