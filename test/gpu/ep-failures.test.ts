// What the ranks of an EpBuffer or a layer on GPUs see when one stays away or passes something else: reasons, and a usable device.
import assert from 'node:assert/strict';
import test from 'node:test';
import { resultOf, runRanks } from '../local/support/run-ranks.ts';
import { cacheFolder, noGpu } from './support/gpu.ts';
import { settingsTable } from '#lib/settings/settings.js';

interface Failure {
  readonly code: string;
  readonly message: string;
}

const script = new URL('../local/ranks/ep-failure.js', import.meta.url);
const env = { WEFTLINE_TEST_DEVICE: 'cuda', [settingsTable.cacheFolder.env]: cacheFolder };

test('a rank that stays away is named by WL_TIMEOUT, with kernel and call', { skip: noGpu }, async () => {
  const { ranks, transcript } = await runRanks(2, script, { args: ['absent'], env, graceMs: 10_000 });
  const { code, message } = resultOf(ranks[0]) as Failure;
  assert.equal(code, 'WL_TIMEOUT', transcript);
  assert.match(
    message,
    /Kernel epDispatch of rank 0 waited (?:3\d\d|400) ms for rank 1 \(dispatch \(opening barrier\)/,
    transcript,
  );
});

test(
  'kill -9 of a rank ends the waits of kernels at once, names it, and no half result is handed out',
  { skip: noGpu },
  async () => {
    const { ranks, transcript } = await runRanks(2, script, { args: ['lost before combine'], env, graceMs: 10_000 });
    const { code, message } = resultOf(ranks[0]) as Failure;
    assert.equal(code, 'WL_PEER_LOST', transcript);
    assert.match(message, /[Rr]ank 1\b/, transcript);
  },
);

test('kill -9 of a rank ends the waits of a layer too', { skip: noGpu }, async () => {
  const { ranks, transcript } = await runRanks(3, script, {
    args: ['layer loop'],
    env,
    graceMs: 10_000,
    onLine: ({ rank, text }) => {
      const [, pid] = /^running (\d+)/.exec(text) ?? [];
      if (rank === 1 && pid !== undefined) process.kill(Number(pid), 'SIGKILL');
    },
  });
  for (const rank of [0, 2]) {
    const { code, message } = resultOf(ranks[rank]) as Failure;
    assert.equal(code, 'WL_PEER_LOST', transcript);
    assert.match(message, /[Rr]ank 1\b/, transcript);
  }
});

test('a rank that stays away from a layer is named too', { skip: noGpu }, async () => {
  const { ranks, transcript } = await runRanks(2, script, { args: ['layer absent'], env, graceMs: 10_000 });
  const { code, message } = resultOf(ranks[0]) as Failure;
  assert.equal(code, 'WL_TIMEOUT', transcript);
  assert.match(
    message,
    /Kernel layerPrepare of rank 0 waited (?:3\d\d|400) ms for rank 1 \(layer dispatch/,
    transcript,
  );
});

test('a call that fails on one rank before it begins leaves no trace', { skip: noGpu }, async () => {
  const { exitCode, ranks, transcript } = await runRanks(2, script, { args: ['stale event'], env });
  assert.equal(exitCode, 0, transcript);
  const failures = ranks.map((rank) => resultOf(rank) as Failure & { readonly received: number });
  assert.deepEqual(
    failures.map(({ code, received }) => [code, received]),
    [
      ['WL_INVALID_ARGUMENT', 2],
      ['none', 2],
    ],
    transcript,
  );
});

for (const what of ['buffer', 'layer']) {
  test(`a choice that only one rank gets wrong fails on all, and the ${what} goes on`, { skip: noGpu }, async () => {
    const { exitCode, ranks, transcript } = await runRanks(2, script, { args: [`${what} choice`], env });
    assert.equal(exitCode, 0, transcript);
    const failures = ranks.map((rank) => resultOf(rank) as Failure);
    const place = /Invalid (topkIdx|topkIdx)\[1, 1\].*: expected an expert from 0 to 3, or -1.* for none/;
    for (const { code, message } of failures) {
      assert.equal(code, 'WL_INVALID_ARGUMENT', transcript);
      assert.match(message, place, transcript);
    }
    assert.match(
      failures[0]?.message ?? '',
      /\] of rank 1: .* for none; the error of rank 1 shows the value$/,
      transcript,
    );
    assert.match(failures[1]?.message ?? '', /got 7$/, transcript);
  });
}

for (const [scenario, code, message] of [
  ['other topk', 'WL_CONFIG_MISMATCH', /disagree on topk/],
  ['other dtype', 'WL_CONFIG_MISMATCH', /disagree on rowBytes/],
  ['other config', 'WL_CONFIG_MISMATCH', /different hidden: 16 on rank 0, 24 on rank 1/],
  ['worst too small', 'WL_CAPACITY', /Rank 1 would receive .* more than its numWorstTokens 2/],
  ['calls behind worst too small', 'WL_CAPACITY', /Rank 1 would receive .* more than its numWorstTokens 2/],
  ['worst of one rank too small', 'WL_CAPACITY', /Rank 1 would receive 4 rows, more than its numWorstTokens 2/],
  ['worst too small, then none', 'WL_CAPACITY', /Rank 1 would receive 4 rows, more than its numWorstTokens 1/],
  ['shifted rows', 'WL_INVALID_ARGUMENT', /Invalid x: expected .*, got "a view that begins at byte 2"/],
  ['layer cannot grow', 'WL_MEMORY', /Cannot take .* on GPU/],
  ['invalid on all ranks', 'WL_INVALID_ARGUMENT', /Invalid hidden: expected .*, got 12/],
  ['other weights', 'WL_CONFIG_MISMATCH', /disagree on weightBytes/],
  ['scatter out of block', 'WL_INVALID_ARGUMENT', /fullScatterIndices of rank 1/],
  ['scatter repeated', 'WL_INVALID_ARGUMENT', /name a row of rank \d twice/],
  [
    'layer without AOT kernels',
    'WL_COMPILE',
    /Only kernels compiled ahead of time may be used, but no AOT folder is set/,
  ],
] as const) {
  test(`${scenario}: every rank gets the same ${code}`, { skip: noGpu }, async () => {
    const { exitCode, ranks, transcript } = await runRanks(2, script, { args: [scenario], env });
    assert.equal(exitCode, 0, transcript);
    for (const rank of ranks) {
      const failure = resultOf(rank) as Failure;
      assert.equal(failure.code, code, transcript);
      assert.match(failure.message, message, transcript);
    }
  });
}
