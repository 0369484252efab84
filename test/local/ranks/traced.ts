// A rank that makes calls and is killed in the next one, which rank 0 has entered.
import { CpuDevice } from 'weftline';
import { Communicator } from 'weftline/collectives';
import { join } from 'weftline/world';

const world = await join();
await using device = await CpuDevice.create();
const communicator = await Communicator.create(world, device);
for (let call = 0; call < 3; call++) await communicator.barrier();
if (world.rank === 1) {
  await new Promise((resolve) => setTimeout(resolve, 100));
  process.kill(process.pid, 'SIGKILL');
}
await communicator.barrier();
