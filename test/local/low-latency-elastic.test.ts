// Elastic EpLowLatency: ranks that are killed, stop, are masked and come back; and the launcher that starts them again.
import assert from 'node:assert/strict';
import test from 'node:test';
import { resultOf, runRanks } from './support/run-ranks.ts';
import { testSeed } from '../support/seed.ts';
import { sampled } from '../support/extent.ts';

const killed = new URL('./ranks/low-latency-killed.js', import.meta.url);
const founders = new URL('./ranks/low-latency-founders.js', import.meta.url);
const faults = new URL('./ranks/low-latency-elastic.js', import.meta.url);
const seed = testSeed();

interface Outcome {
  readonly life: number;
  readonly firstDispatch: number;
  readonly end: number;
  readonly without: number;
  readonly longestMs: number;
  readonly deadlineMs: number;
}

/** Three ranks on one host or several, which this machine pretends. */
const hostsOfThree = ['1', '3', '2+1', '1+2'] as const;
const kills = (['killed', 'late', 'disconnected', 'stopped'] as const).flatMap((how) =>
  hostsOfThree.map((hosts) => ({ how, hosts })),
);
for (const { how, hosts } of sampled(kills, 5)) {
  const name = `a rank that is ${how} in mid-call: the others complete within the deadline, and it joins again, hosts ${hosts}`;
  test(name, async () => {
    const run = await runRanks(3, killed, { args: [how], maxRestarts: 1, env: { WEFTLINE_HOSTS: hosts } });
    assert.equal(run.exitCode, 0, run.transcript);
    const [first, victim, third] = run.ranks.map((rank) => resultOf(rank) as Outcome);
    for (const other of [first!, third!]) {
      assert.ok(other.without > 0, run.transcript);
      // One that is dead or was disconnected is noticed long before the deadline. One that is late or stopped comes back after calls without it.
      if (how === 'killed' || how === 'disconnected') assert.ok(other.longestMs <= other.deadlineMs, run.transcript);
    }
    assert.equal(victim?.end, first?.end);
    assert.equal(victim?.life, how === 'killed' ? 1 : 0);
    assert.equal(victim?.firstDispatch === 1, how !== 'killed');
    assert.deepEqual(
      run.notices,
      how === 'killed' ? ['rank 1 ended with signal SIGKILL; it is started again (1 of 1)'] : [],
    );
  });
}

test('a rank joins between two dispatches that overlap: calls of all go on', async () => {
  const overlapped = new URL('./ranks/low-latency-overlapped.js', import.meta.url);
  const run = await runRanks(2, overlapped, { args: ['joins'] });
  assert.equal(run.exitCode, 0, run.transcript);
});

test('a whole host is killed in mid-call: the other one goes on, and the host comes back in memory that it makes anew', async () => {
  const run = await runRanks(4, killed, { args: ['host'], maxRestarts: 1, env: { WEFTLINE_HOSTS: '2' } });
  assert.equal(run.exitCode, 0, run.transcript);
  const outcomes = run.ranks.map((rank) => resultOf(rank) as Outcome);
  for (const other of outcomes.slice(0, 2))
    assert.ok(other.without > 0 && other.longestMs <= other.deadlineMs, run.transcript);
  for (const victim of outcomes.slice(2))
    assert.deepEqual([victim.life, victim.end], [1, outcomes[0]!.end], run.transcript);
});

for (const hosts of ['1', '3', '2+1']) {
  test(`the last active rank dies while the others wait to be connected: they begin anew by themselves, hosts ${hosts}`, async () => {
    const run = await runRanks(3, founders, { maxRestarts: 1, env: { WEFTLINE_HOSTS: hosts } });
    assert.equal(run.exitCode, 0, run.transcript);
    assert.deepEqual(run.notices, ['rank 0 ended with signal SIGKILL; it is started again (1 of 1)']);
    const [first, ...others] = run.ranks.map(
      (rank) => resultOf(rank) as { readonly end: number; readonly life: number },
    );
    assert.equal(first?.life, 1);
    for (const other of others) assert.equal(other.end, first?.end, run.transcript);
  });
}

/** WEFTLINE_TEST_EP=… multiplies the dispatches; the seed stands in every failure's output. */
const times = Number(process.env['WEFTLINE_TEST_EP'] ?? 1);
// All of them only where there is time.
const modes = times > 1 ? ['rank-sums', 'choices', 'rank-major'] : [['rank-sums', 'choices', 'rank-major'][seed % 3]!];
const places = [
  { ranks: 3, hosts: '1' },
  { ranks: 3, hosts: '3' },
  { ranks: 4, hosts: '2' },
  { ranks: 4, hosts: '1+3' },
];
const shapes = modes.flatMap((mode) => places.map((place) => ({ mode, ...place })));
for (const { mode, ranks, hosts } of shapes) {
  test(`random deaths, masks and joins, every result as the reference says: ${mode}, ${ranks} ranks, hosts ${hosts}`, async () => {
    const dispatches = 100 * times;
    const args = [String(seed), mode, String(dispatches), String(2 * times)];
    const env = { WEFTLINE_HOSTS: hosts };
    const run = await runRanks(ranks, faults, { args, env, maxRestarts: 4 * times, timeoutMs: 600_000 * times });
    assert.equal(run.exitCode, 0, `seed ${seed}\n${run.transcript}`);
    // A rank that fails by itself is started again too, and must not pass for one that was killed.
    for (const notice of run.notices) assert.match(notice, /signal SIGKILL/, `seed ${seed}\n${run.transcript}`);
    const { checked } = resultOf(run.ranks[0]) as { readonly checked: number };
    assert.ok(checked > dispatches / 2, run.transcript);
  });
}

test('a rank that fails again and again ends the job, which says why', async () => {
  const failing = new URL('./ranks/fails-again.js', import.meta.url);
  const run = await runRanks(2, failing, { maxRestarts: 2 });
  assert.equal(run.exitCode, 1);
  assert.deepEqual(run.notices.slice(0, 2), [
    'rank 1 ended with exit code 1: the weights are missing; it is started again (1 of 2)',
    'rank 1 ended with exit code 1: the weights are missing; it is started again (2 of 2)',
  ]);
  assert.match(run.notices[2] ?? '', /the job failed: rank 1 .* exit code 1/);
  assert.deepEqual(run.ranks[1]?.stdout, ['life 0 among 0, 1', 'life 1 among 0, 1', 'life 2 among 0, 1']);
});
