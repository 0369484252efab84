// A rank that makes calls and is killed in the next one, which rank 0 has entered.
import { CpuDevice } from 'weftline';
import { Communicator } from 'weftline/collectives';
import { join } from 'weftline/world';

const world = await join();
await using device = await CpuDevice.create();
const communicator = await Communicator.create(world, device);
for (let call = 0; call < 3; call++) await communicator.barrier();
if (world.rank === 1) {
  await world.store.get('entered');
  process.kill(process.pid, 'SIGKILL');
}
const last = communicator.barrier();
last.catch(() => {});
await world.store.set('entered', new Uint8Array());
await last;
