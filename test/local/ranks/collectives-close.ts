// Ranks that need nothing more close at once, while another rank of their host still waits for ranks of other hosts: argv =
// milliseconds that the late rank takes.
import { setTimeout as sleep } from 'node:timers/promises';
import { CpuDevice } from 'weftline';
import { Communicator } from 'weftline/collectives';
import { join } from 'weftline/world';

const late = Number(process.argv[2]);
await using world = await join();
await using device = await CpuDevice.create();
const communicator = await Communicator.create(world, device);
const output = device.empty('f32', [8]);
output.view().fill(1);
await communicator.barrier();
// Rank 1, where two hosts have two ranks each, reaches the root, rank 2, through rank 3, which needs nothing itself.
if (world.rank === 1) await sleep(late);
await communicator.reduce({ output, root: 2 });
if (world.rank === 2 && output.view()[0] !== 4) throw new Error(`the sum is ${output.view()[0]}`);
await communicator.close();

// Rank 1 stands for rank 3 on the host of rank 0, and has closed when the last pieces of a message come.
const message = device.empty('f32', [150_000]);
for (let turn = 1; turn <= 3; turn++) {
  const next = await Communicator.create(world, device);
  await next.barrier();
  if (world.rank === 3) {
    message.view().fill(turn);
    await sleep(5);
    await next.send({ input: message, peer: 0 });
  } else if (world.rank === 0) {
    await next.recv({ output: message, peer: 3 });
    if (!message.view().every((value) => value === turn)) throw new Error(`message ${turn} is not what was sent`);
  }
  await next.close();
}
