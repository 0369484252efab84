// A failure of EpLowLatency per scenario (argv), one after another: prints what this rank got as a line of JSON.
import assert from 'node:assert/strict';
import { CpuDevice, WeftlineError } from 'weftline';
import {
  EpLowLatency,
  type LowLatencyConfig,
  type LowLatencyCombineResult,
  type LowLatencyDispatchResult,
} from 'weftline/ep';
import { device, failureOf, ids, type Scenarios, tokens, world } from './ep-failures/context.ts';

const config: LowLatencyConfig = { maxTokensPerRank: 8, hidden: 16, numExperts: 2 * world.size, maxTopk: 2 };
const weightsOf = (rows: number, k = 2) => device.tensor('f32', [rows, k], new Float32Array(rows * k).fill(0.5));
/** On GPUs a call only enqueues: what became of it shows in the next wait. */
async function settled<T extends LowLatencyDispatchResult | LowLatencyCombineResult>(call: Promise<T>): Promise<T> {
  const result = await call;
  await ('recvCount' in result ? result.recvCount : result.combinedX).toHost();
  return result;
}

const invalid = { code: 'WL_INVALID_ARGUMENT' };

/** Every token to each of the first two ranks, whatever their number. */
async function inputOf(rows: number) {
  return {
    x: await tokens(rows),
    topkIdx: await ids(Array.from({ length: rows }, () => [0, 2])),
    topkWeights: await weightsOf(rows),
  };
}

function combineArgs({ handle }: LowLatencyDispatchResult) {
  return { x: device.empty('bf16', [2, 8 * world.size, 16]), handle };
}

/** As a program without types would pass it. */
function as(value: unknown): never {
  return value as never;
}

const [HEADER_BYTES, ALIGNMENT] = [64, 16];

/** What rank 0 puts into the header of the next message to another host, or among its choices, once the message is packed. */
type Forgery = (message: { readonly header: Int32Array; readonly choices: Int32Array }) => void;

function wordsAt(address: number, length: number): Int32Array {
  return (device as CpuDevice).hostView('i32', address, length);
}

/** The others hear what is wrong with a message of rank 0, whose memory something has written over. */
async function forged(forge: Forgery) {
  const { kernels } = device as CpuDevice;
  if (world.rank === 0) {
    let isNext = true;
    const gatherRows = (...args: Parameters<typeof kernels.gatherRows>): void => {
      kernels.gatherRows(...args);
      if (!isNext) return;
      isNext = false;
      const [to, , bytes, , count] = args;
      const before = HEADER_BYTES + Math.ceil((count * 4) / ALIGNMENT) * ALIGNMENT;
      forge({ header: wordsAt(to - before, 2), choices: wordsAt(to, (count * bytes) / 4) });
    };
    Object.defineProperty(device, 'kernels', { value: { ...kernels, gatherRows }, configurable: true });
  }
  try {
    await using ll = await EpLowLatency.create(world, device, config);
    const input = await inputOf(2);
    return await failureOf(async () => {
      for (let call = 0; call < 3; call++) await ll.dispatch(input);
    });
  } finally {
    Object.defineProperty(device, 'kernels', { value: kernels, configurable: true });
  }
}

const scenarios: Scenarios = {
  'too many tokens': () => forged(({ header }) => (header[0] = 9)),

  'a negative number of tokens': () => forged(({ header }) => (header[0] = -1)),

  'too many choices': () => forged(({ header }) => (header[1]! += 1)),

  'an expert that is not there': () => forged(({ choices }) => (choices[1] = 2 * world.size)),

  /** Rank 0 has all that it needs, and leaves; what it sent to rank 2 is at rank 1, which passes it on later. */
  async 'left before its rows were passed on'() {
    const ll = await EpLowLatency.create(world, device, config);
    const { hook } = await ll.dispatch({ ...(await inputOf(2)), returnRecvHook: true });
    if (world.rank === 1) await world.store.get('left', { timeoutMs: 120_000 });
    const failure = await failureOf(() => settled(hook()));
    await ll.close();
    if (world.rank === 0) await world.store.set('left', new Uint8Array(1));
    return failure;
  },

  async 'killed between send and receive'() {
    await using ll = await EpLowLatency.create(world, device, config);
    const input = await inputOf(2);
    const { hook } = await ll.dispatch({ ...input, returnRecvHook: true });
    if (world.rank === 1) process.kill(process.pid, 'SIGKILL');
    // Its rows are here; the next ones are not.
    return await failureOf(async () => {
      const result = await settled(hook());
      await settled(ll.combine(combineArgs(result)));
      for (;;) await settled(ll.dispatch(input));
    });
  },

  async 'killed before its rows'() {
    await using ll = await EpLowLatency.create(world, device, config);
    const input = await inputOf(2);
    if (world.rank === 1) process.kill(process.pid, 'SIGKILL');
    return await failureOf(() => settled(ll.dispatch(input)));
  },

  async absent() {
    await using ll = await EpLowLatency.create(world, device, config);
    const input = await inputOf(1);
    if (world.rank === 1) await world.store.get('gave up', { timeoutMs: 120_000 });
    const timeoutMs = world.rank === 1 ? 120_000 : 400;
    const failure = await failureOf(async () => {
      // Rows of the others are there, perhaps before the news that they gave up.
      for (;;) await settled(ll.dispatch({ ...input, timeoutMs }));
    });
    if (world.rank !== 1) await world.store.set('gave up', new Uint8Array(1));
    return failure;
  },

  /** The engine cannot be made on any rank, with all else that it needs there; once it can be, it works. */
  async 'no engine'() {
    const cpu = device as CpuDevice;
    const failing = (...args: Parameters<CpuDevice['hostView']>): unknown => {
      // The words of the whole window are for the engine; what comes before it takes few of them, or bytes.
      if (args[0] === 'i32' && args[2] > 1000) throw new WeftlineError('WL_NATIVE', 'no engine');
      return CpuDevice.prototype.hostView.apply(cpu, args);
    };
    Object.defineProperty(device, 'hostView', { value: failing, configurable: true });
    const failure = await failureOf(() => EpLowLatency.create(world, device, config));
    Reflect.deleteProperty(device, 'hostView');
    await using ll = await EpLowLatency.create(world, device, config);
    await ll.dispatch(await inputOf(1));
    await ll.barrier();
    return failure;
  },

  /** Rank 1 never comes, without which rank 2 gets nothing of rank 0 either. */
  async 'absent between hosts'() {
    await using ll = await EpLowLatency.create(world, device, config);
    const input = await inputOf(1);
    if (world.rank === 1) await world.store.get('gave up', { timeoutMs: 120_000 });
    const timeoutMs = world.rank === 2 ? 400 : 120_000;
    const failure = await failureOf(() => settled(ll.dispatch({ ...input, timeoutMs })));
    if (world.rank === 2) await world.store.set('gave up', new Uint8Array(1));
    return failure;
  },

  /** Rank 2 never comes from its host to that of the others, to whom rank 0 would pass its rows on. Rank 1 alone has long to wait. */
  async 'absent behind another rank'() {
    await using ll = await EpLowLatency.create(world, device, config);
    const input = { ...(await inputOf(1)), dtype: 'bf16' } as const;
    if (world.rank === 2) await world.store.get('heard', { timeoutMs: 180_000 });
    const timeoutMs = world.rank === 0 ? 400 : 120_000;
    const failure = await failureOf(() => settled(ll.dispatch({ ...input, timeoutMs })));
    // Its end would tell rank 1, too.
    if (world.rank === 0) await world.store.get('heard', { timeoutMs: 180_000 });
    if (world.rank === 1) await world.store.set('heard', new Uint8Array(1));
    return failure;
  },

  async overflow() {
    await using ll = await EpLowLatency.create(world, device, { ...config, maxTokensPerExpert: 3 });
    const input = await inputOf(2);
    return await failureOf(async () => {
      await settled(ll.dispatch(input));
      await settled(ll.dispatch(input));
      await settled(ll.dispatch(input));
    });
  },

  /** The others end in dispatch, or in combine, which waits for the rank that failed. */
  async 'overflow of one rank'() {
    await using ll = await EpLowLatency.create(world, device, { ...config, maxTokensPerExpert: 3 });
    const topkIdx = await ids([
      [0, 2],
      [0, -1],
    ]);
    const input = { ...(await inputOf(2)), topkIdx };
    return await failureOf(async () => {
      const { handle } = await settled(ll.dispatch(input));
      await settled(ll.combine({ x: device.empty('bf16', [2, 3, 16]), handle }));
    });
  },

  async 'other format'() {
    await using ll = await EpLowLatency.create(world, device, config);
    const input = await inputOf(1);
    return await failureOf(() => settled(ll.dispatch({ ...input, dtype: world.rank === 0 ? 'bf16' : 'fp8' })));
  },

  async 'other handle'() {
    await using ll = await EpLowLatency.create(world, device, config);
    const input = await inputOf(1);
    const results = [await ll.dispatch(input), await ll.dispatch(input)];
    return await failureOf(() => settled(ll.combine(combineArgs(results[world.rank === 0 ? 0 : 1]!))));
  },

  'other config': () => failureOf(() => EpLowLatency.create(world, device, { ...config, hidden: 16 + 8 * world.rank })),

  'wrong config': () => failureOf(() => EpLowLatency.create(world, device, { ...config, maxTopk: 33 })),

  'big integer': () => failureOf(() => EpLowLatency.create(world, device, { ...config, maxTokensPerRank: as(8n) })),

  /** Rank 1 makes a bad choice. On GPUs it ends the use of the object; otherwise the next calls work, here also of rows by rank and with a hook. */
  async 'bad choice'() {
    await using ll = await EpLowLatency.create(world, device, config);
    const input = await inputOf(2);
    const topkIdx = await ids([
      [0, 2],
      [1, world.rank === 1 ? 4 : 2],
    ]);
    const failure = await failureOf(() => settled(ll.dispatch({ ...input, topkIdx })));
    if (device.kind === 'cuda') return failure;
    await using byRank = await EpLowLatency.create(world, device, { ...config, layout: 'rank-major' });
    for (const object of [ll, byRank]) {
      await assert.rejects(async () => {
        const { hook } = await object.dispatch({ ...input, topkIdx, returnRecvHook: true });
        await hook();
      }, invalid);
      for (let calls = 0; calls < 4; calls++) await object.dispatch(input);
    }
    return failure;
  },

  'elastic on several hosts': () => failureOf(() => EpLowLatency.create(world, device, { ...config, elastic: true })),

  /** On GPUs alone. */
  'choices on several hosts': () =>
    failureOf(() => EpLowLatency.create(world, device, { ...config, combineTravels: 'choices' })),

  /** Each is refused at once, and the calls afterwards work. */
  async arguments() {
    await using ll = await EpLowLatency.create(world, device, config);
    const input = await inputOf(2);
    const { x, topkIdx, topkWeights } = input;
    const wrongs: unknown[] = [
      undefined,
      7,
      {},
      { ...input, extra: 1 },
      { ...input, x: await tokens(9) },
      { ...input, x: device.empty('f32', [2, 16]) },
      { ...input, x: new Uint16Array(32) },
      { ...input, topkIdx: await ids([[0, 1]]) },
      { x, topkIdx },
      { ...input, topkWeights: await weightsOf(2, 1) },
      { ...input, dtype: 'f32' },
      { ...input, dtype: 'bf16', scales: 'f32' },
      { ...input, scales: 'e8m0' },
      { ...input, scales: 'toString' },
      { ...input, out: x },
      { ...input, out: { data: x, scales: x } },
      { ...input, waitStats: await ids([[0]]) },
      { ...input, cumulativeLocalExpertRecvStats: await ids([[0]]) },
      { ...input, returnRecvHook: 1 },
      { ...input, timeoutMs: Number.NaN },
    ];
    // On GPUs kernels find them, and the object is of no use afterwards. Here they are dispatches that failed on all ranks.
    const badChoices: readonly unknown[] = [
      {
        ...input,
        topkIdx: await ids([
          [0, 4],
          [1, 2],
        ]),
      },
      {
        ...input,
        topkIdx: await ids([
          [0, -2],
          [1, 2],
        ]),
      },
    ];
    for (const [at, wrong] of wrongs.entries()) await assert.rejects(ll.dispatch(as(wrong)), invalid, `dispatch ${at}`);
    const first = await ll.dispatch(input);
    const args = combineArgs(first);
    const wrongCombines: readonly unknown[] = [
      undefined,
      { ...args, handle: {} },
      { ...args, x },
      { ...args, topkWeights },
      { ...args, out: await tokens(3) },
      { ...args, zeroCopy: 'yes' },
      { ...args, timeoutMs: -1 },
    ];
    for (const [at, wrong] of wrongCombines.entries()) {
      await assert.rejects(ll.combine(as(wrong)), invalid, `combine ${at}`);
    }
    await assert.rejects(ll.combineInput(first.handle), { code: 'WL_UNSUPPORTED' });
    const pending = await ll.dispatch({ ...input, returnRecvHook: true });
    await assert.rejects(pending.hook({ timeoutMs: as('soon') }), invalid);
    await pending.hook();
    await assert.rejects(pending.hook(), /was called before/);
    const combining = await ll.combine({ ...args, returnRecvHook: true });
    await assert.rejects(ll.combine(args), /hook was not called/);
    await assert.rejects(ll.dispatch(input), /the hook of the combine of dispatch 1/);
    await combining.hook();
    const [third, fourth] = [
      await ll.dispatch({ ...input, returnRecvHook: true }),
      await ll.dispatch({ ...input, returnRecvHook: true }),
    ];
    await assert.rejects(ll.dispatch(input), /the hook of dispatch 3/);
    await fourth.hook();
    await third.hook();
    await assert.rejects(ll.combine(args), /one of the last two dispatches/);
    for (const bad of device.kind === 'cpu' ? badChoices : []) await assert.rejects(ll.dispatch(as(bad)), invalid);
    await ll.dispatch(input);
    const other = await EpLowLatency.create(world, device, { ...config, layout: 'rank-major' });
    await assert.rejects(other.combine(args), /a handle of another object/);
    await assert.rejects(other.dispatch({ ...input, out: x }), invalid);
    const { recvX, handle } = await other.dispatch({ ...input, dtype: 'bf16' });
    await assert.rejects(other.dispatch({ ...input, x: as(recvX) }), invalid);
    const y = device.empty('bf16', [world.size, 8, 16]);
    await assert.rejects(other.combine({ x: y, handle, zeroCopy: true }), /combineInput/);
    const own = await other.combineInput(handle);
    await assert.rejects(other.combine({ x: y, handle, out: own.reshape([world.size * 8, 16]).slice(0, 2) }), /window/);
    await other.combine({ x: own, handle, zeroCopy: true });
    await world.barrier('done');
    await other.close();
    await ll.close();
    await ll.close();
    await assert.rejects(ll.dispatch(input), { code: 'WL_CLOSED' });
    return 'refused';
  },
};

for (const name of process.argv.slice(2)) {
  const scenario = Object.entries(scenarios).find(([known]) => known === name)?.[1];
  if (scenario === undefined) throw new Error(`no scenario ${name}`);
  console.log(JSON.stringify(await scenario()));
}
await world.close();
