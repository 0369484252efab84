// One rank stops its own process (SIGSTOP) at a stage of a call; the others print how that call ended for them.
// Arguments: the stage, the rank that stops, and the time of the call.
import { CpuDevice } from 'weftline';
import { EPAll2AllLayer, EpBuffer } from 'weftline/ep';
import { join, type World } from 'weftline/world';

const [, , stage = '', stoppedText = '', timeoutText = ''] = process.argv;
const stopped = Number(stoppedText);
const timeoutMs = Number(timeoutText);

const world = await join();
await using device = await CpuDevice.create();
const isStopped = world.rank === stopped;

function stop(): void {
  console.log(`stopping ${process.pid}`);
  process.kill(process.pid, 'SIGSTOP');
}

/** The world, whose rank stops when it would take part in the collective `name` for the n-th time. */
function stoppingAt(name: string, nth = 1): World {
  if (!isStopped) return world;
  let seen = 0;
  return new Proxy(world, {
    get(target, property) {
      const value: unknown = Reflect.get(target, property, target);
      if (property !== 'allGather' || typeof value !== 'function') return value;
      return (asked: string, ...rest: unknown[]): unknown => {
        if (asked === name && ++seen === nth) stop();
        return (value as (...all: unknown[]) => unknown).call(target, asked, ...rest);
      };
    },
  });
}

/** The rank stops in the middle of the next call: when it calls this kernel. */
function stopAtKernel(name: 'scatterRows' | 'gatherSum'): void {
  if (!isStopped) return;
  const kernels = new Proxy(device.kernels, {
    get(target, property) {
      if (property === name) stop();
      return Reflect.get(target, property, target) as unknown;
    },
  });
  Object.defineProperty(device, 'kernels', { value: kernels });
}

const tokens = 8;
const hidden = 16;
const x = await device.tensor('bf16', [tokens, hidden], new Uint16Array(tokens * hidden));
/** All tokens of all ranks go to rank 0, so that the layer's output there must grow. */
const ids = await device.tensor('i32', [tokens, 1], new Int32Array(tokens));
const bufferOptions = { maxTokensPerRank: tokens, hidden, numExperts: world.size, maxTopk: 1 };
const layerOptions = { maxTokensPerRank: tokens, hidden, maxTopk: 1, numExperts: world.size, capacity: 1 };

/** What comes before, and the call that is looked at. */
const stages: Readonly<Record<string, () => Promise<() => Promise<unknown>>>> = {
  'barrier of the world': async () => {
    await openBuffer();
    return () => {
      if (isStopped) stop();
      return world.barrier('all', { timeoutMs });
    };
  },
  'buffer creation': async () => () =>
    EpBuffer.create(stoppingAt('window/ep/map'), device, bufferOptions, { timeoutMs }),
  'opening of dispatch': async () => {
    const buffer = await openBuffer();
    return () => {
      if (isStopped) stop();
      return buffer.dispatch({ x, topkIdx: ids, timeoutMs });
    };
  },
  'closing of dispatch': async () => {
    const buffer = await openBuffer();
    stopAtKernel('scatterRows');
    return () => buffer.dispatch({ x, topkIdx: ids, timeoutMs });
  },
  'closing of combine': async () => {
    const buffer = await openBuffer();
    const { handle } = await buffer.dispatch({ x, topkIdx: ids });
    stopAtKernel('gatherSum');
    return () => buffer.combine({ x: buffer.combineInput(handle), handle, timeoutMs });
  },
  'layer creation': async () => () =>
    EPAll2AllLayer.create(stoppingAt('window/a2a-output/header'), device, { ...layerOptions, timeoutMs }),
  'growth, first step': async () => growing('window/a2a-output/size'),
  'growth, last step': async () => growing('window/a2a-output/header'),
  'closing of layer dispatch': async () => {
    const layer = await EPAll2AllLayer.create(world, device, { ...layerOptions, capacity: world.size });
    await layer.barrier();
    stopAtKernel('scatterRows');
    return () => layer.dispatch({ x, topkIdx: ids, timeoutMs });
  },
};

/** Behind its barrier no rank waits for the store any more, which stops with rank 0. */
async function openBuffer(): Promise<EpBuffer> {
  const buffer = await EpBuffer.create(world, device, bufferOptions);
  await buffer.barrier();
  return buffer;
}

async function growing(step: string): Promise<() => Promise<unknown>> {
  const layer = await EPAll2AllLayer.create(stoppingAt(step, 2), device, layerOptions);
  await layer.barrier();
  return () => layer.dispatch({ x, topkIdx: ids, timeoutMs });
}

const call = await (stages[stage] as (typeof stages)[string])();
const began = performance.now();
try {
  await call();
  console.log(JSON.stringify({ code: 'none' }));
} catch (error) {
  const { code, message, rank } = error as { code: string; message: string; rank?: number };
  console.log(JSON.stringify({ code, message, rank, ms: performance.now() - began }));
}
// As `await using` does when an error ends the program: a goodbye that tells nothing of it.
await world.close();
