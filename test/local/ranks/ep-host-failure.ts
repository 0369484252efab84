// A rank of a group on several hosts fails in some way; each rank prints how its calls ended. Arguments: the scenario, "buffer" or
// "layer", the rank that fails.
import type { CpuDevice } from 'weftline';
import { EPAll2AllLayer, EpBuffer } from 'weftline/ep';
import { join } from 'weftline/world';
import { openTestDevice, testGroup } from '../support/test-device.ts';

const [, , scenario = '', what = '', culpritText = ''] = process.argv;
const world = await join();
const group = await testGroup(world);
const device = (await openTestDevice(group)) as CpuDevice;
const isCulprit = world.rank === Number(culpritText);
/** Far more than what hearing of a failure takes. */
const timeoutMs = 60_000;
const [tokens, hidden, topk] = [96, 256, 2];
const x = await device.tensor('bf16', [tokens, hidden], new Uint16Array(tokens * hidden).fill(0x3f80));
/** Every rank sends to all others, each token to two. */
const ids = Int32Array.from({ length: tokens * topk }, (_, at) => ((at >> 1) + (at & 1)) % group.size);
const choices = await device.tensor('i32', [tokens, topk], ids);
const wrong = await device.tensor('i32', [tokens, topk], new Int32Array(tokens * topk).fill(9999));

/** The kernel whose next use throws, on this rank. */
let failingKernel: string | undefined;
// The objects below may keep the device's kernels from the beginning.
const kernels = new Proxy(device.kernels, {
  get(target, property) {
    if (property === failingKernel) throw new Error('out of luck');
    return Reflect.get(target, property, target) as unknown;
  },
});
Object.defineProperty(device, 'kernels', { value: kernels });

interface Calls {
  readonly dispatch: (topkIdx?: typeof choices, timeout?: number) => Promise<unknown>;
  /** Combines what was dispatched before. */
  readonly combine: () => Promise<unknown>;
  readonly barrier: () => Promise<unknown>;
  readonly close: () => Promise<void>;
}

async function openBuffer(): Promise<Calls> {
  const config = { maxTokensPerRank: tokens, hidden, numExperts: group.size, maxTopk: topk };
  const buffer = await EpBuffer.create(group, device, config);
  const { handle } = await buffer.dispatch({ x, topkIdx: choices });
  return {
    dispatch: (topkIdx = choices, timeout = timeoutMs) => buffer.dispatch({ x, topkIdx, timeoutMs: timeout }),
    combine: () => buffer.combine({ x: buffer.combineInput(handle), handle, timeoutMs }),
    barrier: () => buffer.barrier({ timeoutMs }),
    close: () => buffer.close(),
  };
}

async function openLayer(): Promise<Calls> {
  const options = { maxTokensPerRank: tokens, hidden, maxTopk: topk, numExperts: group.size };
  const layer = await EPAll2AllLayer.create(group, device, options);
  const { handle } = await layer.dispatch({ x, topkIdx: choices });
  return {
    dispatch: (topkIdx = choices, timeout = timeoutMs) => layer.dispatch({ x, topkIdx, timeoutMs: timeout }),
    combine: () => layer.combine({ x: layer.combineInput(handle), handle, timeoutMs }),
    barrier: () => layer.barrier({ timeoutMs }),
    close: () => layer.close(),
  };
}

/** Until all others have ended. */
async function staysAway(): Promise<void> {
  for (let rank = 0; rank < world.size; rank++) {
    if (rank !== world.rank) await world.store.get(`ended ${rank}`, { timeoutMs: 120_000 });
  }
}

const { dispatch, combine, barrier, close } = await (what === 'layer' ? openLayer() : openBuffer());

const scenarios: Readonly<Record<string, () => Promise<unknown>>> = {
  async 'throws in dispatch'() {
    if (isCulprit) failingKernel = 'scatterRows';
    await dispatch();
    return barrier();
  },
  async 'throws in combine'() {
    if (isCulprit) failingKernel = 'gatherSum';
    await combine();
    return barrier();
  },
  async 'throws between'() {
    if (isCulprit) {
      await close();
      throw new Error('out of luck');
    }
    await combine();
    return barrier();
  },
  async 'stays away'() {
    if (isCulprit) await staysAway();
    await dispatch(choices, isCulprit ? timeoutMs : 3_000);
    return barrier();
  },
  async 'in another call'() {
    await (isCulprit ? combine() : dispatch());
    return barrier();
  },
  async 'in the other call on its host'() {
    const here = group.topology.scaleUpRanks.map((rank) => group.ranks[rank]);
    await (here.includes(Number(culpritText)) ? combine() : dispatch());
    return barrier();
  },
  async 'bad argument, then a good one'() {
    const error = await dispatch(isCulprit ? wrong : choices).catch((thrown: unknown) => thrown);
    console.log(String(error));
    await dispatch();
    await combine();
    return barrier();
  },
  async 'bad argument, then gone'() {
    try {
      await dispatch(isCulprit ? wrong : choices);
    } finally {
      if (isCulprit) await close();
    }
    return barrier();
  },
};

// Nobody still looks at what came before.
await world.barrier('ready');
const began = performance.now();
try {
  await (scenarios[scenario] as () => Promise<unknown>)();
  console.log(JSON.stringify({ code: 'none' }));
} catch (error) {
  const { code = 'foreign', message, rank } = error as { code?: string; message: string; rank?: number };
  console.log(JSON.stringify({ code, message, rank, ms: performance.now() - began }));
}
await world.store.set(`ended ${world.rank}`, new Uint8Array(1));
// What is told late must be heard, whoever ends first.
for (let rank = 0; rank < world.size; rank++) await world.store.get(`ended ${rank}`, { timeoutMs: 120_000 });
await close();
await world.close();
