// What launchers do on every device: the tests of weftline/unpack, run by a file per device.
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { setImmediate as nextTurn } from 'node:timers/promises';
import { seededRandom } from '#lib/core/seeded-random.js';
import { CpuDevice, type CudaDevice, type Tensor, WeftlineError } from 'weftline';
import { DescriptorBlock, type LauncherConfig, PackLauncher, UnpackLauncher } from 'weftline/unpack';
import {
  blocksOf,
  type FragmentList,
  type ListShape,
  randomBytes,
  randomList,
  referencePack,
  referenceUnpack,
} from './fragment-lists.ts';
import { seed } from './seed.ts';
import type { MemorySpan } from '#lib/unpack/descriptor-block.js';

export type UnpackDevice = CpuDevice | CudaDevice;

export interface ConformanceOptions {
  readonly open: () => Promise<UnpackDevice>;
  readonly skip: string | false;
  /** In the names of the tests. */
  readonly name: string;
  readonly configs: readonly LauncherConfig[];
}

const shapes: Readonly<Record<string, ListShape>> = {
  'of any length and alignment': { count: 700, length: (random) => Math.floor(random() ** 3 * 5000) },
  'of 1 byte': { count: 2048, length: () => 1, gap: 7 },
  'of 0 to 3 bytes': { count: 900, length: (random) => Math.floor(random() * 4), gap: 3 },
  'of 2048 to a block': { count: 2048, length: () => 256, alignment: 16, gap: 100 },
  'in several blocks': { count: 6000, length: (random) => 1 + Math.floor(random() * 600), gap: 9 },
  'of pages': { count: 100, length: () => 4096, alignment: 4096, gap: 9000 },
  'of odd packets': { count: 500, length: () => 1452, alignment: 4, gap: 64 },
  'at multiples of 8': { count: 400, length: (random) => 8 * Math.floor(random() * 90), alignment: 8 },
  'at multiples of 2': { count: 400, length: (random) => 2 * Math.floor(random() * 90), alignment: 2 },
  'with long ones among short ones': {
    count: 40,
    length: (random) => (random() < 0.1 ? 100_000 + Math.floor(random() * 7) : Math.floor(random() * 50)),
  },
  'without one': { count: 0, length: () => 0 },
};

/** Bytes at an address of any remainder, inside of a tensor that has more on both sides. */
export interface Placed {
  readonly tensor: Tensor<'u8'>;
  readonly span: MemorySpan;
  readonly before: Uint8Array;
}

export async function place(device: UnpackDevice, contents: Uint8Array, remainder: number): Promise<Placed> {
  const before = randomBytes(contents.length, contents.length + 64);
  before.set(contents, remainder);
  const tensor = await device.tensor('u8', [before.length], before);
  return { tensor, span: { address: tensor.address + remainder, bytes: contents.length }, before };
}

export function testUnpack({ open, skip, name, configs }: ConformanceOptions): void {
  const run = (title: string, body: (device: UnpackDevice) => Promise<void>): void => {
    test(`${name}: ${title}`, { skip }, async () => {
      await using device = await open();
      await body(device);
    });
  };

  for (const [index, config] of configs.entries()) {
    for (const [title, shape] of Object.entries(shapes)) {
      run(
        `fragments ${title} are unpacked and packed as by the reference, ${JSON.stringify(config)}`,
        async (device) => {
          const random = seededRandom(seed + index);
          for (let round = 0; round < 2; round++) {
            const list = randomList(seed + index * 100 + round, shape);
            const remainders =
              shape.alignment === undefined ? [Math.floor(random() * 16), Math.floor(random() * 16)] : [0, 0];
            await checkBoth(device, config, list, remainders as [number, number]);
          }
        },
      );
    }
  }

  run('several launches follow each other through a short ring', async (device) => {
    await using unpacker = await UnpackLauncher.create(device, { pool: { slots: 3 } });
    const list = randomList(seed, { count: 3000, length: () => 100 });
    const bounce = await place(device, randomBytes(1, list.bounceBytes), 0);
    const destination = await place(device, new Uint8Array(list.destinationBytes), 3);
    let last = 0;
    for (const block of blocksOf(list, bounce.span, destination.span, 100)) {
      await unpacker.whenRoom(1);
      last = unpacker.launch(block);
      block.begin(bounce.span, destination.span);
    }
    await unpacker.wait(last);
    assert.equal(unpacker.isDone(last), true);
    assert.equal(unpacker.room, 3);
    await checkPlaced(destination, referenceUnpack(list, contentsOf(bounce), contentsOf(destination)));
  });

  for (const config of configs) {
    run(`what was prepared is launched again and again, ${JSON.stringify(config)}`, async (device) => {
      await using unpacker = await UnpackLauncher.create(device, config);
      const list = randomList(seed, { count: 3000, length: (random) => Math.floor(random() ** 4 * 9000) });
      const bounce = await place(device, randomBytes(1, list.bounceBytes), 0);
      const destination = await place(device, new Uint8Array(list.destinationBytes), 3);
      const blocks = blocksOf(list, bounce.span, destination.span);
      const prepared = unpacker.prepare(blocks);
      const moved = list.fragments.filter(({ length }) => length > 0);
      assert.deepEqual([prepared.blocks, prepared.fragments], [blocks.length, moved.length]);
      // It holds copies.
      for (const block of blocks) block.bytes.fill(0xff);
      const expected = referenceUnpack(list, contentsOf(bounce), contentsOf(destination));
      for (let round = 0; round < 12; round++) {
        await unpacker.launchSync(prepared);
        await checkPlaced(destination, expected);
        await destination.tensor.fromHost(destination.before);
      }
    });
  }

  for (const config of configs) {
    run(`a launch that reads what the one before wrote finds it there, ${JSON.stringify(config)}`, async (device) => {
      await using unpacker = await UnpackLauncher.create(device, { ...config, pool: { slots: 6, ...config.pool } });
      const bytes = 300_000;
      const contents = randomBytes(1, bytes);
      const places = [await place(device, contents, 0)];
      while (places.length < 3) places.push(await place(device, new Uint8Array(bytes), places.length));
      // Each launch moves everything on by one place and by some bytes, and the last one writes what the first one read.
      const rounds = 60;
      for (let round = 0; round < rounds; round++) {
        await unpacker.whenRoom();
        const block = new DescriptorBlock().begin(places[round % 3]!.span, places[(round + 1) % 3]!.span);
        for (let at = 0; at < bytes; at += 1000) block.add(at, 1000, (at + 7000) % bytes);
        unpacker.launch(block);
      }
      await unpacker.wait();
      const turned = (rounds * 7000) % bytes;
      const expected = new Uint8Array(bytes);
      expected.set(contents.subarray(0, bytes - turned), turned);
      expected.set(contents.subarray(bytes - turned));
      await checkPlaced(places[rounds % 3]!, expected);
    });
  }

  run('what another launcher prepared is refused, and so are bad blocks', async (device) => {
    await using unpacker = await UnpackLauncher.create(device);
    await using other = await UnpackLauncher.create(device);
    const { blocks } = await twoBlocks(device);
    const prepared = other.prepare(blocks);
    assert.throws(() => unpacker.launch(prepared), { code: 'WL_INVALID_ARGUMENT' });
    blocks[1].add(0, 10, 495);
    assert.throws(() => unpacker.prepare(blocks), withDetails({ block: 1, otherBlock: 0, otherDescriptor: 1 }));
    assert.throws(() => unpacker.prepare([]), { code: 'WL_INVALID_ARGUMENT' });
    await other.launchSync(prepared);
  });

  run('what was packed is unpacked by the same block', async (device) => {
    await using packer = await PackLauncher.create(device);
    await using unpacker = await UnpackLauncher.create(device);
    const list = randomList(seed, { count: 1000, length: (random) => Math.floor(random() * 300) });
    const from = await place(device, randomBytes(2, list.destinationBytes), 1);
    const bounce = await place(device, new Uint8Array(list.bounceBytes), 2);
    const to = await place(device, new Uint8Array(list.destinationBytes), 9);
    await packer.launchSync(blocksOf(list, bounce.span, from.span));
    await unpacker.launchSync(blocksOf(list, bounce.span, to.span));
    const packed = {
      ...bounce,
      before: referenceIn(bounce, referencePack(list, contentsOf(bounce), contentsOf(from))),
    };
    await checkPlaced(to, referenceUnpack(list, contentsOf(packed), contentsOf(to)));
  });

  run('a launch with profiling counts what it moved', async (device) => {
    await using unpacker = await UnpackLauncher.create(device, { profiling: true });
    const list = randomList(seed, { count: 100, length: (random) => Math.floor(random() * 2) * 64 });
    const bounce = await place(device, randomBytes(3, list.bounceBytes), 0);
    const destination = await place(device, new Uint8Array(list.destinationBytes), 0);
    await unpacker.launchSync(blocksOf(list, bounce.span, destination.span));
    await unpacker.launchSync(blocksOf(list, bounce.span, destination.span));
    const moved = list.fragments.filter(({ length }) => length > 0);
    const profile = unpacker.profile();
    assert.deepEqual(
      [profile.launches, profile.blocks, profile.fragments, profile.bytes],
      [2, 2, 2 * moved.length, 2 * 64 * moved.length],
    );
    assert.ok(profile.checkMicroseconds > 0 && profile.submitMicroseconds > 0 && profile.deviceMicroseconds > 0);
  });

  testMistakes(run);
  testReadiness(run);
}

async function checkBoth(
  device: UnpackDevice,
  config: LauncherConfig,
  list: FragmentList,
  remainders: readonly [number, number],
): Promise<void> {
  await using unpacker = await UnpackLauncher.create(device, config);
  await using packer = await PackLauncher.create(device, config);
  const [bounce, destination] = [
    await place(device, randomBytes(4, list.bounceBytes), remainders[0]),
    await place(device, randomBytes(5, list.destinationBytes), remainders[1]),
  ];
  const blocks = blocksOf(list, bounce.span, destination.span);
  await unpacker.launchSync(blocks.length === 1 ? blocks[0]! : blocks);
  await checkPlaced(destination, referenceUnpack(list, contentsOf(bounce), contentsOf(destination)));
  // Other bytes, so that a pack that does nothing is seen.
  const later = await place(device, randomBytes(6, list.destinationBytes), remainders[1]);
  await packer.launchSync(blocksOf(list, bounce.span, later.span));
  await checkPlaced(bounce, referencePack(list, contentsOf(bounce), contentsOf(later)));
  for (const { tensor } of [bounce, destination, later]) tensor.close();
}

function testMistakes(run: (title: string, body: (device: UnpackDevice) => Promise<void>) => void): void {
  const mistakes: readonly [title: string, spoil: (block: DescriptorBlock) => void, details: object][] = [
    [
      'that ends outside of the bounce buffer',
      (block) => block.add(900, 200, 0),
      { block: 0, descriptor: 2, side: 'source', offset: 900, length: 200, bytes: 1000 },
    ],
    [
      'that ends outside of the destination',
      (block) => block.add(0, 200, 1900),
      { block: 0, descriptor: 2, side: 'destination', offset: 1900, length: 200, bytes: 2000 },
    ],
    [
      'whose offset is beyond all memory',
      (block) => block.add(0, 1, 2 ** 53 - 1),
      { block: 0, descriptor: 2, side: 'destination' },
    ],
  ];
  for (const [title, spoil, details] of mistakes) {
    run(`a descriptor ${title} is refused by its number, and nothing is moved`, async (device) => {
      await refused(device, spoil, details);
    });
  }

  run('two fragments for the same bytes are refused, whichever order they come in', async (device) => {
    await refused(
      device,
      (block) => block.add(300, 50, 549),
      { block: 0, descriptor: 2, otherDescriptor: 1 },
      'unpack',
    );
    await refused(
      device,
      (block) => block.add(300, 50, 451),
      { block: 0, descriptor: 2, otherDescriptor: 1 },
      'unpack',
    );
    await refused(device, (block) => block.add(150, 50, 900), { block: 0, descriptor: 2, otherDescriptor: 1 }, 'pack');
  });

  run('a sum that is not that of the descriptors is refused', async (device) => {
    await refused(device, (block) => (block.words[2]! += 1), { block: 0, totalBytes: 201, sum: 200 });
  });

  run('a block that counts more descriptors than it has is refused', async (device) => {
    await refused(device, (block) => (block.words[0] = 9), { block: 0, count: 9, capacity: 8 });
  });

  run('blocks of one launch may not write to the same bytes', async (device) => {
    await using unpacker = await UnpackLauncher.create(device);
    const { blocks, destination } = await twoBlocks(device);
    blocks[1].add(0, 10, 495);
    assert.throws(() => unpacker.launch(blocks), withDetails({ block: 1, otherBlock: 0, otherDescriptor: 1 }));
    await checkPlaced(destination, contentsOf(destination));
  });

  run('a block that reads what another block of the launch writes is refused', async (device) => {
    const [from, between, to] = await Promise.all([1, 2, 3].map((value) => place(device, randomBytes(value, 500), 0)));
    const first = new DescriptorBlock(1).begin(from!.span, between!.span).add(0, 100, 0);
    const second = new DescriptorBlock(1).begin(between!.span, to!.span).add(0, 100, 0);
    await using unpacker = await UnpackLauncher.create(device);
    await using packer = await PackLauncher.create(device);
    assert.throws(() => unpacker.launch([first, second]), withDetails({ block: 1, otherBlock: 0 }));
    assert.throws(() => packer.launch([first, second]), withDetails({ block: 0, otherBlock: 1 }));
    for (const placed of [from!, between!, to!]) await checkPlaced(placed, contentsOf(placed));
    // One that is empty moves nothing.
    second.begin(between!.span, to!.span);
    await unpacker.launchSync([first, second]);
  });

  run('what is no block, or a block without its memory, is refused', async (device) => {
    await using unpacker = await UnpackLauncher.create(device);
    const { blocks } = await twoBlocks(device);
    for (const wrong of [undefined, null, 7, [blocks[0], null], [{ words: blocks[0].words, capacity: 8 }]]) {
      assert.throws(() => unpacker.launch(wrong as never), { code: 'WL_INVALID_ARGUMENT' });
    }
    structuredClone(blocks[0].bytes.buffer, { transfer: [blocks[0].bytes.buffer as ArrayBuffer] });
    assert.throws(() => unpacker.launch(blocks[0]), withDetails({ block: 0 }));
  });

  run('tensors of another device, and tensors that were closed, are refused', async (device) => {
    await using unpacker = await UnpackLauncher.create(device);
    await using other = await CpuDevice.create({ addressSpaceMiB: 64 });
    const [own, second, foreign] = await Promise.all(
      [device, device, other].map((owner) => owner.tensor('u8', [1000], randomBytes(1, 1000))),
    );
    const block = new DescriptorBlock(1).begin(foreign!, own!).add(0, 1, 0);
    assert.throws(() => unpacker.launch(block), withDetails({ block: 0, memory: 'bounce buffer' }));
    assert.throws(
      () => unpacker.prepare(block.begin(own!, foreign!)),
      withDetails({ block: 0, memory: 'destination' }),
    );
    block.begin(own!.slice(0, 500), second!).add(0, 1, 0);
    const prepared = unpacker.prepare(block);
    await unpacker.launchSync(prepared);
    second!.close();
    const closed = { code: 'WL_CLOSED', message: /^Cannot launch block 0: the tensor of its destination was closed/ };
    for (const launched of [prepared, block]) assert.throws(() => unpacker.launch(launched), closed);
    assert.throws(() => unpacker.prepare(block), closed);
    assert.equal(unpacker.room, 16);
  });

  run('a bounce buffer inside of its destination is refused', async (device) => {
    await using unpacker = await UnpackLauncher.create(device);
    const memory = await place(device, randomBytes(7, 3000), 0);
    const { address } = memory.span;
    const block = new DescriptorBlock().begin({ address: address + 1000, bytes: 10 }, memory.span).add(0, 1, 0);
    assert.throws(() => unpacker.launch(block), withDetails({ block: 0 }));
  });

  run('more blocks than the ring has are refused, and a full ring is busy', async (device) => {
    await using unpacker = await UnpackLauncher.create(device, { pool: { slots: 2 } });
    const { blocks } = await twoBlocks(device);
    assert.throws(() => unpacker.launch([...blocks, ...blocks]), { code: 'WL_INVALID_ARGUMENT' });
    assert.throws(() => unpacker.launch([]), { code: 'WL_INVALID_ARGUMENT' });
    await assert.rejects(unpacker.wait(1), { code: 'WL_INVALID_ARGUMENT' });
  });

  run('a launcher that was closed refuses launches, and may be closed again', async (device) => {
    const unpacker = await UnpackLauncher.create(device);
    const { blocks } = await twoBlocks(device);
    await unpacker.launchSync(blocks);
    const last = unpacker.launch(blocks);
    await Promise.all([unpacker.close(), unpacker.close()]);
    assert.deepEqual([unpacker.isDone(last), unpacker.room], [true, 16]);
    await unpacker.wait();
    assert.throws(() => unpacker.launch(blocks), { code: 'WL_CLOSED' });
    assert.throws(() => unpacker.prepare(blocks), { code: 'WL_CLOSED' });
  });

  run('what is no stream is refused, for a launcher and for a launch', async (device) => {
    await using unpacker = await UnpackLauncher.create(device);
    const { blocks, destination } = await twoBlocks(device);
    for (const stream of [null, 7, {}, { context: {}, handle: 1 }] as never[]) {
      await assert.rejects(UnpackLauncher.create(device, { stream }), { code: 'WL_INVALID_ARGUMENT' });
      assert.throws(() => unpacker.launch(blocks[0], { stream }), { code: 'WL_INVALID_ARGUMENT' });
    }
    await checkPlaced(destination, contentsOf(destination));
    assert.equal(unpacker.room, 16);
  });

  run('launches that were never made, and waits without an end, are refused', async (device) => {
    await using unpacker = await UnpackLauncher.create(device);
    const { blocks } = await twoBlocks(device);
    const launch = unpacker.launch(blocks[0]);
    const refusal = { code: 'WL_INVALID_ARGUMENT' };
    for (const wrong of [launch + 1, -1, 0.5, Number.NaN, '1', null, {}] as number[]) {
      assert.throws(() => unpacker.isDone(wrong), refusal);
      await assert.rejects(unpacker.wait(wrong), refusal);
    }
    for (const options of [{ timeoutMs: Number.NaN }, { timeoutMs: -1 }, { timeout: 5 }, { signal: 7 }, null, 5]) {
      await assert.rejects(unpacker.wait(launch, options as never), refusal);
      await assert.rejects(unpacker.whenRoom(1, options as never), refusal);
      await assert.rejects(unpacker.launchSync(blocks[0], options as never), refusal);
    }
    assert.throws(() => unpacker.launch(blocks[0], { steam: undefined } as never), refusal);
    assert.throws(() => unpacker.launch(blocks[0], null as never), refusal);
    await unpacker.wait(launch, { timeoutMs: 60_000, signal: new AbortController().signal });
    // Nothing of what was refused was launched.
    await assert.rejects(unpacker.wait(launch + 1), refusal);
  });

  run('options that do not exist are refused', async (device) => {
    for (const config of [
      { slots: 3 },
      { pool: { slots: 0 } },
      { pool: { memory: 'device' } },
      { pool: null },
      { idleMs: '5' },
      { numSms: 0 },
    ] as object[]) {
      await assert.rejects(UnpackLauncher.create(device, config), { code: 'WL_INVALID_ARGUMENT' });
    }
  });
}

function testReadiness(run: (title: string, body: (device: UnpackDevice) => Promise<void>) => void): void {
  run('a block whose flag is there is moved', async (device) => {
    await using unpacker = await UnpackLauncher.create(device, { timeoutMs: 60_000 });
    const flag = await device.tensor('i32', [2], Int32Array.of(5, 0));
    const { blocks, bounce, destination } = await twoBlocks(device);
    blocks[0].begin(bounce.span, destination.span, { address: flag.address, threshold: 5 }).add(0, 10, 20);
    await unpacker.launchSync(blocks[0]);
    const expected = contentsOf(destination).slice();
    expected.set(contentsOf(bounce).subarray(0, 10), 20);
    await checkPlaced(destination, expected);
  });

  run('a block whose flag does not come fails with WL_TIMEOUT, and the launcher goes on', async (device) => {
    await using unpacker = await UnpackLauncher.create(device, { timeoutMs: 300 });
    const flag = await device.tensor('i32', [2], Int32Array.of(4, 0));
    const { blocks, bounce, destination } = await twoBlocks(device);
    const waiting = new DescriptorBlock(8).begin(bounce.span, destination.span, {
      address: flag.address,
      threshold: 5,
    });
    waiting.add(0, 10, 1500);
    const launch = unpacker.launch([blocks[0], waiting]);
    await assert.rejects(unpacker.wait(launch, { timeoutMs: 60_000 }), (error: unknown) => {
      assert.ok(error instanceof WeftlineError && error.code === 'WL_TIMEOUT');
      assert.deepEqual(error.details, { block: 1, seen: 4, threshold: 5, timeoutMs: 300 });
      return true;
    });
    await checkPlaced(destination, contentsOf(destination));
    await unpacker.launchSync(blocks[1]);
  });

  run('each of several launches that were not ready fails, however often it is asked', async (device) => {
    await using unpacker = await UnpackLauncher.create(device, { timeoutMs: 100 });
    const flag = await device.tensor('i32', [2], Int32Array.of(4, 0));
    const { blocks, bounce, destination } = await twoBlocks(device);
    const waiting = new DescriptorBlock(8).begin(bounce.span, destination.span, {
      address: flag.address,
      threshold: 5,
    });
    waiting.add(0, 10, 1500);
    const late = [unpacker.launch(waiting), unpacker.launch(waiting)];
    const good = unpacker.launch(blocks[0]);
    for (const launch of [...late, ...late]) {
      await assert.rejects(unpacker.wait(launch, { timeoutMs: 60_000 }), { code: 'WL_TIMEOUT' });
    }
    await unpacker.wait(good);
    await unpacker.close();
    // The memory that the kernels wrote is gone; what was learnt is not.
    assert.throws(() => unpacker.isDone(late[0]!), { code: 'WL_TIMEOUT' });
    assert.equal(unpacker.isDone(good), true);
  });

  run('a failure of which nobody was told is told when its place in the ring was taken long ago', async (device) => {
    await using unpacker = await UnpackLauncher.create(device, { timeoutMs: 50, pool: { slots: 2 } });
    const flag = await device.tensor('i32', [2], Int32Array.of(4, 0));
    const { blocks, bounce, destination } = await twoBlocks(device);
    const waiting = new DescriptorBlock(8).begin(bounce.span, destination.span, {
      address: flag.address,
      threshold: 5,
    });
    unpacker.launch(waiting.add(0, 10, 1500));
    for (let launch = 0; launch < 9; launch++) {
      // As whoever looks for room alone.
      while (unpacker.room === 0) await nextTurn();
      unpacker.launch(blocks[0]);
    }
    await assert.rejects(unpacker.wait(undefined, { timeoutMs: 60_000 }), {
      code: 'WL_TIMEOUT',
      message: /^The ready/,
    });
    await unpacker.wait();
  });

  run('a launch that nobody asked for is known when its launcher was closed', async (device) => {
    const unpacker = await UnpackLauncher.create(device);
    const { blocks } = await twoBlocks(device);
    const launch = unpacker.launch(blocks[0]);
    const waiting = unpacker.wait(launch);
    await Promise.all([unpacker.close(), unpacker.close()]);
    await waiting;
    assert.equal(unpacker.isDone(launch), true);
    assert.equal(unpacker.room, 16);
  });

  run('a flag that lies across words is refused', async (device) => {
    await using unpacker = await UnpackLauncher.create(device);
    const { blocks, bounce, destination } = await twoBlocks(device);
    blocks[0].begin(bounce.span, destination.span, { address: bounce.span.address + 4, threshold: 1 });
    assert.throws(() => unpacker.launch(blocks[0]), withDetails({ block: 0 }));
  });
}

interface TwoBlocks {
  /** The first writes bytes 100 to 199 and 500 to 549 of the destination, the second nothing yet. */
  readonly blocks: readonly [DescriptorBlock, DescriptorBlock];
  readonly bounce: Placed;
  readonly destination: Placed;
}

async function twoBlocks(device: UnpackDevice): Promise<TwoBlocks> {
  const bounce = await place(device, randomBytes(8, 1000), 0);
  const destination = await place(device, randomBytes(9, 2000), 0);
  const first = new DescriptorBlock(8).begin(bounce.span, destination.span).add(0, 100, 100).add(180, 100, 450);
  const second = new DescriptorBlock(8).begin(bounce.span, destination.span);
  return { blocks: [first, second], bounce, destination };
}

/** Both directions, or one, refuse the first block of twoBlocks() once it is spoilt. */
async function refused(
  device: UnpackDevice,
  spoil: (block: DescriptorBlock) => void,
  details: object,
  direction: 'both' | 'unpack' | 'pack' = 'both',
): Promise<void> {
  await using unpacker = await UnpackLauncher.create(device);
  await using packer = await PackLauncher.create(device);
  const { blocks, bounce, destination } = await twoBlocks(device);
  spoil(blocks[0]);
  if (direction !== 'pack') assert.throws(() => unpacker.launch(blocks[0]), withDetails(details));
  if (direction !== 'unpack') assert.throws(() => packer.launch(blocks[0]), withDetails(details));
  await checkPlaced(destination, contentsOf(destination));
  await checkPlaced(bounce, contentsOf(bounce));
}

function withDetails(expected: object): (error: unknown) => true {
  return (error) => {
    assert.ok(error instanceof WeftlineError, String(error));
    assert.equal(error.code, 'WL_INVALID_ARGUMENT', error.message);
    assert.match(error.message, /^Invalid (?:descriptor \d+ of )?block \d+ of the launch: .+\. Nothing was moved$/);
    for (const [name, value] of Object.entries(expected)) assert.equal(error.details[name], value, name);
    return true;
  };
}

export function contentsOf({ tensor, span, before }: Placed): Uint8Array {
  const start = span.address - tensor.address;
  return before.subarray(start, start + span.bytes);
}

function referenceIn({ tensor, span, before }: Placed, contents: Uint8Array): Uint8Array {
  const all = before.slice();
  all.set(contents, span.address - tensor.address);
  return all;
}

/** The memory holds these contents, and around them what was there before. */
export async function checkPlaced(placed: Placed, contents: Uint8Array): Promise<void> {
  const seen = await placed.tensor.toHost();
  const expected = referenceIn(placed, contents);
  assert.equal(Buffer.compare(seen, expected), 0, firstDifference(seen, expected));
}

function firstDifference(seen: Uint8Array, expected: Uint8Array): string {
  const at = seen.findIndex((byte, index) => byte !== expected[index]);
  return `byte ${at} of ${seen.length} is ${seen[at]}, expected ${expected[at]}`;
}
