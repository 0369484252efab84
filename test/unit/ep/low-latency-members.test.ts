// Which ranks take part in an elastic EpLowLatency, as two ranks over one memory see it.
import assert from 'node:assert/strict';
import test from 'node:test';
import { setImmediate as turn } from 'node:timers/promises';
import { CpuDevice } from 'weftline';
import { lowLatencySize } from 'weftline/ep';
import { Deadline } from '#lib/core/deadline.js';
import type { LowLatencyCells } from '#lib/ep/low-latency/cpu/low-latency-cells.js';
import { LowLatencyJoining } from '#lib/ep/low-latency/cpu/low-latency-joining.js';
import { LowLatencyMembers } from '#lib/ep/low-latency/cpu/low-latency-members.js';
import { LOW_LATENCY_NOTICE } from '#lib/ep/low-latency/low-latency-membership.js';
import type { SymmetricWindow } from '#lib/windows/symmetric-window.js';

const device = await CpuDevice.create();
const size = lowLatencySize({ maxTokensPerRank: 1, hidden: 8, numExperts: 2, maxTopk: 1, elastic: true }, 2);
const cells = { bells: { ringAll: () => {} } } as unknown as LowLatencyCells;

function twoRanks(): { readonly windows: readonly SymmetricWindow[]; readonly members: readonly LowLatencyMembers[] } {
  const storage = device.allocate(2 * size.bytes);
  device.hostView('u8', storage.address, storage.bytes).fill(0);
  const addresses = [storage.address, storage.address + size.bytes];
  const windows = [0, 1].map((index) => {
    return { storage, addresses, index, ranks: [0, 1], isAlive: () => true } as unknown as SymmetricWindow;
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

function never(): never {
  throw new Error('not called');
}
