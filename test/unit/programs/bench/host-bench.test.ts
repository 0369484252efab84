// The expert-parallel bench across hosts: which rows count, and what the document makes of the ranks' times.
import assert from 'node:assert/strict';
import test from 'node:test';
import { traceBegin, traceEnd, addTraceSink } from '#lib/core/trace.js';
import { phaseNames, PhaseTimes, summarizeHostCases } from '#lib/programs/bench/ep/ep-hosts.js';
import { countHostRows, countTokensOfHosts } from '#lib/programs/bench/ep/ep-workload.js';
import { Samples } from '#lib/programs/bench/harness.js';

const hosts = [[0, 1], [2]];

test('a row counts once per token and other host; further ranks there get copies', () => {
  // Tokens of rank 2: one to both ranks of host 0 and to itself, one to rank 1, one to nobody.
  const inRanks = Uint8Array.from([1, 1, 1, 0, 1, 0, 0, 0, 0]);
  assert.deepEqual(countTokensOfHosts(inRanks, hosts), [2, 1]);
  const rows = [
    [0, 0, 0],
    [0, 0, 0],
    [1, 2, 1],
  ];
  const tokens = [
    [0, 0],
    [0, 0],
    [2, 1],
  ];
  assert.deepEqual(countHostRows(hosts, rows, tokens), { network: 2, ownHost: 1, forwarded: 1 });
});

type Times = Parameters<typeof summarizeHostCases>[0][number]['ranks'][number];

function timesOf(microseconds: readonly number[], sent: number, network: number): Times {
  const phases = phaseNames.map((phase) => [phase, microseconds.map(() => (phase === 'network' ? network : 0))]);
  return { microseconds, sentBytes: microseconds.map(() => sent), ...Object.fromEntries(phases) } as Times;
}

test('the slowest rank counts, and ratios compare bytes with the carrier of the same iteration', () => {
  const rows = { network: 10, ownHost: 5, forwarded: 3 };
  const traffic = [
    { name: 'carrier', description: '', rows, rowBytes: 100 },
    { name: 'call', description: '', rows, rowBytes: 200, carrier: 'carrier' },
  ];
  const times = [
    new Samples([timesOf([10, 40], 500, 0), timesOf([20, 30], 500, 0)]),
    new Samples([timesOf([80, 90], 1000, 50), timesOf([70, 160], 1100, 40)]),
  ];
  const [bare, call] = summarizeHostCases(times, traffic);
  assert.equal(bare!.ratioToCarrier, undefined);
  assert.deepEqual([bare!.microseconds.min, bare!.microseconds.max], [20, 40]);
  assert.equal(call!.networkBytes, 2000);
  assert.equal(call!.hostBytes, 1600);
  assert.equal(call!.sentBytes, 2100);
  assert.deepEqual([call!.microseconds.min, call!.microseconds.max], [80, 160]);
  // Twice the bytes of the carrier: 40 and 80 would be as good.
  assert.deepEqual([call!.ratioToCarrier!.min, call!.ratioToCarrier!.max], [0.5, 0.5]);
  assert.equal(call!.networkPhase!.microseconds.max, 50);
  assert.deepEqual(call!.phases, { network: 45 });
});

test('a sink is told of points while it is set; those that are no phase are ignored', () => {
  const times = new PhaseTimes();
  const removeSink = addTraceSink(times);
  traceBegin('ep.dispatch.network');
  traceBegin('transport.burst');
  traceEnd('transport.burst');
  traceEnd('ep.dispatch.network');
  removeSink();
  const first = times.microseconds.network;
  assert.ok(first > 0);
  traceBegin('ep.combine.network');
  traceEnd('ep.combine.network');
  assert.equal(times.microseconds.network, first);
  times.reset();
  assert.deepEqual(
    Object.values(times.microseconds),
    phaseNames.map(() => 0),
  );
});
