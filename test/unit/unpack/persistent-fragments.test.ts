// What a persistent launcher tells its kernel, with a driver and a kernel that are only pretended.
import assert from 'node:assert/strict';
import test from 'node:test';
import { blockHeaderWord, persistentControl, persistentStates, slotShareWord } from '#lib/abi/unpack.js';
import { CudaContext } from '#lib/device/cuda/cuda-context.js';
import type { CudaDevice } from '#lib/device/cuda/cuda-device.js';
import { CudaStream } from '#lib/device/cuda/cuda-stream.js';
import { HostMemory } from '#lib/device/cuda/host-memory.js';
import { addressOf } from '#lib/native/library.js';
import { PersistentFragments } from '#lib/unpack/cuda/persistent-fragments.js';
import { checkConfig } from '#lib/unpack/launcher-config.js';
import { DescriptorBlock } from 'weftline/unpack';
import { pretendDriver } from '../support/pretended-driver.js';

const SLOTS = 4;
const CONTROLS = SLOTS + 2;
const CONTROL_WORDS = persistentControl.size / 4;
const run = { ticket: 0, firstSlot: 0, blocks: 1, mostDescriptors: 1, isSmall: false, waits: false };

interface Pretended {
  readonly engine: PersistentFragments;
  /** A control for each kernel, and the posts that are done. */
  readonly words: Int32Array;
  readonly context: CudaContext;
  /** Statuses of the driver's calls. */
  readonly status: ReturnType<typeof pretendDriver>['status'];
  /** The arguments of each launch. */
  readonly launches: Record<string, number>[];
  /** What the next launch throws. */
  failure: Error | undefined;
}

async function pretend(timeoutMs = 30_000): Promise<Pretended> {
  const { driver, status } = pretendDriver();
  const memories: SharedArrayBuffer[] = [];
  const addresses: bigint[] = [];
  status.cuMemHostAlloc = (...[out, bytes]: unknown[]) => {
    const memory = new SharedArrayBuffer(bytes as number);
    memories.push(memory);
    addresses.push(addressOf(new Uint8Array(memory)));
    (out as number[])[0] = Number(addresses.at(-1));
    return 0;
  };
  const context = CudaContext.retain(0, driver);
  const launches: Record<string, number>[] = [];
  const values: Record<string, number> = {};
  const made: { failure: Error | undefined } = { failure: undefined };
  const plan = {
    arguments: { set: (name: string, value: number) => (values[name] = value) },
    launch: () => {
      if (made.failure !== undefined) throw made.failure;
      launches.push({ ...values });
    },
  };
  const kernel = { plan: () => plan };
  const createStream = (): CudaStream =>
    new CudaStream(context, { priority: 'normal', timeoutMs: 30_000 }, () => undefined);
  const device = {
    context,
    stream: createStream(),
    createStream,
    allocateHost: (bytes: number) => new HostMemory(context, bytes),
    empty: () => ({ address: 4096, [Symbol.dispose]: () => undefined }),
    setBytes: () => undefined,
    loadKernels: () => Promise.resolve({ unpackPersistent: kernel, packPersistent: kernel }),
  };
  const config = checkConfig({ persistent: true, idleMs: 1, timeoutMs, pool: { slots: SLOTS }, numSms: 2 }, 4);
  const engine = await PersistentFragments.create(device as unknown as CudaDevice, config, 'unpack');
  const memory = memories.find(({ byteLength }) => byteLength === 4 * (CONTROLS * CONTROL_WORDS + SLOTS))!;
  return Object.assign(made, { engine, words: new Int32Array(memory), launches, context, status });
}

function control(words: Int32Array, number: number): { posted: number; mustStop: number; state: number } {
  const [posted, mustStop, state] = words.subarray(number * CONTROL_WORDS);
  return { posted: posted!, mustStop: mustStop!, state: state! };
}

test('a launch whose kernel could not be started posts nothing: the next one takes its place', async () => {
  const pretended = await pretend();
  const { engine, words, launches } = pretended;
  pretended.failure = new Error('no kernel');
  assert.throws(() => engine.submit(run), { message: 'no kernel' });
  assert.deepEqual(control(words, 0), { posted: 0, mustStop: 0, state: persistentStates.left });
  pretended.failure = undefined;
  engine.submit({ ...run, blocks: 2 });
  assert.deepEqual(control(words, 0), { posted: 2, mustStop: 0, state: persistentStates.runs });
  assert.deepEqual([launches.length, launches[0]!['taken'], launches[0]!['firstSlot']], [1, 0, 0]);
  const done = words.subarray(CONTROLS * CONTROL_WORDS);
  done.set([1]);
  assert.equal(engine.isDone(0), false);
  done.set([1, 2]);
  assert.equal(engine.isDone(0), true);
});

test('a kernel that has stayed long is told to leave, and one behind it takes what is posted then', async (context) => {
  let now = 1000;
  context.mock.method(performance, 'now', () => now);
  const pretended = await pretend();
  const { engine, words, launches } = pretended;
  engine.submit(run);
  now += 50;
  engine.submit({ ...run, ticket: 1, firstSlot: 1 });
  assert.equal(launches.length, 1);
  now += 60;
  pretended.failure = new Error('no kernel');
  assert.throws(() => engine.submit({ ...run, ticket: 2, firstSlot: 2 }), { message: 'no kernel' });
  assert.deepEqual(control(words, 0), { posted: 2, mustStop: 0, state: persistentStates.runs });
  pretended.failure = undefined;
  engine.submit({ ...run, ticket: 2, firstSlot: 2 });
  assert.deepEqual(control(words, 0), { posted: 2, mustStop: 1, state: persistentStates.runs });
  assert.deepEqual(control(words, 1), { posted: 3, mustStop: 0, state: persistentStates.runs });
  assert.deepEqual([launches.length, launches[1]!['taken'], launches[1]!['firstSlot']], [2, 2, 2]);
  assert.equal(launches[1]!['control']! - launches[0]!['control']!, persistentControl.size);
  // As long as the first one has not left, there is none to hand over to.
  now += 200;
  engine.submit({ ...run, ticket: 3, firstSlot: 3 });
  assert.deepEqual([launches.length, control(words, 1).posted], [2, 4]);
});

/** A slot that moves from one place to another. */
function fill({ engine }: Pretended, slot: number, from: number, to: number): void {
  const block = new DescriptorBlock(1).begin({ address: from, bytes: 100 }, { address: to, bytes: 100 }).add(0, 1, 0);
  engine.slotWords(slot).set(block.words);
}

test('a launch that reads what another one writes, or writes what it reads, is moved by a kernel behind it', async () => {
  const pretended = await pretend(1e6);
  const { engine, words, launches } = pretended;
  const done = words.subarray(CONTROLS * CONTROL_WORDS);
  fill(pretended, 0, 1000, 2000);
  engine.submit(run);
  // Beside the first one: both read the same and write the same memory.
  fill(pretended, 1, 1000, 2000);
  engine.submit({ ...run, ticket: 1, firstSlot: 1 });
  assert.equal(launches.length, 1);
  fill(pretended, 2, 2050, 3000);
  engine.submit({ ...run, ticket: 2, firstSlot: 2 });
  assert.deepEqual([control(words, 0).posted, control(words, 0).mustStop], [2, 1]);
  assert.deepEqual([launches.length, launches[1]!['taken'], control(words, 1).posted], [2, 2, 3]);
  // A third kernel behind both, although none has left.
  fill(pretended, 3, 5000, 2090);
  engine.submit({ ...run, ticket: 3, firstSlot: 3 });
  assert.deepEqual([control(words, 1).posted, control(words, 1).mustStop], [3, 1]);
  assert.deepEqual([launches.length, launches[2]!['taken'], control(words, 2).posted], [3, 3, 4]);
  // What is done is no reason to wait.
  done.set([1, 2, 3, 4]);
  fill(pretended, 0, 3000, 1000);
  engine.submit({ ...run, ticket: 0, firstSlot: 0 });
  assert.deepEqual([launches.length, control(words, 2).posted], [3, 5]);
});

test('what a warp takes of a slot depends on what was posted alone, and the warps take turns', async () => {
  const pretended = await pretend(1e6);
  const { engine } = pretended;
  // 2 blocks of 16 warps.
  assert.equal(engine.warps, 32);
  const share = (slot: number): number[] => {
    const words = engine.slotWords(slot);
    return [words[slotShareWord.groupDescriptors]!, words[slotShareWord.firstWarp]!];
  };
  for (let slot = 0; slot < SLOTS; slot++) fill(pretended, slot, 1000, 2000);
  engine.slotWords(0)[blockHeaderWord.count] = 20;
  engine.submit(run);
  engine.slotWords(1)[blockHeaderWord.count] = 50;
  engine.slotWords(2)[blockHeaderWord.count] = 15;
  engine.submit({ ...run, ticket: 1, firstSlot: 1, blocks: 2 });
  engine.slotWords(3)[blockHeaderWord.count] = 4096;
  engine.submit({ ...run, ticket: 2, firstSlot: 3 });
  // 20 groups, then 17 and 5, then 128.
  assert.deepEqual([0, 1, 2, 3].map(share), [
    [1, 0],
    [3, 20],
    [3, 5],
    [32, 10],
  ]);
});

test('launches that depend on each other find a kernel each, however long that goes on', async () => {
  const pretended = await pretend(1e6);
  const { engine, words, launches } = pretended;
  const done = words.subarray(CONTROLS * CONTROL_WORDS);
  for (let launch = 0; launch < 40; launch++) {
    const slot = launch % SLOTS;
    // The oldest one is done, and the kernels before its own have left.
    if (launch >= SLOTS) {
      done[slot] = launch - SLOTS + 1;
      for (let old = Math.max(0, launch - CONTROLS + 1); old < launch - SLOTS; old++) {
        words[(old % CONTROLS) * CONTROL_WORDS + 2] = persistentStates.left;
      }
    }
    fill(pretended, slot, 1000 * (launch + 1), 1000 * (launch + 2));
    engine.submit({ ...run, ticket: slot, firstSlot: slot });
    assert.equal(launches.length, launch + 1);
    assert.deepEqual(control(words, launch % CONTROLS), {
      posted: launch + 1,
      mustStop: 0,
      state: persistentStates.runs,
    });
  }
});

test('whoever looks at a launch learns that its kernel failed, or that the device was closed', async () => {
  const pretended = await pretend();
  const { engine, status, context } = pretended;
  engine.submit(run);
  assert.equal(engine.isDone(0), false);
  status.cuStreamQuery = 700;
  const looks = (): void => {
    for (let look = 0; look < 1000; look++) engine.isDone(0);
  };
  assert.throws(looks, { code: 'WL_CUDA' });
  assert.throws(() => engine.requireOpen(), { code: 'WL_CUDA' });
  const other = await pretend();
  other.engine.submit(run);
  other.context[Symbol.dispose]();
  assert.throws(() => other.engine.isDone(0), { code: 'WL_CLOSED' });
  assert.throws(() => other.engine.requireOpen(), { code: 'WL_CLOSED' });
  assert.ok(context.lost !== undefined);
});

test('a device that is closed tells the kernel to leave, and its memory is not touched afterwards', async () => {
  const { engine, words, context } = await pretend();
  engine.submit(run);
  for (const work of context.stayingWork) work.leave();
  assert.equal(control(words, 0).mustStop, 1);
  context[Symbol.dispose]();
  words.fill(0);
  await engine.close();
  assert.ok(words.every((word) => word === 0));
  assert.equal(context.stayingWork.size, 0);
});

test('a launcher that is closed ends waits for flags when one of them should have ended, and may be closed again', async (context) => {
  let now = 0;
  context.mock.method(performance, 'now', () => (now += 10));
  const { engine, status } = await pretend(100);
  engine.submit(run);
  const notReady = 600;
  status.cuStreamQuery = notReady;
  await assert.rejects(engine.close(), { code: 'WL_TIMEOUT' });
  status.cuStreamQuery = 0;
  let isLookedAt = false;
  await engine.close(() => (isLookedAt = true));
  assert.equal(isLookedAt, true);
});
