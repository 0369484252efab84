// Which ranks take part in an elastic EpLowLatency, as two ranks over one memory see it.
import assert from 'node:assert/strict';
import test from 'node:test';
import { setImmediate as turn } from 'node:timers/promises';
import { CpuDevice } from 'weftline';
import { lowLatencySize } from 'weftline/ep';
import { wordOffsets } from '#lib/abi/layout.js';
import { lowLatencyMember } from '#lib/abi/low-latency.js';
import { Deadline } from '#lib/core/deadline.js';
import type { LowLatencyCells } from '#lib/ep/low-latency/members/low-latency-cells.js';
import { LowLatencyJoining } from '#lib/ep/low-latency/members/low-latency-joining.js';
import { LowLatencyMembers } from '#lib/ep/low-latency/members/low-latency-members.js';
import { LOW_LATENCY_NOTICE } from '#lib/ep/low-latency/low-latency-membership.js';
import type { SymmetricWindow } from '#lib/windows/symmetric-window.js';

const device = await CpuDevice.create();
const size = lowLatencySize({ maxTokensPerRank: 1, hidden: 8, numExperts: 2, maxTopk: 1, elastic: true }, 2);
/** By rank: the last dispatch that it has begun. */
const dispatched = [0, 0];
const cells = {
  bells: { ringAll: () => {} },
  reached: (rank: number) => dispatched[rank]!,
} as unknown as LowLatencyCells;

function twoRanks(isAlive: (rank: number) => boolean = () => true): {
  readonly windows: readonly SymmetricWindow[];
  readonly members: readonly LowLatencyMembers[];
} {
  const storage = device.allocate(2 * size.bytes);
  device.hostView('u8', storage.address, storage.bytes).fill(0);
  const addresses = [storage.address, storage.address + size.bytes];
  const windows = [0, 1].map((index) => {
    return { storage, addresses, index, ranks: [0, 1], isAlive } as unknown as SymmetricWindow;
  });
  return { windows, members: windows.map((window) => new LowLatencyMembers(device, window, size, cells)) };
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
  const joining = new LowLatencyJoining({ window: windows[0]!, cells, members: here, engine });
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

function never(): never {
  throw new Error('not called');
}
