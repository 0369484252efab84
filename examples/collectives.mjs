// The collectives of two ranks. Start it once per rank: npx weftline run -n 2 collectives.mjs
import assert from 'node:assert/strict';
import { CpuDevice } from 'weftline';
import { Communicator } from 'weftline/collectives';
import { join } from 'weftline/world';

const world = await join();
if (world.size !== 2) throw new Error('start it with: npx weftline run -n 2 collectives.mjs');
const device = await CpuDevice.create();
const communicator = await Communicator.create(world, device);
const { rank } = world;
try {
  const values = Float32Array.of(1, 2, 3, 4).map((value) => value * (rank + 1));
  const input = await device.tensor('f32', [4], values);
  const sum = device.empty('f32', [4]);
  await communicator.allReduce({ input, output: sum });
  await communicator.broadcast({ output: input, root: 1 }); // in place: the root's elements replace those of the others

  // Each rank sends the other one its sum of the first two; within a group the order does not matter.
  const got = device.empty('f32', [2]);
  const peer = 1 - rank;
  communicator.groupStart();
  await communicator.send({ input: sum.slice(0, 2), peer });
  await communicator.recv({ output: got, peer });
  await communicator.groupEnd();

  console.log(`sum ${sum.view().join(' ')}, of rank 1 ${input.view().join(' ')}, received ${got.view().join(' ')}`);
  assert.deepEqual([...sum.view()], [3, 6, 9, 12]);
} finally {
  await communicator.close();
  await device.close();
  await world.close();
}
