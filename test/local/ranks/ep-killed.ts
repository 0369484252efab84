// One rank of a group on several hosts kills itself at some point of a call; the others print how they were told.
// Arguments: "buffer" or "layer", the call, the point in it, the rank, and the time of the call. The point is "begin", or
// a kernel and the how many-th use of it, as "gatherSum 2"; a rank that does not come there says "not reached".
import type { CpuDevice } from 'weftline';
import { EPAll2AllLayer, EpBuffer } from 'weftline/ep';
import { join } from 'weftline/world';
import { openTestDevice, testGroup } from '../support/test-device.ts';

const [, , what = '', name = '', point = '', victimText = '', timeoutText = ''] = process.argv;
const timeoutMs = Number(timeoutText);
const world = await join();
const group = await testGroup(world);
const device = (await openTestDevice(group)) as CpuDevice;
const isVictim = world.rank === Number(victimText);
console.log(`job ${world.filePrefix}`);

function die(): void {
  process.kill(process.pid, 'SIGKILL');
}

/** The victim dies when it calls the kernel for the n-th time from now on. */
function dieAtKernel(kernel: string, nth: number): void {
  let seen = 0;
  const kernels = new Proxy(device.kernels, {
    get(target, property) {
      if (property === kernel && ++seen === nth) die();
      return Reflect.get(target, property, target) as unknown;
    },
  });
  Object.defineProperty(device, 'kernels', { value: kernels });
}

const [tokens, hidden, topk] = [96, 256, 2];
const x = await device.tensor('bf16', [tokens, hidden], new Uint16Array(tokens * hidden).fill(0x3f80));
/** Every rank sends to all others, each token to two. */
const ids = Int32Array.from({ length: tokens * topk }, (_, at) => ((at >> 1) + (at & 1)) % group.size);
const topkIdx = await device.tensor('i32', [tokens, topk], ids);
const topkWeights = await device.tensor('f32', [tokens, topk], new Float32Array(tokens * topk).fill(1));

/** What is made before, the call by its name, and a call that needs all ranks. */
interface Calls {
  readonly calls: Readonly<Record<string, () => Promise<unknown>>>;
  readonly barrier: () => Promise<unknown>;
  readonly object: AsyncDisposable;
}

async function openBuffer(): Promise<Calls> {
  const config = { maxTokensPerRank: tokens, hidden, numExperts: group.size, maxTopk: topk };
  const buffer = await EpBuffer.create(group, device, config);
  const { handle, recvTopkWeights: weights } = await buffer.dispatch({ x, topkIdx, topkWeights });
  return {
    calls: {
      dispatch: () => buffer.dispatch({ x, topkIdx, topkWeights, timeoutMs }),
      'cached dispatch': () => buffer.dispatch({ x, handle, timeoutMs }),
      combine: () => buffer.combine({ x: buffer.combineInput(handle), handle, topkWeights: weights, timeoutMs }),
    },
    barrier: () => buffer.barrier({ timeoutMs }),
    object: buffer,
  };
}

async function openLayer(): Promise<Calls> {
  const options = { maxTokensPerRank: tokens, hidden, maxTopk: topk, numExperts: group.size };
  const layer = await EPAll2AllLayer.create(group, device, options);
  const { recvX: output, handle } = await layer.dispatch({ x, topkIdx });
  return {
    calls: {
      dispatch: () => layer.dispatch({ x, topkIdx, timeoutMs }),
      combine: () => layer.combine({ x: output, handle, timeoutMs }),
    },
    barrier: () => layer.barrier({ timeoutMs }),
    object: layer,
  };
}

const { calls, barrier, object } = await (what === 'layer' ? openLayer() : openBuffer());
const call = calls[name] as () => Promise<unknown>;
// Nobody still looks at what came before.
await world.barrier('ready');
const [kernel = '', nth = '1'] = point.split(' ');
const began = performance.now();
try {
  if (isVictim && point === 'begin') die();
  if (isVictim) dieAtKernel(kernel, Number(nth));
  await call();
  // The victim may have done all that the others needed of this call.
  if (isVictim) console.log('not reached');
  await barrier();
  console.log(JSON.stringify({ code: 'none' }));
} catch (error) {
  const { code, message } = error as { code: string; message: string };
  console.log(JSON.stringify({ code, message, ms: performance.now() - began }));
}
// Nothing of it may keep the process.
await object[Symbol.asyncDispose]();
await device[Symbol.asyncDispose]();
await world.close();
