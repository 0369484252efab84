// What a persistent launcher tells its kernel, with a driver and a kernel that are only pretended.
import assert from 'node:assert/strict';
import test from 'node:test';
import { persistentControl, persistentStates, RING_SLOT_BYTES } from '#lib/abi/unpack-block.js';
import { CudaContext } from '#lib/device/cuda/cuda-context.js';
import type { CudaDevice } from '#lib/device/cuda/cuda-device.js';
import { CudaStream } from '#lib/device/cuda/cuda-stream.js';
import { HostMemory } from '#lib/device/cuda/host-memory.js';
import { addressOf } from '#lib/native/library.js';
import { PersistentFragments } from '#lib/unpack/cuda/persistent-fragments.js';
import { checkConfig } from '#lib/unpack/launcher-config.js';
import { pretendDriver } from '../support/pretended-driver.js';

const SLOTS = 4;
const CONTROL_WORDS = persistentControl.size / 4;
const run = { ticket: 0, firstSlot: 0, blocks: 1, mostDescriptors: 1, isSmall: false, waits: false };

interface Pretended {
  readonly engine: PersistentFragments;
  /** The two controls, and the posts that are done. */
  readonly words: Int32Array;
  /** The arguments of each launch. */
  readonly launches: Record<string, number>[];
  /** What the next launch throws. */
  failure: Error | undefined;
}

async function pretend(): Promise<Pretended> {
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
    new CudaStream(context, { priority: 'normal', timeoutMs: 100 }, () => undefined);
  const device = {
    context,
    stream: createStream(),
    createStream,
    allocateHost: (bytes: number) => new HostMemory(context, bytes),
    empty: () => ({ address: 4096, dispose: () => undefined }),
    setBytes: () => undefined,
    loadKernels: () => Promise.resolve({ unpackPersistent: kernel, packPersistent: kernel }),
  };
  const config = checkConfig({ persistent: true, idleMs: 1, pool: { slots: SLOTS }, numSms: 2 }, 4);
  const engine = await PersistentFragments.create(device as unknown as CudaDevice, config, 'unpack');
  const memory = memories.find(({ byteLength }) => byteLength < RING_SLOT_BYTES)!;
  return Object.assign(made, { engine, words: new Int32Array(memory), launches });
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
  const done = words.subarray(2 * CONTROL_WORDS);
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
