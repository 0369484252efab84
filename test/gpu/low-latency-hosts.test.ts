// EpLowLatency on GPUs of several hosts, which this machine pretends: the same bytes as the reference with hosts, on any numbers of
// GPUs, directly and in graphs, and what ranks hear of one that fails.
import assert from 'node:assert/strict';
import test from 'node:test';
import { resultOf, runRanks } from '../local/support/run-ranks.ts';
import { environmentOf, type Topology } from '../local/support/topologies.ts';
import { cacheFolder, noGpu } from './support/gpu.ts';
import { testSeed } from '../support/seed.ts';
import { settingsTable } from '#lib/settings/settings.js';

const property = new URL('../local/ranks/low-latency-property.js', import.meta.url);
const repeats = new URL('../local/ranks/low-latency-repeats.js', import.meta.url);
const alone = new URL('../local/ranks/low-latency-alone.js', import.meta.url);
const overlapped = new URL('../local/ranks/low-latency-overlapped.js', import.meta.url);
const failing = new URL('../local/ranks/low-latency-failure.js', import.meta.url);
const graph = new URL('./processes/low-latency-graph.js', import.meta.url);
/** WEFTLINE_TEST_SEED=… repeats a failing run. */
const seed = String(testSeed());
const timeoutMs = 300_000;
const env = { WEFTLINE_TEST_DEVICE: 'cuda', [settingsTable.cacheFolder.env]: cacheFolder };

const shapes: readonly (readonly [topology: Topology, cases: number])[] = [
  [{ name: '2×1', ranks: 2, hosts: '2', shape: 'all' }, 30],
  [{ name: '2×2', ranks: 4, hosts: '2', shape: 'all' }, 12],
  [{ name: '2×2 with ranks in turn', ranks: 4, hosts: '2', shape: 'mixed' }, 8],
  [{ name: '1+2', ranks: 3, hosts: '1+2', shape: 'all' }, 8],
  [{ name: '3×1', ranks: 3, hosts: '3', shape: 'all' }, 8],
];

for (const [topology, cases] of shapes) {
  test(`${cases} random cases on ${topology.name} agree with the reference`, { skip: noGpu }, async (context) => {
    context.diagnostic(`WEFTLINE_TEST_SEED=${seed}`);
    const options = { args: [String(cases), seed], env: { ...env, ...environmentOf(topology) }, timeoutMs };
    const { exitCode, transcript } = await runRanks(topology.ranks, property, options);
    assert.equal(exitCode, 0, `seed ${seed}\n${transcript}`);
  });
}

test('4 random cases of up to 2500 tokens on 2×1, several to a block', { skip: noGpu }, async () => {
  const options = { args: ['4', seed, '2500'], env: { ...env, WEFTLINE_HOSTS: '2' }, timeoutMs };
  const { exitCode, transcript } = await runRanks(2, property, options);
  assert.equal(exitCode, 0, `seed ${seed}\n${transcript}`);
});

for (const ranks of [2, 4]) {
  const name = `${ranks} ranks on two hosts`;
  test(`100 dispatches and combines of ${name} give the same bytes`, { skip: noGpu }, async () => {
    const options = { args: ['100'], env: { ...env, WEFTLINE_HOSTS: '2' }, timeoutMs };
    const { exitCode, transcript } = await runRanks(ranks, repeats, options);
    assert.equal(exitCode, 0, transcript);
  });

  test(`60 replays of ${name} give the bytes of direct calls`, { skip: noGpu }, async () => {
    const options = { args: ['60'], env: { ...env, WEFTLINE_HOSTS: '2' }, timeoutMs };
    const { exitCode, transcript } = await runRanks(ranks, graph, options);
    assert.equal(exitCode, 0, transcript);
  });

  test(
    `a graph of ${name} may be launched while a hook is pending, and send what a hook receives`,
    { skip: noGpu },
    async () => {
      const options = { args: ['hooks'], env: { ...env, WEFTLINE_HOSTS: '2' }, timeoutMs };
      const { exitCode, transcript } = await runRanks(ranks, graph, options);
      assert.equal(exitCode, 0, transcript);
    },
  );

  for (const [scenario, what] of [
    ['hooks', 'combine one result whatever the hook of a combine of another'],
    ['opposite', 'call the hooks of a combine and of the next dispatch in any order'],
  ] as const) {
    test(`${name} may ${what}`, { skip: noGpu }, async () => {
      const options = { args: [scenario], env: { ...env, WEFTLINE_HOSTS: '2' }, timeoutMs };
      const { exitCode, transcript } = await runRanks(ranks, overlapped, options);
      assert.equal(exitCode, 0, transcript);
    });
  }

  test(`one of ${name} may ask alone for the memory of its next combine`, { skip: noGpu }, async () => {
    const { exitCode, transcript } = await runRanks(ranks, alone, { env: { ...env, WEFTLINE_HOSTS: '2' }, timeoutMs });
    assert.equal(exitCode, 0, transcript);
  });
}

interface Failure {
  readonly code: string;
  readonly message: string;
}

async function failures(scenario: string, ranks: number, hosts: string) {
  const options = { graceMs: 10_000, env: { ...env, WEFTLINE_HOSTS: hosts }, args: [scenario] };
  const run = await runRanks(ranks, failing, options);
  return { ...run, failures: run.ranks.map((rank) => resultOf(rank) as Failure) };
}

for (const [scenario, hosts] of [
  ['killed between send and receive', '3'],
  ['killed before its rows', '3'],
  ['killed before its rows', '2+1'],
] as const) {
  test(
    `a rank that is ${scenario} ends the waits of the others, which name it, hosts ${hosts}`,
    { skip: noGpu },
    async () => {
      const { failures: got, ranks, transcript } = await failures(scenario, 3, hosts);
      assert.equal(ranks[1]?.signal, 'SIGKILL', transcript);
      for (const rank of [0, 2]) {
        assert.ok(['WL_PEER_LOST', 'WL_PEER_FAILED'].includes(got[rank]?.code ?? ''), transcript);
        assert.match(got[rank]?.message ?? '', /[Rr]ank \d\b/, transcript);
      }
    },
  );
}

test('a rank of another host that never comes is named, with kernel and call', { skip: noGpu }, async () => {
  const { failures: got, transcript } = await failures('absent', 3, '3');
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
});

test('a rank hears that the one that passes rows of another host on gave up', { skip: noGpu }, async () => {
  const { failures: got, transcript } = await failures('absent behind another rank', 3, '2+1');
  assert.equal(got[0]?.code, 'WL_TIMEOUT', transcript);
  assert.match(
    got[0].message,
    /Kernel lowLatencyDispatch of rank 0 waited .* for rank 2 \(a dispatch of bf16/,
    transcript,
  );
  assert.equal(got[1]?.code, 'WL_PEER_FAILED', transcript);
  assert.match(got[1].message, /^Rank 0 failed: it gave up/, transcript);
});

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
  ['elastic on several hosts', 'WL_UNSUPPORTED', /An elastic EpLowLatency works within one host/],
  ['choices on several hosts', 'WL_UNSUPPORTED', /combineTravels 'choices' works within one host/],
] as const) {
  test(`${scenario}: some rank hears why, the others that it failed`, { skip: noGpu }, async () => {
    const { failures: got, transcript } = await failures(scenario, 2, '2');
    assert.ok(
      got.some((one) => one.code === code && message.test(one.message)),
      transcript,
    );
    for (const one of got) assert.ok([code, 'WL_PEER_FAILED', 'WL_PEER_LOST'].includes(one.code), transcript);
  });
}
