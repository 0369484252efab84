// One failure per scenario (argv): prints the error that this rank got as its last line of JSON.
import { setTimeout as sleep } from 'node:timers/promises';
import { CpuDevice, type Tensor, WeftlineError } from 'weftline';
import { type DispatchHandle, EPAll2AllLayer, EpBuffer, type EpBufferConfig } from 'weftline/ep';
import { join, type World } from 'weftline/world';
import { openTestDevice } from '../support/test-device.ts';

const config: EpBufferConfig = { maxTokensPerRank: 8, hidden: 16, numExperts: 4, maxTopk: 2 };
const layerOptions = { maxTokens: 8, hidden: 16, topk: 2, numTotExperts: 4 };
const world = await join();
const device = await openTestDevice(world);

/** Of a CPU rank; the scenarios that fill it are not for GPUs. */
function addressSpace(): CpuDevice['space'] {
  if (device.kind !== 'cpu') throw new Error('this scenario is for CPU ranks');
  return device.space;
}

/** Leaves little of the device's memory. */
function fillMemory(): Tensor[] {
  if (device.kind === 'cpu') return [device.empty('u8', [addressSpace().largestGap - (4 << 20)])];
  const fillers: Tensor[] = [];
  for (let bytes = 2 ** 36; bytes >= 4 << 20;) {
    try {
      fillers.push(device.empty('u8', [bytes]));
    } catch {
      bytes /= 2;
    }
  }
  fillers.pop()?.dispose();
  return fillers;
}

async function tokens(count: number, hidden = 16): Promise<Tensor<'bf16'>> {
  return device.tensor('bf16', [count, hidden], new Uint16Array(count * hidden));
}

function ids(rows: number[][]): Promise<Tensor<'i32'>> {
  return device.tensor('i32', [rows.length, rows[0]?.length ?? 0], Int32Array.from(rows.flat()));
}

async function failureOf(call: () => Promise<unknown>): Promise<{ code: string; message: string; ms: number }> {
  const started = performance.now();
  try {
    await call();
    return { code: 'none', message: 'no error', ms: 0 };
  } catch (error) {
    const code = error instanceof WeftlineError ? error.code : 'not ours';
    return { code, message: error instanceof Error ? error.message : String(error), ms: performance.now() - started };
  }
}

const scenarios: Record<string, (world: World) => Promise<unknown>> = {
  async loop() {
    const buffer = await EpBuffer.create(world, device, { ...config, maxTokensPerRank: 512, hidden: 4096 });
    const x = await tokens(512, 4096);
    const topkIdx = await ids(Array.from({ length: 512 }, (_, t) => [t % 4, (t + 1) % 4]));
    console.log(`running ${process.pid} ${world.jobId}`);
    return failureOf(async () => {
      while (true) (await buffer.dispatch({ x, topkIdx })).handle.dispose();
    });
  },

  async absent() {
    const buffer = await EpBuffer.create(world, device, config);
    if (world.rank === 1) await sleep(1_500);
    const [x, topkIdx] = [await tokens(1), await ids([[0, 1]])];
    return failureOf(() => buffer.dispatch({ x, topkIdx, timeoutMs: 400 }));
  },

  async 'lost before combine'() {
    const buffer = await EpBuffer.create(world, device, config);
    const { handle } = await buffer.dispatch({
      x: await tokens(2),
      topkIdx: await ids([
        [0, 3],
        [3, 0],
      ]),
    });
    if (world.rank === 1) process.kill(process.pid, 'SIGKILL');
    return failureOf(async () => {
      const { combinedX } = await buffer.combine({ x: buffer.combineInput(handle), handle });
      // On a GPU the call itself has returned before its kernel waits; what it left must not pass for a result.
      await combinedX.toHost();
    });
  },

  async abort() {
    const buffer = await EpBuffer.create(world, device, config);
    if (world.rank === 1) await sleep(800);
    const [x, topkIdx] = [await tokens(1), await ids([[0, 1]])];
    const controller = new AbortController();
    setTimeout(() => controller.abort(new Error('enough')), 200);
    return failureOf(() => buffer.dispatch({ x, topkIdx, ...(world.rank === 0 && { signal: controller.signal }) }));
  },

  async 'other call'() {
    const buffer = await EpBuffer.create(world, device, config);
    const x = await tokens(2);
    const { handle } = await buffer.dispatch({
      x,
      topkIdx: await ids([
        [0, 3],
        [3, 0],
      ]),
    });
    if (world.rank === 0) return failureOf(() => buffer.dispatch({ x, handle }));
    return failureOf(() => buffer.combine({ x: buffer.combineInput(handle), handle }));
  },

  async 'other handle'() {
    const buffer = await EpBuffer.create(world, device, config);
    const [x, topkIdx] = [
      await tokens(2),
      await ids([
        [0, 3],
        [3, 0],
      ]),
    ];
    const handles = [(await buffer.dispatch({ x, topkIdx })).handle, (await buffer.dispatch({ x, topkIdx })).handle];
    return failureOf(() => buffer.dispatch({ x, handle: handles[world.rank] as DispatchHandle }));
  },

  async 'other descriptor'() {
    const layer = await EPAll2AllLayer.create(world, device, layerOptions);
    const [input, expIndices] = [
      await tokens(2),
      await ids([
        [0, 3],
        [3, 0],
      ]),
    ];
    const first = await layer.dispatch({ input, expIndices });
    const second = await layer.dispatch({ input, expIndices });
    const { layoutDesc } = world.rank === 0 ? first : second;
    return failureOf(() => layer.combine({ input: layer.combineInput(layoutDesc), layoutDesc }));
  },

  async 'weights on one rank'() {
    const buffer = await EpBuffer.create(world, device, config);
    const { handle } = await buffer.dispatch({
      x: await tokens(2),
      topkIdx: await ids([
        [0, 3],
        [3, 0],
      ]),
    });
    const topkWeights = device.empty('f32', [handle.rows, 2]);
    const x = buffer.combineInput(handle);
    return failureOf(() => buffer.combine({ x, handle, ...(world.rank === 0 && { topkWeights }) }));
  },

  'invalid on one rank': () =>
    failureOf(() => EpBuffer.create(world, device, { ...config, hidden: world.rank === 0 ? 12 : 16 })),

  'invalid on all ranks': () => failureOf(() => EpBuffer.create(world, device, { ...config, hidden: 12 })),

  async 'no room for tables'() {
    const space = addressSpace().largestGap - (world.rank === 0 ? 1024 : 0);
    device.empty('u8', [world.rank === 0 ? space : 8]);
    const failure = await failureOf(() => EpBuffer.create(world, device, config));
    if (world.rank === 0 && addressSpace().largestGap !== 1024) throw new Error('something was not given back');
    return failure;
  },

  async 'layer cannot grow'() {
    const options = { ...layerOptions, maxTokens: 4096, hidden: 1024, capacity: 0.01 };
    const layer = await EPAll2AllLayer.create(world, device, options);
    const [fits, large] = [
      { input: await tokens(8, 1024), expIndices: await ids(Array.from({ length: 8 }, () => [0, 2])) },
      { input: await tokens(4096, 1024), expIndices: await ids(Array.from({ length: 4096 }, () => [0, 2])) },
    ];
    const fillers = fillMemory();
    await layer.dispatch(fits);
    const failure = await failureOf(() => layer.dispatch(large));
    // The layer goes on with what it had.
    const { layoutDesc, output } = await layer.dispatch(fits);
    await (await layer.combine({ input: output, layoutDesc })).toHost();
    for (const filler of fillers) filler.dispose();
    return failure;
  },

  async 'fails alone'() {
    const buffer = await EpBuffer.create(world, device, { ...config, maxTokensPerRank: 4096 });
    const [x, topkIdx] = [await tokens(4096), await ids(Array.from({ length: 4096 }, () => [0, 2]))];
    // The handle's tables do not fit at rank 0, which it notices after the ranks have met.
    if (world.rank === 0) device.empty('u8', [addressSpace().largestGap - 1024]);
    return failureOf(() => buffer.dispatch({ x, topkIdx }));
  },

  async 'closes its buffer'() {
    const buffer = await EpBuffer.create(world, device, config);
    await buffer.barrier();
    const x = await tokens(2);
    const topkIdx = await ids([
      [0, 1],
      [2, 3],
    ]);
    if (world.rank === 1) {
      await buffer[Symbol.asyncDispose]();
      // The process goes on: it is not its end that the other hears of.
      await world.store.get('heard', { timeoutMs: 20_000 });
      return 'closed';
    }
    const failure = await failureOf(() => buffer.dispatch({ x, topkIdx }));
    await world.store.set('heard', new Uint8Array(1));
    return failure;
  },
  async 'closes with an error'() {
    const buffer = await EpBuffer.create(world, device, config);
    const [x, topkIdx] = [await tokens(1), await ids([[0, 1]])];
    if (world.rank === 0) return failureOf(() => buffer.dispatch({ x, topkIdx, timeoutMs: 30_000 }));
    await sleep(100);
    await world.close(new Error('boom'));
    await sleep(1_000);
    return 'closed';
  },

  async 'layer loop'() {
    const layer = await EPAll2AllLayer.create(world, device, { ...layerOptions, numTotExperts: 6 });
    const [input, expIndices] = [await tokens(8), await ids(Array.from({ length: 8 }, (_, t) => [t % 6, (t + 1) % 6]))];
    console.log(`running ${process.pid}`);
    return failureOf(async () => {
      while (true) {
        const { output, layoutDesc } = await layer.dispatch({ input, expIndices });
        (await layer.combine({ input: output, layoutDesc })).dispose();
        layoutDesc.dispose();
      }
    });
  },

  async 'other topk'() {
    const buffer = await EpBuffer.create(world, device, config);
    const topkIdx = await ids(world.rank === 0 ? [[0, 1]] : [[2]]);
    return failureOf(async () => buffer.dispatch({ x: await tokens(1), topkIdx }));
  },

  async 'other dtype'() {
    const buffer = await EpBuffer.create(world, device, config);
    const fp8 = { data: device.empty('fp8e4m3', [1, 16]), scales: device.empty('f32', [1, 1]) };
    const x = world.rank === 0 ? fp8 : await tokens(1);
    return failureOf(async () => buffer.dispatch({ x, topkIdx: await ids([[0, 1]]) }));
  },

  async 'other config'() {
    return failureOf(() => EpBuffer.create(world, device, { ...config, hidden: world.rank === 0 ? 16 : 24 }));
  },

  async 'worst too small'() {
    const buffer = await EpBuffer.create(world, device, config);
    const topkIdx = await ids([
      [2, 3],
      [2, 3],
    ]);
    return failureOf(async () => {
      const { recvX } = await buffer.dispatch({ x: await tokens(2), topkIdx, numWorstTokens: 2 });
      // A GPU's dispatch with a bound has not waited.
      await (recvX as Tensor).toHost();
    });
  },

  async 'worst of one rank too small'() {
    const buffer = await EpBuffer.create(world, device, config);
    const topkIdx = await ids([
      [2, 3],
      [2, 3],
    ]);
    return failureOf(async () => {
      const bound = world.rank === 1 ? { numWorstTokens: 2 } : {};
      const { recvX } = await buffer.dispatch({ x: await tokens(2), topkIdx, ...bound });
      await (recvX as Tensor).toHost();
    });
  },

  async 'worst too small, then none'() {
    const buffer = await EpBuffer.create(world, device, config);
    const topkIdx = await ids([[2], [3]]);
    const x = await tokens(2);
    const choices = await ids([
      [0, 2],
      [2, 3],
    ]);
    await buffer.dispatch({ x, topkIdx, numWorstTokens: 1 });
    const first = await failureOf(() => buffer.dispatch({ x, topkIdx: choices }));
    const second = await failureOf(() => buffer.dispatch({ x, topkIdx: choices }));
    return { ...first, again: second.code };
  },

  async 'stale event'() {
    if (device.kind !== 'cuda') throw new Error('this scenario is for GPUs');
    const buffer = await EpBuffer.create(world, device, config);
    const [x, topkIdx] = [await tokens(1), await ids([[0, 3]])];
    const previousEvent = device.createEvent();
    previousEvent[Symbol.dispose]();
    const failure = await failureOf(async () => {
      if (world.rank === 0) await buffer.dispatch({ x, topkIdx, previousEvent, timeoutMs: 2_000 });
    });
    // Nothing has happened: the same call again finds the other rank.
    const { recvX, handle } = await buffer.dispatch({ x, topkIdx, timeoutMs: 2_000 });
    await (recvX as Tensor).toHost();
    return { ...failure, received: handle.numRecvTokens };
  },

  async 'shifted rows'() {
    const buffer = await EpBuffer.create(world, device, config);
    const topkIdx = await ids([
      [0, 1],
      [2, 3],
    ]);
    const x = (await tokens(1, 33)).reshape([33]).slice(1, 33).reshape([2, 16]);
    const failure = await failureOf(() => buffer.dispatch({ x, topkIdx }));
    await (await buffer.dispatch({ x: await tokens(2), topkIdx })).handle.rowTable.toHost();
    return failure;
  },

  async 'address space'() {
    return failureOf(() => EpBuffer.create(world, device, { ...config, maxTokensPerRank: 100_000, hidden: 8192 }));
  },

  async small() {
    return failureOf(() => EpBuffer.create(world, device, { ...config, maxTokensPerRank: 1024, hidden: 4096 }));
  },

  async 'layer absent'() {
    const layer = await EPAll2AllLayer.create(world, device, layerOptions);
    if (world.rank === 1) await sleep(1_500);
    const [input, expIndices] = [await tokens(1), await ids([[0, 1]])];
    return failureOf(() => layer.dispatch({ input, expIndices, timeoutMs: 400 }));
  },

  async 'layer choice'() {
    const layer = await EPAll2AllLayer.create(world, device, layerOptions);
    const input = await tokens(2);
    const good = [
      [0, 1],
      [0, 3],
    ];
    const failure = await failureOf(async () => {
      const expIndices = await ids(
        world.rank === 1
          ? [
              [0, 1],
              [0, 0],
            ]
          : good,
      );
      return layer.dispatch({ input, expIndices });
    });
    const { output, layoutDesc } = await layer.dispatch({ input, expIndices: await ids(good) });
    await layer.combine({ input: output, layoutDesc });
    await layer.epBarrierAll();
    return failure;
  },

  async 'other weights'() {
    const layer = await EPAll2AllLayer.create(world, device, layerOptions);
    const [input, expIndices] = [await tokens(1), await ids([[0, 3]])];
    const weight = await device.tensor('f32', [1, 2], new Float32Array(2));
    return failureOf(() => layer.dispatch({ input, expIndices, ...(world.rank === 0 && { weight }) }));
  },

  'layer without AOT kernels': () =>
    failureOf(() => EPAll2AllLayer.create(world, device, { ...layerOptions, useAot: true })),

  'scatter out of block': () => scatter((places) => (world.rank === 1 ? places.map((place) => place + 1) : places)),

  'scatter repeated': () => scatter((places) => (world.rank === 1 ? [0, 2] : places)),

  arguments: wrongArguments,
};

/** Two tokens per rank, all to expert 0 then 2; `change` spoils the good places. */
async function scatter(change: (places: number[]) => number[]): Promise<unknown> {
  const layer = await EPAll2AllLayer.create(world, device, { maxTokens: 2, hidden: 16, topk: 1, numTotExperts: 4 });
  const places = change(world.rank === 0 ? [0, 2] : [1, 3]);
  const [input, expIndices] = [await tokens(2), await ids([[0], [2]])];
  const fullScatterIndices = await ids(places.map((place) => [place]));
  return failureOf(() => layer.dispatch({ input, expIndices, fullScatterIndices }));
}

async function wrongArguments(): Promise<Record<string, string>> {
  const buffer = await EpBuffer.create(world, device, config);
  const other = await EpBuffer.create(world, device, config);
  const x = await tokens(2);
  const topkIdx = await ids([
    [0, 1],
    [2, 3],
  ]);
  const disposed = await tokens(2);
  disposed.dispose();
  const elsewhere = await (await CpuDevice.create()).tensor('bf16', [2, 16], new Uint16Array(32));
  const { handle, recvX } = await buffer.dispatch({ x, topkIdx });
  const gone = (await buffer.dispatch({ x, topkIdx })).handle;
  gone.dispose();
  const received = recvX as Tensor<'bf16'>;
  const layer = await EPAll2AllLayer.create(world, device, { maxTokens: 8, hidden: 16, topk: 2, numTotExperts: 4 });
  const wide = await device.tensor('i64', [1, 2], BigInt64Array.from([4_294_967_296n, 0n]));
  const f32 = device.empty('f32', [2, 16]) as unknown as Tensor<'bf16'>;
  const one = await tokens(1);
  const topkWeights = await device.tensor('f32', [2, 2], new Float32Array(4));
  const otherLayout = buffer.getDispatchLayout({
    topkIdx: await ids([
      [0, 1],
      [2, -1],
    ]),
  });
  const wrongLayout = buffer.getDispatchLayout({ topkIdx });
  wrongLayout.numTokensPerRank.view()[0] = 1;
  const layerWeights = async (): Promise<Tensor<'f32'>> => {
    const { weights } = await layer.dispatch({ input: x, expIndices: topkIdx, weight: topkWeights });
    return (weights as Tensor<'f32'>).slice(0, 4).reshape([2, 2]);
  };
  const calls: Record<string, () => Promise<unknown>> = {
    'x dtype': () => buffer.dispatch({ x: f32, topkIdx }),
    'x shape': async () => buffer.dispatch({ x: await tokens(2, 8), topkIdx }),
    'x missing': () => buffer.dispatch({ topkIdx } as unknown as Parameters<EpBuffer['dispatch']>[0]),
    'x disposed': () => buffer.dispatch({ x: disposed, topkIdx }),
    'x of another device': () => buffer.dispatch({ x: elsewhere, topkIdx }),
    'x in the window': () => buffer.dispatch({ x: received, topkIdx }),
    'weights in the window': async () => {
      const { recvTopkWeights } = await buffer.dispatch({ x, topkIdx, topkWeights });
      await buffer.dispatch({ x, topkIdx, ...(recvTopkWeights && { topkWeights: recvTopkWeights }) });
    },
    'layout of other choices': () => buffer.dispatch({ x, topkIdx, layout: otherLayout }),
    'layout with wrong counts': () => buffer.dispatch({ x, layout: wrongLayout }),
    'combineInput of a foreign handle': async () => other.combineInput(handle),
    'worst beside a handle': () => buffer.dispatch({ x, handle, numWorstTokens: 4 }),
    'timeout NaN': () => buffer.dispatch({ x, topkIdx, timeoutMs: Number.NaN }),
    'layer experts': async () =>
      layer.dispatch({
        input: x,
        expIndices: await ids([
          [0, 9],
          [1, 2],
        ]),
      }),
    'layer numTotExperts': () => EPAll2AllLayer.create(world, device, { ...layerOptions, numTotExperts: 0 }),
    'layer weight in the window': async () =>
      layer.dispatch({ input: x, expIndices: topkIdx, weight: await layerWeights() }),
    'layer after its context': async () => {
      const closing = await EPAll2AllLayer.create(world, device, layerOptions);
      await closing.context.finalize();
      await closing.epBarrierAll();
    },
    'too many tokens': async () => buffer.dispatch({ x: await tokens(9), topkIdx }),
    'expert too large': async () =>
      buffer.dispatch({
        x,
        topkIdx: await ids([
          [0, 1],
          [4, 3],
        ]),
      }),
    'expert below -1': async () =>
      buffer.dispatch({
        x,
        topkIdx: await ids([
          [0, -2],
          [1, 3],
        ]),
      }),
    'expert beyond i32': () => buffer.dispatch({ x: one, topkIdx: wide }),
    'expert twice': async () =>
      buffer.dispatch({
        x,
        topkIdx: await ids([
          [0, 1],
          [3, 3],
        ]),
      }),
    'topk too wide': async () =>
      buffer.dispatch({
        x,
        topkIdx: await ids([
          [0, 1, 2],
          [1, 2, 3],
        ]),
      }),
    'no routing': () => buffer.dispatch({ x }),
    'handle and topk': () => buffer.dispatch({ x, topkIdx, handle }),
    'handle of another buffer': () => other.dispatch({ x, handle }),
    'disposed handle': () => buffer.dispatch({ x, handle: gone }),
    'combine shape': () => buffer.combine({ x: one, handle }),
    'second call': async () => {
      const first = buffer.dispatch({ x, topkIdx });
      const second = failureOf(() => buffer.dispatch({ x, topkIdx }));
      await first;
      throw new Error((await second).message);
    },
    'hidden not of 8': () => EpBuffer.create(world, device, { ...config, hidden: 12 }),
    'experts not divisible': () => EpBuffer.create(world, device, { ...config, numExperts: 0 }),
    'topk over 32': () => EpBuffer.create(world, device, { ...config, maxTopk: 33 }),
    'after close': async () => {
      await other[Symbol.asyncDispose]();
      await other.dispatch({ x, topkIdx });
    },
    'layer weights': () => layer.dispatch({ input: x, expIndices: topkIdx, weight: device.empty('bf16', [2, 2]) }),
    'layer topk': async () => layer.dispatch({ input: x, expIndices: await ids([[0], [1]]) }),
  };
  const found: Record<string, string> = {};
  for (const [name, call] of Object.entries(calls)) {
    const { code, message } = await failureOf(call);
    found[name] = code === 'not ours' ? message : `${code}: ${message}`;
  }
  return found;
}

const scenario = scenarios[process.argv[2] ?? ''];
if (scenario === undefined) throw new Error(`no scenario ${process.argv[2]}`);
console.log(JSON.stringify(await scenario(world)));
await world.close();
