// The way of a device's kernels to ranks on other hosts: what commands bring over several lanes, and how ends are told. The
// device is a CPU here, which pushes the commands that kernels push.
import assert from 'node:assert/strict';
import test from 'node:test';
import { isWhole, sampled } from '../support/extent.ts';
import { resultOf, runRanks } from './support/run-ranks.ts';

const script = new URL('./support/proxy-network-rank.js', import.meta.url);

interface Told {
  readonly channels: number;
  readonly peers: readonly number[];
  readonly heard: readonly { readonly code: string; readonly peer: number }[];
  readonly reason?: string;
}

for (const [hosts, ranks, engines] of [
  ['1+2', 3, '2'],
  ...(isWhole
    ? ([
        ['2', 2, '1'],
        ['2', 4, '2'],
        ['2', 2, '2'],
        ['2', 4, '1'],
        ['1+2', 3, '1'],
      ] as const)
    : []),
] as const) {
  test(`rows and signals arrive on ${engines} lanes, between ${ranks} ranks on hosts ${hosts}`, async () => {
    const env = { WEFTLINE_HOSTS: hosts, WEFTLINE_TRANSPORT_ENGINES: engines };
    const { exitCode, ranks: ended, transcript } = await runRanks(ranks, script, { args: ['all', '-1'], env });
    assert.equal(exitCode, 0, transcript);
    for (const rank of ended) assert.equal((resultOf(rank) as Told).channels, Number(engines), transcript);
  });
}

for (const [scenario, code] of sampled(
  [
    ['kill', 'WL_PEER_LOST'],
    ['close', 'WL_CLOSED'],
  ] as const,
  1,
)) {
  test(`${scenario}: the peers of a rank hear of it by its number`, async () => {
    const env = { WEFTLINE_HOSTS: '2' };
    const { ranks, transcript } = await runRanks(4, script, { args: [scenario, '1'], env, graceMs: 60_000 });
    for (const rank of [0, 2, 3]) {
      const { peers, heard } = resultOf(ranks[rank]) as Told;
      const expected = peers.includes(1) ? [{ code, peer: 1 }] : [];
      assert.deepEqual(heard, expected, transcript);
    }
  });
}

test('a rank that gives up tells its peers why, and nobody else', async () => {
  const env = { WEFTLINE_HOSTS: '2' };
  const { exitCode, ranks, transcript } = await runRanks(4, script, { args: ['give up', '2'], env });
  assert.equal(exitCode, 0, transcript);
  const [first] = ranks.map((rank) => resultOf(rank) as Told);
  for (const rank of [0, 1, 3]) {
    const { peers, reason } = resultOf(ranks[rank]) as Told;
    assert.equal(reason, peers.includes(2) ? 'Rank 2 gave up: out of luck' : undefined, transcript);
  }
  assert.deepEqual(first?.peers, [2]);
});

test('what was pushed last is delivered before its rank closes', async () => {
  const env = { WEFTLINE_HOSTS: '2' };
  const { exitCode, transcript } = await runRanks(4, script, { args: ['last words', '3'], env });
  assert.equal(exitCode, 0, transcript);
});

test('what was pushed last is delivered although its rank ends without closing anything', async () => {
  const env = { WEFTLINE_HOSTS: '2' };
  const { exitCode, transcript } = await runRanks(4, script, { args: ['no close', '3'], env });
  assert.equal(exitCode, 0, transcript);
});
