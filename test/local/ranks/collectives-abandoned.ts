// A large allToAll that rank 0 gives up, and whose input it then changes or gives back, while rank 1 still reads that: rank 1 must
// not end well. argv = a file that tells, and what rank 1 finds: "changed" or "unmapped".
import { existsSync, writeFileSync } from 'node:fs';
import type { CpuDevice, WeftlineError } from 'weftline';
import { Communicator } from 'weftline/collectives';
import { join } from 'weftline/world';
import { substituteSystemCall } from '#lib/native/system-call.js';
import { openTestDevice } from '../support/test-device.ts';

const EFAULT = 14;
const [changed, found] = process.argv.slice(2) as [string, string];
const pause = new Int32Array(new SharedArrayBuffer(4));

function waitUntilChanged(): void {
  while (!existsSync(changed)) Atomics.wait(pause, 0, 0, 10);
}

await using world = await join();
let isLate = false;
substituteSystemCall('process_vm_readv', (real) => (...parameters) => {
  if (isLate) waitUntilChanged();
  if (isLate && found === 'unmapped') return -EFAULT;
  return (real as unknown as (...all: never[]) => unknown)(...parameters);
});
await using device = (await openTestDevice(world)) as CpuDevice;
await using communicator = await Communicator.create(world, device, { directBytes: 1000 });
const total = 5000 * world.size;
const input = await device.tensor('i32', [total], new Int32Array(total).fill(world.rank + 1));
const output = device.empty('i32', [total]);
await communicator.allToAll({ input, output });
isLate = world.rank === 1;
let ended = 'well';
try {
  await communicator.allToAll({ input, output, ...(world.rank === 0 && { timeoutMs: 300 }) });
} catch (error) {
  ended = (error as WeftlineError).code;
}
if (world.rank === 0) {
  input.view().fill(-1);
  writeFileSync(changed, '');
}
const isRight = output.view().every((value, at) => value === Math.floor(at / 5000) + 1);
console.log(JSON.stringify({ ended, isRight }));
