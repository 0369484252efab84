// One rank kills itself before or within a sparse all-reduce; the others print how they were told: argv = what, the rank, and
// 'tree' where rank 3 is an aggregator below rank 4.
import { CpuDevice, type WeftlineError } from 'weftline';
import { SparseAllReduce } from 'weftline/collectives';
import { join } from 'weftline/world';

const [what, victimText, shape] = process.argv.slice(2);
const world = await join();
const device = await CpuDevice.create();
const isVictim = world.rank === Number(victimText);
console.log(`job ${world.filePrefix}`);
const output = device.empty('f32', [1 << 20]);
output.view().fill(1);

/** Calls of these kernels until the victim dies: those of a worker, of an aggregator. */
const usesLeft = { copyBytes: Infinity, reduceRuns: Infinity };
if (isVictim) {
  const kernels = new Proxy(device.kernels, {
    get: (target, property) => {
      if ((property === 'copyBytes' || property === 'reduceRuns') && --usesLeft[property] === 0) {
        process.kill(process.pid, 'SIGKILL');
      }
      return Reflect.get(target, property, target) as unknown;
    },
  });
  Object.defineProperty(device, 'kernels', { value: kernels });
}
const roles = shape === 'tree' ? { aggregators: [3, 4], fanIn: 2, slots: 1 } : { aggregators: [3] };
const reducer = await SparseAllReduce.create(world, device, { ...roles, messageSize: 16_384 });
await world.barrier('ready');
if (isVictim) {
  if (what === 'before') process.kill(process.pid, 'SIGKILL');
  // An aggregator sums what comes from below, and copies only what it hands down.
  if (what !== 'summing') usesLeft.copyBytes = 40;
  if (what !== 'handing down') usesLeft.reduceRuns = 20;
}
const begin = performance.now();
try {
  await (reducer.isWorker ? reducer.allReduce({ output, timeoutMs: 20_000 }) : reducer.serve());
  console.log(JSON.stringify({ code: 'ok', message: '', ms: 0 }));
} catch (error) {
  const { code, message } = error as WeftlineError;
  console.log(JSON.stringify({ code, message, ms: performance.now() - begin }));
}
process.exit(0);
