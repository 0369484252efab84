// Tests which ranks take part in an elastic EpLowLatency, as two ranks over one memory see it.
import assert from 'node:assert/strict';
import test from 'node:test';
import { setImmediate as turn } from 'node:timers/promises';
import { CpuDevice } from 'weftline';
import { lowLatencySize } from 'weftline/ep';
import { wordOffsets } from '#lib/abi/layout.js';
import { lowLatencyMember } from '#lib/abi/low-latency.js';
import { Deadline } from '#lib/core/deadline.js';
import { LowLatencyCells } from '#lib/ep/low-latency/members/low-latency-cells.js';
import { LowLatencyJoining } from '#lib/ep/low-latency/members/low-latency-joining.js';
import { LowLatencyMembers } from '#lib/ep/low-latency/members/low-latency-members.js';
import { LOW_LATENCY_NOTICE } from '#lib/ep/low-latency/low-latency-results.js';
import type { SymmetricWindow } from '#lib/windows/symmetric-window.js';

const device = await CpuDevice.create();
const size = lowLatencySize({ maxTokensPerRank: 1, hidden: 8, numExperts: 2, maxTopk: 1, elastic: true }, 2);
/** The last dispatch that each rank has begun. */
const dispatched = [0, 0];
const cells = {
  bells: { ringAll: () => {} },
  dispatchOf: (rank: number) => dispatched[rank]!,
  get lastDispatch() {
    return Math.max(...dispatched);
  },
} as unknown as LowLatencyCells;

function twoRanks(
  isAlive: (rank: number) => boolean = () => true,
  hasMarks = false,
): {
  readonly windows: readonly SymmetricWindow[];
  readonly members: readonly LowLatencyMembers[];
} {
  const storage = device.allocate(2 * size.bytes);
  device.hostView('u8', storage.address, storage.bytes).fill(0);
  const addresses = [storage.address, storage.address + size.bytes];
  const windows = [0, 1].map((index) => {
    return { storage, addresses, index, ranks: [0, 1], isAlive } as unknown as SymmetricWindow;
  });
  return {
    windows,
    members: windows.map((window) => new LowLatencyMembers(device, window, { ...size, hasMarks }, cells)),
  };
}

test('a rank that is disconnected takes part until the notice is over', () => {
  const [here, there] = twoRanks().members as [LowLatencyMembers, LowLatencyMembers];
  here.deactivate(1, 10);
  assert.deepEqual([here.isActive(1, 10), here.isStaying(1, 10)], [true, false]);
  assert.equal(there.isActive(1, 10 + LOW_LATENCY_NOTICE - 1), true);
  assert.equal(there.isActive(1, 10 + LOW_LATENCY_NOTICE), false);
});

test('a rank that is disconnected before it takes part is gone: nobody waits for it', () => {
  const [here, there] = twoRanks().members as [LowLatencyMembers, LowLatencyMembers];
  there.offer();
  here.activate(1, 10);
  here.deactivate(1, 11);
  for (let dispatch = 10; dispatch < 10 + 3 * LOW_LATENCY_NOTICE; dispatch++) {
    assert.equal(here.isActive(1, dispatch), false, `dispatch ${dispatch}`);
  }
  assert.equal(there.activeFrom(), undefined);
});

test('connecting a rank that leaves waits until it has left and is connected again', async () => {
  const { windows, members } = twoRanks();
  const [here, there] = members as [LowLatencyMembers, LowLatencyMembers];
  const engine = { dispatch: () => 10, prepare: () => Promise.resolve(), beginAt: () => {}, shortfall: () => never() };
  const joining = new LowLatencyJoining({
    group: { rank: 0, ranks: [0, 1] },
    window: windows[0]!,
    cells,
    members: here,
    engine,
  });
  const wait = { deadline: new Deadline(60_000), signal: undefined };
  // An active one is connected already.
  await joining.connect([1], true, wait);
  joining.disconnect([1], 11);
  let isDone = false;
  const connecting = joining.connect([1], true, wait).then(() => (isDone = true));
  await turn();
  assert.equal(isDone, false);
  there.offer();
  await connecting;
  assert.equal(there.activeFrom(), 11 + LOW_LATENCY_NOTICE);
});

test('a rank founds anew when nobody takes part: behind all dispatches, and in spite of a rank that has left', () => {
  const [here, there] = twoRanks().members as [LowLatencyMembers, LowLatencyMembers];
  there.offer();
  assert.equal(there.found(), undefined, 'rank 0 is active');
  here.deactivate(0, 10);
  dispatched[0] = 10;
  assert.equal(there.found(), undefined, 'rank 0 takes part until the notice is over');
  dispatched[0] = 10 + LOW_LATENCY_NOTICE - 1;
  dispatched[1] = 3;
  const first = dispatched[0] + LOW_LATENCY_NOTICE;
  assert.equal(there.found(), first);
  assert.deepEqual(
    [there.isActive(1, first - 1), here.isActive(1, first), here.isActive(0, first)],
    [false, true, false],
  );
  dispatched.fill(0);
});

test('a rank that died while it was about to found does not keep its next process, or others, from it', () => {
  const { windows, members } = twoRanks((rank) => rank === 1);
  const words = device.hostView('i32', windows[0]!.addresses[0]!, size.bytes / 4);
  const { epoch, founder } = wordOffsets(lowLatencyMember);
  const at = size.regions.member.offset / 4 + founder;
  assert.notEqual(epoch, founder);
  members[1]!.offer();
  for (const holder of [1, 2]) {
    Atomics.store(words, at, holder);
    assert.equal(members[1]!.found(), LOW_LATENCY_NOTICE, `holder ${holder}`);
    assert.equal(Atomics.load(words, at), 0);
    members[1]!.offer();
  }
});

test('a mark of a kernel masks a rank on all hosts, and holds no longer than the word that it was made for', () => {
  const { windows, members } = twoRanks(undefined, true);
  const [here, there] = members as [LowLatencyMembers, LowLatencyMembers];
  const words = device.hostView('i32', windows[0]!.addresses[0]!, size.bytes / 4);
  const member = wordOffsets(lowLatencyMember);
  const mark = size.regions.member.offset / 4 + member.marks + 1;
  const wordOf = (rank: number): number => size.regions.member.offset / 4 + rank * (size.bytes / 4) + member.word;
  const both = device.hostView('i32', windows[0]!.addresses[0]!, size.bytes / 2);
  // What a kernel of rank 0 stores when rank 1 is late.
  Atomics.store(words, mark, Atomics.load(both, wordOf(1)) ^ 1);
  const { epoch } = here;
  assert.equal(there.isActive(1, 5), false);
  assert.equal(here.epoch, epoch + 1);
  assert.deepEqual([here.isActive(0, 5), here.isKnown(1)], [true, false]);
  there.offer();
  assert.equal(here.isConnected(1), true, 'no mark masks a rank that only waits');
  here.activate(1, 10);
  assert.deepEqual([here.isActive(1, 17), here.isActive(1, 18), there.isActive(1, 18)], [false, true, true]);
  // One that leaves can be late too.
  here.deactivate(1, 20);
  assert.equal(there.isActive(1, 27), true);
  Atomics.store(words, mark, Atomics.load(both, wordOf(1)) ^ 1);
  assert.equal(there.isActive(1, 27), false);
});

test('words are written anew long before their numbers are too old, and not for what may still be under way', () => {
  const [here, there] = twoRanks().members as [LowLatencyMembers, LowLatencyMembers];
  const period = 2 ** 20;
  there.offer();
  here.activate(1, period - LOW_LATENCY_NOTICE - 2);
  for (let dispatch = 0; dispatch < 2 ** 31; dispatch += period) {
    here.refresh(dispatch);
    there.refresh(dispatch);
    // Kernels may be behind their hosts, ahead of which nobody is.
    for (const at of [dispatch - 1000, dispatch, dispatch + 1]) {
      if (at < period) continue;
      assert.deepEqual([here.isActive(0, at), here.isActive(1, at)], [true, true], `dispatch ${at} at ${dispatch}`);
    }
    if (dispatch === period) assert.equal(here.isActive(1, period - 3), false, 'before it joined');
  }
});

function never(): never {
  throw new Error('not called');
}

test('a rank that a kernel masked before its time came can be connected again in the same dispatch', () => {
  const { windows, members } = twoRanks(() => true, true);
  const [here, there] = members as [LowLatencyMembers, LowLatencyMembers];
  there.offer();
  here.activate(1, 10);
  const { storage, addresses } = windows[0]!;
  const words = device.hostView('i32', storage.address, storage.bytes / 4);
  const place = (rank: number): number => (addresses[rank]! - storage.address + size.regions.member.offset) / 4;
  const { word, marks } = wordOffsets(lowLatencyMember);
  // As maskRank() of members.cuh does.
  words[place(0) + marks + 1] = words[place(1) + word]! ^ 1;
  assert.equal(here.isKnown(1), false);
  there.offer();
  here.activate(1, 10);
  assert.equal(here.isKnown(1), true);
  assert.equal(here.isActive(1, there.activeFrom()!), true);
});

test('a rank that was away while numbers wrapped joins at the full number, and its old words do not seem to be ahead', async () => {
  const { windows } = twoRanks();
  const [near, far] = windows.map((window) => new LowLatencyCells(device, window, size)) as [
    LowLatencyCells,
    LowLatencyCells,
  ];
  const here = new LowLatencyMembers(device, windows[0]!, size, near);
  const there = new LowLatencyMembers(device, windows[1]!, size, far);
  here.mask(1);
  // Combines, 16 numbers for each dispatch, are half the numbers of 32 bits ahead.
  const last = 2 ** 32 + 2 ** 27;
  near.publish('dispatched', last);
  near.publish('combined', last * 16 + 1);
  const window = Object.assign(Object.create(windows[1]!) as SymmetricWindow, {
    barrier: { failure: { reason: () => undefined } },
  });
  let begun = 0;
  const engine = {
    dispatch: () => 0,
    prepare: () => Promise.resolve(),
    beginAt: (dispatch: number) => (begun = dispatch),
    shortfall: () => never(),
  };
  const joining = new LowLatencyJoining({
    group: { rank: window.index, ranks: [0, 1] },
    window,
    cells: far,
    members: there,
    engine,
  });
  const rejoining = joining.rejoin({ deadline: new Deadline(60_000), signal: undefined });
  while (!here.isConnected(1)) await turn();
  here.activate(1, last + 1);
  const first = await rejoining;
  assert.deepEqual([first, begun], [last + 1 + LOW_LATENCY_NOTICE, first]);
  assert.equal(here.isActive(1, first), true);
  assert.deepEqual(
    [
      near.hasReached(1, 'dispatched', first),
      near.hasReached(1, 'released', first),
      near.hasReached(1, 'combined', first * 16 + 1),
      near.hasReached(1, 'taken', first * 16 + 1, 0),
      near.hasReached(1, 'taken', first * 16 + 1, 1),
    ],
    Array(5).fill(false),
  );
});
