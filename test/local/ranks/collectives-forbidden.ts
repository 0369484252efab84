// allToAll of large tensors where the system forbids rank 1 to read the memory of others, or with "allowed" to nobody; also
// in place on some ranks only.
import type { CpuDevice } from 'weftline';
import { Communicator } from 'weftline/collectives';
import { join } from 'weftline/world';
import { substituteSystemCall } from '#lib/native/system-call.js';
import { openTestDevice } from '../support/test-device.ts';

const EPERM = 1;
let reads = 0;
const isForbidden = process.argv[2] === 'forbidden';

await using world = await join();
substituteSystemCall('process_vm_readv', (real) => (...parameters) => {
  reads += 1;
  if (isForbidden && world.rank === 1) return -EPERM;
  return (real as unknown as (...all: never[]) => unknown)(...parameters);
});
await using device = (await openTestDevice(world)) as CpuDevice;
await using communicator = await Communicator.create(world, device, { directBytes: 1000 });
const count = 5000;
const total = count * world.size;
const readsBefore = reads;
for (let round = 0; round < 6; round++) {
  const from = Int32Array.from({ length: total }, (_, at) => world.rank * 1_000_000 + round * 100_000 + at);
  const input = await device.tensor('i32', [total], from);
  // In every second round the even ranks are in place, which the others do not know.
  const isInPlace = round % 2 === 1 && world.rank % 2 === 0;
  const output = isInPlace ? input : device.empty('i32', [total]);
  await communicator.allToAll({ ...(isInPlace ? {} : { input }), output });
  // The call has ended: nobody reads the input any more.
  if (!isInPlace) input.view().fill(-1);
  const wrong = output.view().findIndex((value, at) => {
    const source = Math.floor(at / count);
    return value !== source * 1_000_000 + round * 100_000 + world.rank * count + (at % count);
  });
  if (wrong !== -1) throw new Error(`rank ${world.rank}, round ${round}: element ${wrong} is ${output.view()[wrong]}`);
}
console.log(`rank ${world.rank}: ${reads - readsBefore} reads`);
await communicator.barrier();
