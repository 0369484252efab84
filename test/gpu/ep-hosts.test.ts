// EpBuffer and EPAll2AllLayer on GPUs of several hosts, which this machine pretends: the same bytes as the reference with hosts, on any numbers of
// GPUs, and what ranks hear of one that dies, stays away or closes.
import assert from 'node:assert/strict';
import test from 'node:test';
import { resultOf, runRanks, type RunRanksResult } from '../local/support/run-ranks.ts';
import { environmentOf, type Topology } from '../local/support/topologies.ts';
import { cacheFolder, noGpu } from './support/gpu.ts';
import { isWhole } from '../support/extent.ts';
import { testSeed } from '../support/seed.ts';
import { settingsTable } from '#lib/settings/settings.js';

const property = new URL('../local/ranks/ep-property.js', import.meta.url);
const lives = new URL('../local/ranks/ep-lives.js', import.meta.url);
const repeats = new URL('../local/ranks/ep-repeats.js', import.meta.url);
const large = new URL('../local/ranks/ep-large.js', import.meta.url);
const failure = new URL('../local/ranks/ep-failure.js', import.meta.url);
const graphs = new URL('./processes/ep-graph.js', import.meta.url);
/** WEFTLINE_TEST_SEED=… repeats a failing run. */
const seed = String(testSeed());
const timeoutMs = 300_000;
const env = { WEFTLINE_TEST_DEVICE: 'cuda', [settingsTable.cacheFolder.env]: cacheFolder };

interface Failure {
  readonly code: string;
  readonly message: string;
}

const onePerHost: Topology = { name: '2×1', ranks: 2, hosts: '2', shape: 'all' };
const shapes: readonly (readonly [topology: Topology, cases: number])[] = [
  [onePerHost, 30],
  [{ name: '2×2', ranks: 4, hosts: '2', shape: 'all' }, 12],
  [{ name: '2×2 with ranks in turn', ranks: 4, hosts: '2', shape: 'mixed' }, 8],
  [{ name: '1+2', ranks: 3, hosts: '1+2', shape: 'all' }, 8],
  [{ name: '3×1', ranks: 3, hosts: '3', shape: 'all' }, 8],
];

for (const what of ['buffer', 'layer']) {
  for (const [topology, cases] of shapes) {
    test(
      `${what}: ${cases} random cases on ${topology.name} agree with the reference`,
      { skip: noGpu },
      async (context) => {
        context.diagnostic(`WEFTLINE_TEST_SEED=${seed}`);
        const options = { args: [what, String(cases), seed], env: { ...env, ...environmentOf(topology) }, timeoutMs };
        const { exitCode, transcript } = await runRanks(topology.ranks, property, options);
        assert.equal(exitCode, 0, `seed ${seed}\n${transcript}`);
      },
    );
  }
}

/** The network side lies in memory of the GPU, half of the time of the caller. */
const gpuWindow = {
  NODE_OPTIONS: `--import=${new URL('./support/pretend-gpu-reach.js', import.meta.url).href}`,
  WEFTLINE_TEST_GPU_WINDOW: '1',
  WEFTLINE_LOG: 'device-api:info',
};

for (const what of ['buffer', 'layer']) {
  for (const [topology, cases] of [
    [onePerHost, 12],
    [{ name: '2×2', ranks: 4, hosts: '2', shape: 'all' } as const, 6],
  ] as const) {
    test(
      `${what}: ${cases} random cases on ${topology.name} with the network side in memory of the GPU`,
      { skip: noGpu },
      async (context) => {
        context.diagnostic(`WEFTLINE_TEST_SEED=${seed}`);
        const places = { ...env, ...environmentOf(topology), ...gpuWindow };
        const options = { args: [what, String(cases), seed], env: places, timeoutMs };
        const { exitCode, transcript } = await runRanks(topology.ranks, property, options);
        assert.equal(exitCode, 0, `seed ${seed}\n${transcript}`);
        assert.match(transcript, /the network side lies in GPU memory \(peermem\): a test pretends it/);
      },
    );
  }
}

test('two buffers and a layer across hosts at once; nothing is left of them', { skip: noGpu }, async () => {
  const options = { args: ['5'], env: { ...env, ...environmentOf(onePerHost) }, timeoutMs };
  const { exitCode, transcript } = await runRanks(2, lives, options);
  assert.equal(exitCode, 0, transcript);
});

test('200 dispatches and combines across hosts give the same bytes', { skip: noGpu }, async () => {
  const options = { args: ['200'], env: { ...env, ...environmentOf(onePerHost) }, timeoutMs };
  const { exitCode, transcript } = await runRanks(2, repeats, options);
  assert.equal(exitCode, 0, transcript);
});

for (const [name, ranks] of [
  ['2×1', 2],
  ['2×2', 4],
] as const) {
  test(`rows of many chunks arrive whole, and their sums: ${name}`, { skip: noGpu }, async () => {
    const options = {
      args: ['1500', '4096', '4'],
      env: { ...env, ...environmentOf({ ...onePerHost, ranks }) },
      timeoutMs,
    };
    const { exitCode, transcript } = await runRanks(ranks, large, options);
    assert.equal(exitCode, 0, transcript);
  });
}

type OnRunning = (pid: number, rank: number) => void;

function fail(
  scenario: string,
  ranks = 2,
  onRunning?: OnRunning,
  more: Readonly<Record<string, string>> = {},
): Promise<RunRanksResult> {
  return runScenario(failure, { scenario, ranks, more }, onRunning);
}

/** The same with calls that a CUDA graph repeats. */
function failReplayed(scenario: string, ranks = 2, onRunning?: OnRunning): Promise<RunRanksResult> {
  return runScenario(graphs, { scenario, ranks }, onRunning);
}

function runScenario(
  script: URL,
  {
    scenario,
    ranks,
    more = {},
  }: { readonly scenario: string; readonly ranks: number; readonly more?: Readonly<Record<string, string>> },
  onRunning?: OnRunning,
): Promise<RunRanksResult> {
  return runRanks(ranks, script, {
    args: [scenario],
    env: { ...env, WEFTLINE_HOSTS: '2', ...more },
    graceMs: 20_000,
    onLine: ({ rank, text }) => {
      const [, pid] = /^running (\d+)/.exec(text) ?? [];
      if (pid !== undefined) onRunning?.(Number(pid), rank);
    },
  });
}

test('a rank of another host that stays away is named by WL_TIMEOUT, with what it owes', { skip: noGpu }, async () => {
  const { ranks, transcript } = await fail('absent');
  const { code, message } = resultOf(ranks[0]) as Failure;
  assert.equal(code, 'WL_TIMEOUT', transcript);
  assert.match(
    message,
    /Kernel epDispatch of rank 0 waited (?:3\d\d|400) ms for rank 1 \(dispatch \(record from another host\)/,
    transcript,
  );
});

test('a rank that stays away from a layer is named too', { skip: noGpu }, async () => {
  const { ranks, transcript } = await fail('layer absent');
  const { code, message } = resultOf(ranks[0]) as Failure;
  assert.equal(code, 'WL_TIMEOUT', transcript);
  assert.match(message, /Kernel layerPrepare of rank 0 waited .* for rank 1 \(layer dispatch \(record/, transcript);
});

test('kill -9 of a rank of another host ends the waits of a layer', { skip: noGpu }, async () => {
  const { ranks, transcript } = await fail('layer loop', 3, (pid, rank) => {
    if (rank === 1) process.kill(pid, 'SIGKILL');
  });
  for (const rank of [0, 2]) {
    const { code, message } = resultOf(ranks[rank]) as Failure;
    assert.ok(['WL_PEER_LOST', 'WL_PEER_FAILED'].includes(code), transcript);
    assert.match(message, /[Rr]ank 1\b/, transcript);
  }
});

test('kill -9 of a rank of another host ends the waits of kernels and names it', { skip: noGpu }, async () => {
  const { ranks, transcript } = await fail('lost before combine');
  const { code, message } = resultOf(ranks[0]) as Failure;
  assert.equal(code, 'WL_PEER_LOST', transcript);
  assert.match(message, /[Rr]ank 1\b/, transcript);
});

for (const [scenario, code] of [
  ['lost before combine', 'WL_PEER_LOST'],
  ['closes its buffer', 'WL_PEER_LOST'],
] as const) {
  test(`with the network side in memory of the GPU, a rank that ${scenario} is named`, { skip: noGpu }, async () => {
    const { ranks, transcript } = await fail(scenario, 2, undefined, gpuWindow);
    const { code: heard, message } = resultOf(ranks[0]) as Failure;
    assert.equal(heard, code, transcript);
    assert.match(message, /[Rr]ank 1\b/, transcript);
  });
}

test(
  'what a rank says when it gives up comes where the network side is memory of the GPU',
  { skip: noGpu },
  async () => {
    const { exitCode, ranks, transcript } = await fail('worst too small', 2, undefined, gpuWindow);
    assert.equal(exitCode, 0, transcript);
    for (const rank of ranks) assert.equal((resultOf(rank) as Failure).code, 'WL_CAPACITY', transcript);
  },
);

test('kill -9 of a rank in the middle of calls: every other rank ends, on both hosts', { skip: noGpu }, async () => {
  const { ranks, transcript } = await fail('loop', 4, (pid, rank) => {
    if (rank === 1) process.kill(pid, 'SIGKILL');
  });
  for (const rank of [0, 2, 3]) {
    const { code, message } = resultOf(ranks[rank]) as Failure;
    assert.ok(['WL_PEER_LOST', 'WL_PEER_FAILED'].includes(code), transcript);
    assert.match(message, /[Rr]ank 1\b/, transcript);
  }
});

test('a rank that closes its buffer while another host is in a call is named', { skip: noGpu }, async () => {
  const { ranks, transcript } = await fail('closes its buffer');
  const { code, message } = resultOf(ranks[0]) as Failure;
  assert.equal(code, 'WL_PEER_LOST', transcript);
  assert.match(message, /rank 1\b.*closed its side/, transcript);
});

test('a device that is closed before its buffer leaves nothing that looks at its memory', { skip: noGpu }, async () => {
  const { exitCode, ranks, transcript } = await fail('closes its device');
  assert.equal(exitCode, 0, transcript);
  for (const rank of ranks) assert.notEqual((resultOf(rank) as Failure).code, 'none', transcript);
});

for (const [scenario, code, message] of [
  ['other topk', 'WL_CONFIG_MISMATCH', /disagree on topk/],
  ['other dtype', 'WL_CONFIG_MISMATCH', /disagree on rowBytes/],
  ['other weights', 'WL_CONFIG_MISMATCH', /disagree on weightBytes/],
  ['other config', 'WL_CONFIG_MISMATCH', /different hidden: 16 on rank 0, 24 on rank 1/],
  ['worst too small', 'WL_CAPACITY', /Rank 1 would receive .* more than its numWorstTokens 2/],
  ['calls behind worst too small', 'WL_CAPACITY', /Rank 1 would receive .* more than its numWorstTokens 2/],
  ['worst of one rank too small', 'WL_CAPACITY', /Rank 1 would receive 4 rows, more than its numWorstTokens 2/],
] as const) {
  test(`across hosts, ${scenario}: every rank gets the same ${code}`, { skip: noGpu }, async () => {
    const { exitCode, ranks, transcript } = await fail(scenario);
    assert.equal(exitCode, 0, transcript);
    for (const rank of ranks) {
      const failed = resultOf(rank) as Failure;
      assert.equal(failed.code, code, transcript);
      assert.match(failed.message, message, transcript);
    }
  });
}

test('ranks of different hosts in different calls name both', { skip: noGpu }, async () => {
  const { ranks, transcript } = await fail('other call');
  const failures = ranks.map((rank) => resultOf(rank) as Failure);
  assert.ok(
    failures.some(({ code, message }) => code === 'WL_CONFIG_MISMATCH' && /combine with handle/.test(message)),
    transcript,
  );
  for (const { code } of failures)
    assert.ok(['WL_CONFIG_MISMATCH', 'WL_PEER_FAILED', 'WL_TIMEOUT'].includes(code), transcript);
});

// Calls that a CUDA graph repeats.

for (const [topology, drawn, replays] of [
  [onePerHost, 1, isWhole ? 1000 : 50],
  [onePerHost, 4, 10],
  [{ name: '2×2', ranks: 4, hosts: '2', shape: 'all' }, 1, 50],
  [{ name: '1+2', ranks: 3, hosts: '1+2', shape: 'all' }, 2, 10],
] as const) {
  test(
    `${replays} replays of each of ${drawn} shapes on ${topology.name} give what direct calls give`,
    { skip: noGpu },
    async (context) => {
      context.diagnostic(`WEFTLINE_TEST_SEED=${seed}`);
      const args = ['compare', String(drawn), String(replays), seed];
      const options = { args, env: { ...env, ...environmentOf(topology) }, timeoutMs };
      const { exitCode, transcript } = await runRanks(topology.ranks, graphs, options);
      assert.equal(exitCode, 0, `seed ${seed}\n${transcript}`);
    },
  );
}

test('a replay without a rank of another host ends at its deadline, and names it', { skip: noGpu }, async () => {
  const { ranks, transcript } = await failReplayed('absent');
  const { code, message } = resultOf(ranks[0]) as Failure;
  assert.equal(code, 'WL_TIMEOUT', transcript);
  assert.match(
    message,
    /Kernel epDispatch of rank 0 waited (?:19\d\d|2000) ms for rank 1 \(dispatch \(record from another host\)/,
    transcript,
  );
});

test('a rank that replays after the deadline of another host fails, too', { skip: noGpu }, async () => {
  const { ranks, transcript } = await failReplayed('late');
  const [first, second] = ranks.map((rank) => resultOf(rank) as Failure) as [Failure, Failure];
  assert.equal(first.code, 'WL_TIMEOUT', transcript);
  assert.ok(['WL_TIMEOUT', 'WL_PEER_FAILED'].includes(second.code), transcript);
});

test('kill -9 of a rank ends a replay of another host that waits for it, and names it', { skip: noGpu }, async () => {
  const { ranks, transcript } = await failReplayed('killed');
  const { code, message } = resultOf(ranks[0]) as Failure;
  assert.equal(code, 'WL_PEER_LOST', transcript);
  assert.match(message, /[Rr]ank 1\b/, transcript);
});

test('kill -9 of a rank while replays run: every other rank ends, on both hosts', { skip: noGpu }, async () => {
  const { ranks, transcript } = await failReplayed('loop', 4, (pid, rank) => {
    if (rank === 1) process.kill(pid, 'SIGKILL');
  });
  for (const rank of [0, 2, 3]) {
    const { code, message } = resultOf(ranks[rank]) as Failure;
    assert.ok(['WL_PEER_LOST', 'WL_PEER_FAILED'].includes(code), transcript);
    assert.match(message, /[Rr]ank 1\b/, transcript);
  }
});

for (const [scenario, bound] of [
  ['bound', 4],
  ['layer bound', 3],
] as const) {
  test(
    `across hosts, ${scenario}: a replay that brings more rows fails on every rank alike`,
    { skip: noGpu },
    async () => {
      const { ranks, transcript } = await failReplayed(scenario);
      for (const rank of ranks) {
        const { code, message } = resultOf(rank) as Failure;
        assert.equal(code, 'WL_CAPACITY', transcript);
        assert.match(
          message,
          new RegExp(`Rank 0 would receive \\d+ rows, more than its numWorstTokens ${bound}`),
          transcript,
        );
      }
    },
  );
}
