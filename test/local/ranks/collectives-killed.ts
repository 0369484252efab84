// One rank kills itself before or within a call; the others print how they were told: argv = what, the rank.
import { CpuDevice, type WeftlineError } from 'weftline';
import { Communicator } from 'weftline/collectives';
import { join } from 'weftline/world';

const [what, victimText] = process.argv.slice(2);
const world = await join();
const device = await CpuDevice.create();
const isVictim = world.rank === Number(victimText);
console.log(`job ${world.filePrefix}`);
const die = (): void => void process.kill(process.pid, 'SIGKILL');
const output = device.empty('f32', [8 << 20]);
output.view().fill(1);

/** Copies until the victim dies. */
let copiesLeft = Infinity;
if (isVictim) {
  const kernels = new Proxy(device.kernels, {
    get: (target, property) => {
      if (property === 'copyBytes' && --copiesLeft === 0) die();
      return Reflect.get(target, property, target) as unknown;
    },
  });
  Object.defineProperty(device, 'kernels', { value: kernels });
}
const communicator = await Communicator.create(world, device);

const calls: Readonly<Record<string, () => Promise<unknown>>> = {
  'before a barrier': async () => {
    if (isVictim) die();
    await communicator.barrier({ timeoutMs: 60_000 });
  },
  'within an allReduce': async () => {
    copiesLeft = 9;
    await communicator.allReduce({ output, timeoutMs: 60_000 });
  },
  'before a message': async () => {
    if (isVictim) die();
    if (world.rank === 0) await communicator.recv({ output, peer: Number(victimText), timeoutMs: 60_000 });
    await communicator.barrier({ timeoutMs: 60_000 });
  },
};

await communicator.barrier();
// What a rank of another host has posted may still be on its way when it dies.
await world.barrier('ready');
const begin = performance.now();
try {
  await calls[what!]!();
  console.log(JSON.stringify({ code: 'ok', message: '', ms: 0 }));
} catch (error) {
  const { code, message } = error as WeftlineError;
  console.log(JSON.stringify({ code, message, ms: performance.now() - begin }));
}
process.exit(0);
