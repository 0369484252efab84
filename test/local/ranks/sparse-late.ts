// Ranks of `weftline run --aggregators` that join later than the deadline, and whose first creation is refused.
import assert from 'node:assert/strict';
import { setTimeout as sleep } from 'node:timers/promises';
import { CpuDevice } from 'weftline';
import { SparseAllReduce } from 'weftline/collectives';
import { join } from 'weftline/world';

const LATE_MS = 2_500;
/** Time of these ranks alone: that of the job is over before they join, and one that has its processor late has longer for it. */
const patient = { timeoutMs: 60_000 };

if (process.argv[2] !== 'never') {
  await sleep(LATE_MS);
  const world = await join({ settings: patient });
  const device = await CpuDevice.create();
  // What one rank says and JSON cannot: all hear of it.
  for (const [blockSize, message] of [
    [7, /blockSize.*got 7/],
    [256n as never, /blockSize.*got 256n/],
    [Number.NaN, /blockSize.*got NaN/],
  ] as const) {
    const options = world.rank === 0 ? { blockSize } : { blockSize: 64 };
    await assert.rejects(SparseAllReduce.create(world, device, options), { code: 'WL_INVALID_ARGUMENT', message });
  }
  const reducer = await SparseAllReduce.create(world, device, { blockSize: 64 });
  const output = device.empty('f32', [64]);
  output.view().fill(1);
  await reducer.allReduce({ output });
  console.log(`the sum is ${output.view()[0]}`);
  await reducer.close();
  await world.close();
}
