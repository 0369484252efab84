// Who is to blame, from what ranks say: chains, circles, silence, and kernels that do not say whom they wait for.
import assert from 'node:assert/strict';
import test from 'node:test';
import { causesBehind, conclude } from '#lib/world/watching/conclusion.js';
import { describeJob, describeRank } from '#lib/world/watching/job-text.js';
import type { JobView, RankView } from '#lib/world/watching/job-view.js';

const meters = { sentBytes: 0, receivedBytes: 0, sentPackets: 0, retransmittedPackets: 0, windowBytes: 0 };

function job(ranks: readonly Partial<RankView>[], facts: Partial<JobView> = {}): JobView {
  return {
    jobId: 'job',
    size: ranks.length,
    launchers: [],
    storeError: undefined,
    isStoreBusy: false,
    ranks: ranks.map((view, rank) => ({
      rank,
      state: 'answers',
      host: 'host',
      pid: 100 + rank,
      waits: [],
      objects: [],
      names: [],
      process: undefined,
      cpuShare: undefined,
      rssBytes: undefined,
      meters,
      heardMs: 0,
      ...view,
    })),
    ...facts,
  };
}

const waitsFor = (...ranks: number[]): Pick<RankView, 'waits'> => ({
  waits: [{ operation: 'barrier', ranks, ageMs: 2000, leftMs: 1000 }],
});

function silenceOf(state: string, cpuShare: number | undefined, kernelWait = ''): string {
  const process = { pid: 101, state, cpuMs: 0, mainCpuMs: 0, rssBytes: 0, kernelWait };
  return conclude(job([waitsFor(1), { state: 'silent', process, cpuShare }]), 0).sentences[0]!;
}

function storeTrouble(facts: Partial<JobView>): string {
  return conclude(job([{}, {}], { storeError: 'no answer', ...facts }), 0).sentences[0]!;
}

test('nobody waits: nothing is wrong', () => {
  const { sentences, roots, isTrouble } = conclude(job([{}, {}]), 1000);
  assert.deepEqual([roots, isTrouble], [[], false]);
  assert.deepEqual(sentences, ['2 of 2 ranks answer, and none waits for another']);
});

test('a chain leads to the rank at its end', () => {
  const { roots, sentences, isTrouble } = conclude(job([waitsFor(1), waitsFor(2), {}]), 1000);
  assert.deepEqual([roots, isTrouble], [[2], true]);
  assert.equal(
    sentences[0],
    'Rank 2 is in its own code (process 102 on host): rank 1 has waited for it for 2.0 s, in barrier',
  );
});

test('a wait that is short is no trouble, and one behind its deadline is', () => {
  assert.equal(conclude(job([waitsFor(1), {}]), 3000).isTrouble, false);
  const late = { waits: [{ operation: 'barrier', ranks: [1], ageMs: 2000, leftMs: -1 }] };
  assert.equal(conclude(job([late, {}]), 3000).isTrouble, true);
});

test('ranks that wait for each other are told as a circle', () => {
  const { roots, sentences } = conclude(job([waitsFor(1), waitsFor(2), waitsFor(0)]), 1000);
  assert.deepEqual(new Set(roots), new Set([0, 1, 2]));
  assert.match(
    sentences[0]!,
    /^Ranks wait for each other: rank 0 for rank 1 .*; rank 1 for rank 2 .*; rank 2 for rank 0 /,
  );
});

const inCall = (calls: number): Pick<RankView, 'objects'> => ({
  objects: [{ object: 'EpBuffer', ranks: [0, 1, 2], calls, last: 'combine', isRunning: true }],
});

test('behind a rank stands the one at the end of its chain, though it waits for others too', () => {
  const silent = { state: 'silent' } as const;
  const causes = causesBehind(job([waitsFor(1), waitsFor(0, 2), waitsFor(3), silent, waitsFor(0)]), 0, [1]);
  assert.deepEqual(
    causes.map(({ rank }) => rank),
    [3],
  );
  assert.match(causes[0]!.sentence, /^Rank 3 does not answer.*: rank 2 has waited for it for 2.0 s, in barrier$/);
});

test('a rank that has not come to the call of those who wait is the cause, whatever it waits for itself', () => {
  const view = job([
    { ...waitsFor(1), ...inCall(2) },
    { ...waitsFor(2), ...inCall(2) },
    { ...waitsFor(0, 1), ...inCall(1) },
  ]);
  assert.deepEqual(
    causesBehind(view, 0, [1]).map(({ rank }) => rank),
    [2],
  );
});

test('nobody stands behind ranks that wait for each other', () => {
  assert.deepEqual(causesBehind(job([waitsFor(1), waitsFor(2), waitsFor(1)]), 0, [1]), []);
});

test('a silent rank of the call is the cause where ranks that answer wait for each other, as it may forward', () => {
  const silent = { state: 'silent' } as const;
  const waiting = { ...waitsFor(2), ...inCall(1) };
  const causes = causesBehind(job([waiting, silent, { ...waitsFor(0), ...inCall(1) }]), 0, [2]);
  assert.deepEqual(
    causes.map(({ rank }) => rank),
    [1],
  );
  assert.match(causes[0]!.sentence, /^Rank 1 does not answer.*: it may have to forward what others wait for$/);
  // It takes no part in the call.
  assert.deepEqual(causesBehind(job([waitsFor(2), silent, waitsFor(0)]), 0, [2]), []);
});

test('a silent rank is trouble, also if nobody waits for it yet', () => {
  const process = { pid: 101, state: 'T', cpuMs: 0, mainCpuMs: 0, rssBytes: 0, kernelWait: '' };
  const { roots, sentences, isTrouble } = conclude(job([{}, { state: 'silent', process }]), 1000);
  assert.deepEqual([roots, isTrouble], [[1], true]);
  assert.equal(
    sentences[0],
    'Rank 1 is stopped (SIGSTOP, or a debugger) (process 101 on host); no rank waits for it yet',
  );
});

test('what the system shows of a silent rank: it computes, is blocked, or hangs in a system call', () => {
  assert.match(silenceOf('R', 0.99), /its thread computes \(99 % of a processor\)/);
  // On a busy host; and of a rank of another host, of which nobody knows how much it gets.
  assert.match(silenceOf('R', 0.2), /its thread computes \(20 % of a processor\)/);
  assert.match(silenceOf('R', undefined), /its thread computes \(process/);
  assert.match(silenceOf('R', 0), /its thread is ready to run, but gets no processor \(0 % of a processor\)/);
  assert.match(silenceOf('S', undefined, 'futex_wait_queue'), /its thread is blocked in futex_wait_queue \(process/);
  assert.match(silenceOf('S', 0, 'futex_wait_queue'), /its thread is blocked in futex_wait_queue/);
  assert.match(silenceOf('D', 0, 'nfs_wait'), /hangs in a system call in nfs_wait/);
});

test('peers are ranks by the names of their agents; a stranger is told as such', () => {
  const wait = { operation: 'transfer', peers: ['b'], ageMs: 2000 };
  assert.deepEqual(conclude(job([{ waits: [wait] }, { names: ['b'] }]), 0).roots, [1]);
  // A silent rank cannot say that the name is its own.
  const silent = conclude(job([{ waits: [wait] }, { state: 'silent' }]), 0);
  assert.deepEqual(silent.roots, [1]);
  assert.match(silent.sentences[0]!, /: rank 0 has waited for b, which may be it, for 2\.0 s, in transfer$/);
  const { roots, sentences } = conclude(job([{ waits: [wait] }, {}]), 0);
  assert.deepEqual(roots, []);
  assert.match(sentences[0]!, /rank 0 waits for b, of no rank of this job/);
});

test('a kernel that does not say whom it waits for waits for those that have not come to its call', () => {
  const object = { object: 'EpBuffer', ranks: [0, 1, 2], calls: 5, last: 'combine', isRunning: true };
  const waits = [{ operation: 'GPU: the counts', ageMs: 2000 }];
  const behind = { ...object, calls: 4, last: 'dispatch', isRunning: false };
  const view = job([{ waits, objects: [object] }, { objects: [behind] }, { waits, objects: [object] }]);
  const { roots, sentences } = conclude(view, 1000);
  assert.deepEqual(roots, [1]);
  assert.match(
    sentences[0]!,
    /^Rank 1 has not entered call 5 of EpBuffer \(combine\): its last, 4 \(dispatch\), has ended, and its program is elsewhere \(process 101 on host\): ranks 0, 2 have waited for it/,
  );
});

test('a store that does not answer is the launcher that is stopped or gone, or what the error says', () => {
  const stopped = { pid: 7, state: 'T', cpuMs: 0, mainCpuMs: 0, rssBytes: 0, kernelWait: '' };
  assert.match(storeTrouble({ launchers: [{ pid: 7, process: stopped }] }), /^The launcher, process 7, is stopped/);
  assert.match(storeTrouble({ launchers: [{ pid: 7, process: undefined }] }), /^The launcher, process 7, has ended/);
  assert.equal(storeTrouble({}), 'The store of the job could not be asked: no answer');
});

test('a job of one rank has no store, which is no trouble', () => {
  assert.equal(conclude(job([{ state: 'unknown' }], { storeError: 'no store' }), 0).isTrouble, false);
  const busy = { storeError: '16 others ask this job already', isStoreBusy: true };
  const { isTrouble, sentences } = conclude(job([{ state: 'unknown' }, { state: 'unknown' }], busy), 0);
  assert.equal(isTrouble, false);
  assert.match(sentences[0]!, /were not asked: 16 others/);
});

test('the table is aligned, and a rank with several waits has a line for each', () => {
  const waits = [
    { operation: 'dispatch (opening barrier)', ranks: [1], ageMs: 1500, seen: 1, expected: 2, leftMs: 500 },
    { operation: 'transfer', peers: ['b'], ageMs: 20 },
  ];
  const view = job([{ waits }, {}]);
  const lines = describeJob(view, conclude(view, 0)).split('\n');
  assert.equal(lines[0], 'job job: 2 ranks');
  assert.match(lines[1]!, /^rank {2}host {2}pid {2}state {2}call {2}waits in/);
  assert.match(
    lines[2]!,
    /^0 +host {2}100 {2}waits +dispatch \(opening barrier\) {2}rank 1 {2}1\.5 s {2}1 of 2 {2}0\.5 s$/,
  );
  assert.match(lines[3]!, /^ +transfer +b +0\.0 s$/);
  assert.match(lines[4]!, /^1 +host {2}101 {2}works$/);
  assert.match(describeRank(0, [], []), /^rank 0, process \d+: waits for nothing\n$/);
});
