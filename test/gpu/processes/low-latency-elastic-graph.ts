// Calls of an elastic EpLowLatency while a graph is recorded: refused by name, and the object works on.
import assert from 'node:assert/strict';
import type { CudaDevice } from 'weftline';
import { EpLowLatency } from 'weftline/ep';
import { join } from 'weftline/world';
import { random } from '../../local/ranks/ep-case.ts';
import { makeShapes } from '../../local/ranks/low-latency-shapes.ts';
import { openTestDevice } from '../../local/support/test-device.ts';

await using world = await join();
await using device = (await openTestDevice(world)) as CudaDevice;
const shapes = await makeShapes(world, device, random(world.rank + 1));
const mode = 'rank-sums';
const ll = await EpLowLatency.create(world, device, { ...shapes.config(mode), elastic: true });
const args = { ...shapes.dispatchArgs(mode), returnRecvHook: false } as const;
const refused = { code: 'WL_UNSUPPORTED', message: /Cannot record a call of an elastic EpLowLatency in a graph/ };
const result = await ll.dispatch(args);
await assert.rejects(
  device.capture(async () => {
    await ll.dispatch(args);
  }),
  refused,
);
await assert.rejects(
  device.capture(async () => {
    await ll.combine({ ...shapes.combineArgs(mode, result), returnRecvHook: false });
  }),
  refused,
);
const { activeMask } = await ll.combine({ ...shapes.combineArgs(mode, result), returnRecvHook: false });
assert.deepEqual([...(await activeMask!.toHost())], [1, 1]);
await world.store.barrier('done');
await ll.close();
