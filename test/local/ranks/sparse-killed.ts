// One rank kills itself before or within a sparse all-reduce; the others print how they were told: argv = what, the rank, and
// 'tree' where rank 3 is an aggregator below rank 4, or 'direct' where all ranks are workers that aggregate.
import { CpuDevice, type WeftlineError } from 'weftline';
import { SparseAllReduce } from 'weftline/collectives';
import { join } from 'weftline/world';
import { LaunchPlan } from '#lib/device/cuda/kernel.js';
import { openTestDevice } from '../support/test-device.js';

const [what, victimText, shape] = process.argv.slice(2);
const world = await join();
// Ranks that only aggregate need no GPU.
const workers = [0, 1, 2];
const device = workers.includes(world.rank)
  ? await openTestDevice(await world.group(workers))
  : await CpuDevice.create();
const isVictim = world.rank === Number(victimText);
console.log(`job ${world.filePrefix}`);
const output = await device.tensor('f32', [1 << 20], new Float32Array(1 << 20).fill(1));

/** Calls of these kernels until the victim dies: those of a worker, of an aggregator; of a worker on a GPU. */
const usesLeft = { copyBytes: Infinity, reduceRuns: Infinity, sparseScatter: Infinity, sparseSum: Infinity };
if (isVictim && device.kind === 'cuda') {
  const launch = Reflect.get(LaunchPlan.prototype, 'launch') as (...args: unknown[]) => void;
  LaunchPlan.prototype.launch = function (this: LaunchPlan, ...args) {
    for (const name of ['sparseScatter', 'sparseSum'] as const) {
      if (this.label.endsWith(name) && --usesLeft[name] === 0) process.kill(process.pid, 'SIGKILL');
    }
    launch.apply(this, args);
  };
} else if (isVictim && device.kind === 'cpu') {
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
const shapes = { tree: { aggregators: [3, 4], fanIn: 2, slots: 1 }, direct: {}, one: { aggregators: [3] } };
const roles = shapes[shape === 'tree' || shape === 'direct' ? shape : 'one'];
const reducer = await SparseAllReduce.create(world, device, { ...roles, messageSize: 16_384 });
await world.barrier('ready');
if (isVictim) {
  if (what === 'before') process.kill(process.pid, 'SIGKILL');
  // An aggregator sums what comes from below, and copies only what it hands down.
  if (what !== 'summing') usesLeft.copyBytes = 40;
  if (what !== 'handing down') usesLeft.reduceRuns = 20;
  usesLeft.sparseScatter = 2;
  usesLeft.sparseSum = 1;
}
const begin = performance.now();
try {
  await (reducer.isWorker ? reducer.allReduce({ output, timeoutMs: 60_000 }) : reducer.serve());
  console.log(JSON.stringify({ code: 'ok', message: '', ms: 0 }));
} catch (error) {
  const { code, message } = error as WeftlineError;
  console.log(JSON.stringify({ code, message, ms: performance.now() - begin }));
}
process.exit(0);
