// The same low-latency calls again and again with random sleeps on random ranks, and a digest of all bytes: argv = repeats.
import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { setTimeout as sleep } from 'node:timers/promises';
import type { Tensor } from 'weftline';
import { EpLowLatency } from 'weftline/ep';
import { join } from 'weftline/world';
import { openTestDevice } from '../support/test-device.ts';
import { random } from './ep-case.ts';
import { makeShapes, type LowLatencyMode, modesOn } from './low-latency-shapes.ts';

const repeats = Number(process.argv[2]);
await using world = await join();
await using device = await openTestDevice(world);
const next = random(world.rank + 1);
const shapes = await makeShapes(world, device, next);

async function once(ll: EpLowLatency, mode: LowLatencyMode): Promise<string> {
  const digest = createHash('sha256');
  const add = async (tensor: Tensor) => digest.update(await tensor.toHost());
  if (next() < 0.2) await sleep(next() * 8);
  const result = await ll.dispatch({ ...shapes.dispatchArgs(mode), returnRecvHook: false });
  await add(result.recvCount);
  await add(result.handle.recvSrcIdx);
  if (next() < 0.2) await sleep(next() * 8);
  const { combinedX } = await ll.combine({ ...shapes.combineArgs(mode, result), returnRecvHook: false });
  await add(combinedX);
  combinedX.close();
  return digest.digest('hex');
}

for (const mode of modesOn(device, world.topology.hosts.length)) {
  await using ll = await EpLowLatency.create(world, device, shapes.config(mode));
  const first = await once(ll, mode);
  for (let repeat = 1; repeat < repeats; repeat++) {
    assert.equal(await once(ll, mode), first, `${mode}, repeat ${repeat} on rank ${world.rank}`);
  }
  await ll.barrier();
}
