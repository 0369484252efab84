import assert from 'node:assert/strict';
import { fork } from 'node:child_process';
import { once } from 'node:events';
import { fileURLToPath } from 'node:url';
import { CudaDevice, cudaDeviceCount } from 'weftline';
import { Agent, DescriptorList } from 'weftline/agent';
import { seededRandom } from '#lib/core/seeded-random.js';
import { testSeed } from '../support/seed.ts';
import { cacheFolder, gpuTest, noise } from './support/gpu.ts';

const BYTES = 3 << 20;

function sum(values: Uint8Array): number {
  return values.reduce((total, value) => total + value, 0);
}

gpuTest(
  'an agent writes and reads GPU memory of another process, from GPU and to shared host memory',
  async (device) => {
    const child = fork(fileURLToPath(new URL('processes/agent-peer.js', import.meta.url)), [String(BYTES)]);
    const exited = once(child, 'exit');
    const [{ metadata }] = (await once(child, 'message')) as [{ readonly metadata: string }];
    await using agent = await Agent.create('here', { backends: ['local'] });
    const peer = await agent.loadRemoteMetadata(new Uint8Array(Buffer.from(metadata, 'base64')));
    const values = noise(BYTES);
    // Inside a block of the pool, so that the offset in the allocation counts.
    using before = device.empty('u8', [1000]);
    using tensor = await device.tensor('u8', [BYTES], values);
    assert.equal(before.bytes, 1000);
    const mine = await agent.register(tensor);
    const memory = (name: string): DescriptorList => {
      const found = agent.remoteMemory(peer).find((region) => region.name === name);
      assert.ok(found);
      return DescriptorList.of(found);
    };
    const local = DescriptorList.of(mine);
    for (const name of ['gpu', 'host'] as const) {
      await using write = await agent.prepare({ operation: 'write', peer, local, remote: memory(name) });
      const told = once(child, 'message');
      write.post(Buffer.from('written'));
      await write.wait();
      const [sums] = (await told) as [{ readonly gpu: number; readonly host: number }];
      assert.equal(sums[name], sum(values));
    }
    await tensor.fromHost(new Uint8Array(BYTES));
    await using read = await agent.prepare({ operation: 'read', peer, local, remote: memory('gpu') });
    read.post();
    read.waitBlocking();
    assert.ok(Buffer.from(await tensor.toHost()).equals(values));
    await agent.notify(peer, Buffer.from('end'));
    const [code] = (await exited) as [number];
    assert.equal(code, 0);
  },
);

gpuTest(
  'many ranges of all sizes go to other places, in lists, runs and selections, and between GPUs',
  async (device) => {
    const random = seededRandom(testSeed());
    const below = (count: number): number => Math.floor(random() * count);
    await using other = cudaDeviceCount() > 1 ? await CudaDevice.create({ ordinal: 1, cacheFolder }) : undefined;
    await using here = await Agent.create('here', { backends: ['local'] });
    await using there = await Agent.create('there', { backends: ['local'] });
    const [ownBytes, farBytes] = [noise(BYTES), noise(BYTES).toReversed()];
    using own = await device.tensor('u8', [BYTES], ownBytes);
    using far = await (other ?? device).tensor('u8', [BYTES], farBytes);
    const mine = await here.register(own);
    await there.register(far, { name: 'far' });
    await here.loadRemoteMetadata(there.localMetadata());
    const theirs = here.remoteMemory('there')[0]!;
    for (let round = 0; round < 24; round++) {
      const isRead = random() < 0.5;
      const isAligned = random() < 0.5;
      const count = 8 + below(400);
      const most = [1, 40, 600, 5000, 70_000][below(5)]!;
      // Equal pieces of the memory, in each of which one range lies, in another order on the other side.
      const room = Math.min(most, Math.floor(BYTES / count / 32) * 16);
      const stride = Math.floor(BYTES / count);
      const sizes = Array.from({ length: count }, () => 1 + below(room));
      if (isAligned) for (const [index, size] of sizes.entries()) sizes[index] = Math.ceil(size / 16) * 16;
      const order = sizes.map((_, index) => index);
      for (let at = count - 1; at > 0; at--) {
        const partner = below(at + 1);
        [order[at], order[partner]] = [order[partner]!, order[at]!];
      }
      const place = (slot: number): number =>
        isAligned ? Math.floor((slot * stride) / 16) * 16 : slot * stride + below(3);
      const froms = sizes.map((_, index) => place(index));
      const tos = order.map(place);
      const rangesOf = (memory: typeof mine | typeof theirs, offsets: readonly number[]): DescriptorList =>
        DescriptorList.join(sizes.map((bytes, index) => DescriptorList.of(memory, offsets[index], bytes)));
      const chosen = sizes.map((_, index) => index).filter(() => round % 2 === 0 || random() < 0.7);
      const lists = { local: rangesOf(mine, froms), remote: rangesOf(theirs, tos) };
      const operation = isRead ? 'read' : 'write';
      await using transfer = await here.prepare({ operation, peer: 'there', ...lists, bySelection: round % 2 === 1 });
      for (let post = 0; post < 2; post++) {
        if (round % 2 === 1) transfer.post(undefined, { local: chosen, remote: chosen });
        else transfer.post();
        await transfer.wait();
        for (const index of chosen) {
          const [from, to, bytes] = [froms[index]!, tos[index]!, sizes[index]!];
          if (isRead) ownBytes.set(farBytes.subarray(to, to + bytes), from);
          else farBytes.set(ownBytes.subarray(from, from + bytes), to);
        }
      }
      const what = `round ${round}, ${operation} of ${chosen.length} ranges of at most ${room} bytes`;
      assert.ok(Buffer.from(await own.toHost()).equals(ownBytes), what);
      assert.ok(Buffer.from(await far.toHost()).equals(farBytes), what);
    }
    // Runs of ranges at equal distances, cut into pieces.
    const run = { count: 40, blockBytes: 33_333, stride: 65_537 };
    const dense = { count: 40, blockBytes: 33_333 };
    const lists = { local: DescriptorList.blocks(mine, run), remote: DescriptorList.blocks(theirs, dense) };
    await using transfer = await here.prepare({ operation: 'write', peer: 'there', ...lists });
    transfer.post();
    await transfer.wait();
    for (let at = 0; at < run.count; at++) {
      farBytes.set(ownBytes.subarray(at * run.stride, at * run.stride + run.blockBytes), at * run.blockBytes);
    }
    assert.ok(Buffer.from(await far.toHost()).equals(farBytes));
  },
  { timeout: 120_000 },
);
