// KV blocks in memory of a GPU: checksums by the kernel, and what a reader makes of damaged ones.
import assert from 'node:assert/strict';
import { crc32 } from 'node:zlib';
import type { CudaDevice, Tensor } from 'weftline';
import { Agent } from 'weftline/agent';
import { type KvPart, KvReader, KvStore } from 'weftline/kv';
import { seededRandom } from '#lib/core/seeded-random.js';
import { openBlockSums } from '#lib/kv/block-sums.js';
import { KvRanges } from '#lib/kv/kv-memory.js';
import { testSeed } from '../support/seed.ts';
import { gpuTest, noise } from './support/gpu.ts';

interface GpuParts {
  readonly parts: readonly KvPart[];
  readonly tensors: readonly Tensor<'u8'>[];
  /** The bytes of all tensors. */
  readonly host: readonly Uint8Array[];
}

/** Parts of so many bytes, with gaps of `gap` bytes between the ranges of blocks. */
async function openParts(
  { device, agent, gap = 0 }: { readonly device: CudaDevice; readonly agent: Agent; readonly gap?: number },
  blocks: number,
  sizes: readonly number[],
): Promise<GpuParts> {
  const made = [];
  for (const bytes of sizes) {
    const host = noise(blocks * (bytes + gap));
    const tensor = await device.tensor('u8', [host.length], host);
    made.push({ part: { memory: await agent.register(tensor), bytes, stride: bytes + gap }, tensor, host });
  }
  return {
    parts: made.map(({ part }) => part),
    tensors: made.map(({ tensor }) => tensor),
    host: made.map(({ host }) => host),
  };
}

function sumOf({ parts, host }: GpuParts, block: number): number {
  return parts.reduce((sum, { bytes, stride = bytes }, part) => {
    const begin = block * stride;
    return crc32(host[part]!.subarray(begin, begin + bytes), sum);
  }, 0);
}

gpuTest('the kernel sums blocks of all shapes up as zlib does', async (device) => {
  const random = seededRandom(testSeed());
  const below = (count: number): number => Math.floor(random() * count);
  await using agent = await Agent.create('owner', { backends: ['multipath'] });
  const shapes = [[4], [36_864, 8448], [1020, 1024, 1028], [528, 2112, 576, 9216, 1 << 20]];
  for (let round = 0; round < 12; round++)
    shapes.push(Array.from({ length: 1 + below(6) }, () => 4 * (1 + below(3000))));
  for (const sizes of shapes) {
    const blocks = 1 + below(40);
    const made = await openParts({ device, agent, gap: 4 * below(3) }, blocks, sizes);
    const memory = { blocks, parts: made.parts };
    const sums = await openBlockSums(memory, KvRanges.of(agent, memory));
    const list = Array.from({ length: 1 + below(2 * blocks) }, () => below(blocks));
    const calls = await Promise.all([sums.of(list), sums.of([]), sums.of(list.toReversed())]);
    const expected = list.map((block) => sumOf(made, block));
    assert.deepEqual([...calls[0]], expected, sizes.join(' '));
    assert.equal(calls[1].length, 0);
    assert.deepEqual([...calls[2]], expected.toReversed());
    // What is enqueued reads tables of the sums: they are freed behind it.
    const late = Promise.allSettled([sums.of(list)]);
    await sums.close();
    for (const outcome of await late)
      if (outcome.status === 'fulfilled') assert.deepEqual([...outcome.value], expected);
    for (const { memory: registration } of made.parts) await registration.close();
    for (const tensor of made.tensors) tensor.close();
  }
});

gpuTest(
  'blocks go from GPU memory to GPU memory and to memory of the host; damaged ones are misses',
  async (device) => {
    const blocks = 6;
    const sizes = [9216, 2112];
    await using owner = await Agent.create('owner', { backends: ['multipath'] });
    await using other = await Agent.create('other', { backends: ['multipath'] });
    const source = await openParts({ device, agent: owner }, blocks, sizes);
    const target = await openParts({ device, agent: other, gap: 64 }, blocks, sizes);
    const hostParts = [];
    for (const bytes of sizes) hostParts.push({ memory: await other.allocate(blocks * bytes), bytes });
    await using store = await KvStore.create(owner, { name: 'gpu', blocks, parts: source.parts });
    await other.loadRemoteMetadata(owner.localMetadata());
    await using onGpu = await KvReader.create(other, { blocks, parts: target.parts });
    await using onHost = await KvReader.create(other, { blocks, parts: hostParts });
    const keys = ['a', 'b', 'c'];
    const places = store.reserve(keys, [4, 0, 2]);
    await store.seal(keys);
    const ticket = store.ticket(keys);
    const hits = keys.map((key, index) => ({ key, isHit: true, block: 3 - index }));
    assert.deepEqual(await onGpu.open(ticket).read([3, 2, 1]), hits);
    assert.deepEqual(await onHost.open(ticket).read([3, 2, 1]), hits);
    for (const [part, bytes] of sizes.entries()) {
      const got = await target.tensors[part]!.toHost();
      for (const [index, block] of places.entries()) {
        const expected = source.host[part]!.subarray(block * bytes, (block + 1) * bytes);
        const at = 3 - index;
        assert.deepEqual(got.subarray(at * (bytes + 64), at * (bytes + 64) + bytes), expected);
        assert.deepEqual(hostParts[part]!.memory.bytes.subarray(at * bytes, (at + 1) * bytes), expected);
      }
    }
    // One bit of the second block changes in the memory of the GPU.
    const damaged = source.host[1]!.slice();
    damaged[places[1]! * 2112 + 777]! ^= 4;
    await source.tensors[1]!.fromHost(damaged);
    for (const reader of [onGpu, onHost]) {
      const results = await reader.open(ticket).read([3, 2, 1]);
      assert.deepEqual(
        results.map((result) => (result.isHit ? 'hit' : result.reason)),
        ['hit', 'corrupt', 'hit'],
      );
    }
  },
);
