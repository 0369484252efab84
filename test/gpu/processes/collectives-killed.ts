// Rank 1 kills itself before a call; the others print how they were told.
import type { WeftlineError } from 'weftline';
import { Communicator } from 'weftline/collectives';
import { join } from 'weftline/world';
import { openTestDevice } from '../../local/support/test-device.ts';

const world = await join();
const device = await openTestDevice(world);
const communicator = await Communicator.create(world, device);
const output = device.empty('f32', [1 << 20]);
await communicator.allReduce({ output });
if (device.kind === 'cuda') await device.stream.idle();
await world.barrier('ready');
if (world.rank === 1) process.kill(process.pid, 'SIGKILL');
try {
  await communicator.allReduce({ output, timeoutMs: 20_000 });
  await output.toHost();
  console.log(JSON.stringify({ code: 'ok', message: '' }));
} catch (error) {
  const { code, message } = error as WeftlineError;
  console.log(JSON.stringify({ code, message }));
}
process.exit(0);
