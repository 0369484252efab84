// Launchers in trouble, one scenario per process: whoever hangs, in a call of the driver too, is killed by its parent.
import assert from 'node:assert/strict';
import { setImmediate as nextTurn } from 'node:timers/promises';
import { seededRandom } from '#lib/core/seeded-random.js';
import { CudaDevice, WeftlineError } from 'weftline';
import { DescriptorBlock, type LauncherConfig, PackLauncher, UnpackLauncher } from 'weftline/unpack';
import { blocksOf, randomBytes, randomList, referenceUnpack } from '../../support/fragment-lists.js';
import { seed } from '../../support/seed.js';
import { checkPlaced, contentsOf, type Placed, place } from '../../support/unpack-conformance.js';

const userKernels = `
#include "weftline/wait.cuh"
extern "C" __global__ void spin(unsigned long long ns) {
  const unsigned long long start = weftline::globalTimer();
  while (weftline::globalTimer() - start < ns) {}
}
extern "C" __global__ void raiseFlag(unsigned long long* word, unsigned long long value) {
  weftline::storeReleaseSystem(word, value);
}
`;
const userParameters = { spin: { ns: 'u64' }, raiseFlag: { word: 'ptr', value: 'u64' } } as const;
const MILLISECOND = 1_000_000;

interface Work {
  readonly blocks: readonly DescriptorBlock[];
  readonly check: () => Promise<void>;
  /** The destination is as it was before. */
  readonly clear: () => Promise<void>;
}

/** Fragments with a bounce buffer and a destination of their own. */
async function work(device: CudaDevice, number: number, count = 2000): Promise<Work> {
  const list = randomList(seed + number, { count, length: (random) => Math.floor(random() ** 3 * 5000) });
  const bounce = await place(device, randomBytes(number, list.bounceBytes), number % 16);
  const destination = await place(device, new Uint8Array(list.destinationBytes), (number * 3) % 16);
  return {
    blocks: blocksOf(list, bounce.span, destination.span, 500),
    check: () => checkPlaced(destination, referenceUnpack(list, contentsOf(bounce), contentsOf(destination))),
    clear: () => destination.tensor.fromHost(destination.before),
  };
}

async function flagged(device: CudaDevice): Promise<{ block: DescriptorBlock; flag: Placed; destination: Placed }> {
  const flag = await place(device, new Uint8Array(8), 0);
  const bounce = await place(device, randomBytes(1, 1000), 0);
  const destination = await place(device, new Uint8Array(1000), 0);
  const ready = { address: flag.span.address, threshold: 5 };
  const block = new DescriptorBlock(1).begin(bounce.span, destination.span, ready).add(0, 1000, 0);
  return { block, flag, destination };
}

const scenarios: Readonly<Record<string, (device: CudaDevice) => Promise<void>>> = {
  /** Two kernels that want all of the GPU and always have work, and others that want it too. */
  'all-busy': async (device) => {
    const numSms = device.properties.multiprocessors;
    const config = { persistent: true, numSms, idleMs: 20, pool: { slots: 16 } };
    await using first = await UnpackLauncher.create(device, config);
    await using second = await UnpackLauncher.create(device, { ...config, idleMs: 150 });
    await using plain = await UnpackLauncher.create(device, { numSms });
    const { spin } = await device.compile({ source: userKernels, kernels: userParameters });
    const launchers = [first, second, plain];
    const works = await Promise.all(launchers.map((_, number) => work(device, number)));
    const end = performance.now() + 3_000;
    for (let round = 0; performance.now() < end; round++) {
      if (round % 10 === 0) spin.launch({ grid: 2 * numSms, block: 1024 }, { ns: MILLISECOND });
      for (const [number, launcher] of launchers.entries()) {
        await launcher.whenRoom(4);
        launcher.launch(works[number]!.blocks);
      }
    }
    for (const launcher of launchers) await launcher.wait();
    for (const { check } of works) await check();
  },

  /** Thread blocks that begin late, as others have their multiprocessors, find several posts where others found one. */
  'late-blocks': async (device) => {
    const numSms = device.properties.multiprocessors;
    await using first = await UnpackLauncher.create(device, { persistent: true, numSms: 5, idleMs: 10 });
    await using unpacker = await UnpackLauncher.create(device, { persistent: true, numSms, idleMs: 2 });
    const works = [];
    for (let number = 0; number < 6; number++) works.push(await work(device, number, 700));
    const other = await work(device, 9, 10);
    for (let round = 0; round < 30; round++) {
      first.launch(other.blocks);
      for (const { blocks } of works) {
        unpacker.launch(blocks);
        // Blocks that run take it before the next one comes.
        const until = performance.now() + 0.2;
        while (performance.now() < until);
      }
      await unpacker.wait();
      for (const { check, clear } of works) {
        await check();
        await clear();
      }
      await first.wait();
    }
  },

  /** Calls of the driver that wait for the whole GPU while a kernel stays, and modules that are loaded when first used. */
  'calls-that-wait': async (device) => {
    await using unpacker = await UnpackLauncher.create(device, { persistent: true, idleMs: 30 });
    const { blocks, check } = await work(device, 1);
    const random = seededRandom(seed);
    const calls: readonly [name: string, call: (round: number) => unknown][] = [
      ['pinned memory', () => device.allocateHost(1 << 20)[Symbol.dispose]()],
      ['memory of its own', () => device.allocateShared(4 << 20)[Symbol.dispose]()],
      ['a stream', () => device.createStream()[Symbol.dispose]()],
      ['an event', () => device.createEvent()[Symbol.dispose]()],
      ['copies', async () => (await device.tensor('u8', [5 << 20], new Uint8Array(5 << 20))).toHost()],
      [
        'a module, and its first launch',
        async (round) => {
          const source = `${userKernels}// ${round}\n`;
          const { spin } = await device.compile({ source, kernels: userParameters });
          spin.launch({ grid: 1, block: 32 }, { ns: 1000 });
        },
      ],
      ['a launcher', async () => (await UnpackLauncher.create(device, { pool: { memory: 'copied' } })).close()],
      ['a kernel that stays', async () => (await PackLauncher.create(device, { persistent: true })).close()],
      ['the whole device', () => device.drained()],
    ];
    for (let round = 0; round < 60; round++) {
      const [name, call] = calls[Math.floor(random() * calls.length)]!;
      unpacker.launch(blocks);
      const begin = performance.now();
      await call(round);
      const took = performance.now() - begin;
      await unpacker.wait();
      // For those who read it: what a call waits for is the kernel, for idleMs at most.
      if (took > 5) console.log(`${name}: ${took.toFixed(1)} ms`);
    }
    await check();
  },

  /** Launchers of all kinds that come and go, as a benchmark of many kernels makes them. */
  'come-and-go': async (device) => {
    const random = seededRandom(seed + 1);
    const pick = <T>(values: readonly T[]): T => values[Math.floor(random() * values.length)]!;
    const end = performance.now() + 5_000;
    for (let round = 0; performance.now() < end; round++) {
      const launchers: UnpackLauncher[] = [];
      const works: Work[] = [];
      for (let number = 0; number < 3; number++) {
        const config: LauncherConfig = {
          persistent: random() < 0.6,
          idleMs: pick([0.001, 1, 20, 300]),
          numSms: pick([1, 4, 16, device.properties.multiprocessors]),
          smallKernel: pick([true, false, 'auto']),
          pool: { slots: pick([4, 7, 64]), memory: pick(['mapped', 'copied']) },
        };
        launchers.push(await UnpackLauncher.create(device, config));
        works.push(await work(device, round * 3 + number, 500));
      }
      for (let launch = 0; launch < 10; launch++) {
        const number = Math.floor(random() * 3);
        await launchers[number]!.whenRoom(works[number]!.blocks.length);
        launchers[number]!.launch(works[number]!.blocks);
      }
      for (const [number, launcher] of launchers.entries()) {
        await launcher.whenRoom(works[number]!.blocks.length);
        launcher.launch(works[number]!.blocks);
        await (random() < 0.5 ? launcher.close() : launcher.wait());
      }
      for (const { check } of works) await check();
      for (const launcher of launchers) await launcher.close();
    }
  },

  /** A flag that a later kernel raises: moved if a multiprocessor is left for that kernel, and never waited for without end. */
  'flag-of-a-kernel': async (device) => {
    const { raiseFlag } = await device.compile({ source: userKernels, kernels: userParameters });
    for (const numSms of [4, device.properties.multiprocessors]) {
      await using unpacker = await UnpackLauncher.create(device, { persistent: true, numSms, timeoutMs: 2_000 });
      const { block, flag, destination } = await flagged(device);
      const launch = unpacker.launch(block);
      raiseFlag.launch({ grid: 1, block: 1 }, { word: flag.span.address, value: 5 });
      try {
        await unpacker.wait(launch, { timeoutMs: 10_000 });
        await checkPlaced(destination, randomBytes(1, 1000));
      } catch (error) {
        assert.ok(error instanceof WeftlineError && error.code === 'WL_TIMEOUT', String(error));
        assert.match(error.message, /^The ready flag/);
        assert.notEqual(numSms, 4, 'there was room for the kernel that raises the flag');
      }
      await device.drained();
    }
  },

  /** Closed with work under way, and with a ring full of launches whose flags do not come. */
  'close-while-busy': async (device) => {
    for (const persistent of [true, false]) {
      const unpacker = await UnpackLauncher.create(device, { persistent, idleMs: 10_000, timeoutMs: 300 });
      const { block, destination } = await flagged(device);
      const launches = Array.from({ length: 16 }, () => unpacker.launch(block));
      await Promise.all([unpacker.close(), unpacker.close()]);
      for (const launch of launches) assert.throws(() => unpacker.isDone(launch), { code: 'WL_TIMEOUT' });
      await checkPlaced(destination, contentsOf(destination));
      const busy = await UnpackLauncher.create(device, { persistent, idleMs: 10_000 });
      const { blocks, check } = await work(device, 7, 4000);
      for (let launch = 0; launch < 2; launch++) busy.launch(blocks);
      await busy.close();
      await check();
    }
  },

  /** What a launcher stands on goes first. */
  'device-first': async (device) => {
    for (const persistent of [true, false]) {
      await using other = await CudaDevice.create({ cacheFolder: process.argv[2]!, timeoutMs: 20_000 });
      const unpacker = await UnpackLauncher.create(other, { persistent });
      const { blocks } = await work(other, 3);
      const launch = unpacker.launch(blocks);
      await other.close();
      assert.throws(() => unpacker.launch(blocks), { code: 'WL_CLOSED' });
      assert.throws(() => unpacker.isDone(launch), { code: 'WL_CLOSED' });
      await unpacker.close();
      assert.throws(() => unpacker.launch(blocks), { code: 'WL_CLOSED' });
    }
    // Flags that do not come, for minutes in all: the device does not wait for them.
    for (const persistent of [true, false]) {
      const other = await CudaDevice.create({ cacheFolder: process.argv[2]!, timeoutMs: 1_000 });
      const unpacker = await UnpackLauncher.create(other, { persistent, timeoutMs: 15_000 });
      const { block } = await flagged(other);
      for (let launch = 0; launch < 16; launch++) unpacker.launch(block);
      await assert.rejects(other.close(), { code: 'WL_TIMEOUT' });
      await unpacker.close();
    }
    using own = device.createStream();
    await using unpacker = await UnpackLauncher.create(device, { stream: own });
    const { blocks, check } = await work(device, 4);
    unpacker.launch(blocks);
    own[Symbol.dispose]();
    assert.throws(() => unpacker.launch(blocks), { code: 'WL_INVALID_ARGUMENT' });
    await unpacker.wait();
    await check();
  },

  /** Memory that is given back with its launch under way is not given to another before that has ended. */
  'memory-given-back': async (device) => {
    await using unpacker = await UnpackLauncher.create(device, { persistent: true, idleMs: 5, pool: { slots: 64 } });
    const source = await place(device, randomBytes(1, 1 << 20), 0);
    const target = await place(device, new Uint8Array(1 << 20), 0);
    for (let round = 0; round < 200; round++) {
      const between = device.empty('u8', [1 << 20]);
      await unpacker.whenRoom(2);
      const out = new DescriptorBlock().begin(source.span, between);
      const back = new DescriptorBlock().begin(between, target.span);
      for (let at = 0; at < 1 << 20; at += 4096) {
        out.add(at, 4096, at);
        back.add(at, 4096, at);
      }
      unpacker.launch(out);
      unpacker.launch(back);
      between.close();
      // Whoever is given the same memory writes at once.
      using next = device.empty('u8', [1 << 20]);
      device.setBytes(next, 0xee);
      if (round % 20 === 0) await nextTurn();
    }
    await unpacker.wait();
    await checkPlaced(target, contentsOf(source));
  },
};

const scenario = scenarios[process.argv[3]!]!;
await using device = await CudaDevice.create({ cacheFolder: process.argv[2]!, timeoutMs: 20_000 });
await scenario(device);
