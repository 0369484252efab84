// All tokens of all ranks go to one expert, which is as uneven as it gets: the calls end, the sums are right, and the memory
// taken is what the size functions say. Arguments: "buffer" or "layer", and how often.
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { type CpuDevice, fromBf16, type Tensor, toBf16 } from 'weftline';
import { bufferSize, EPAll2AllLayer, EpBuffer } from 'weftline/ep';
import { join } from 'weftline/world';
import { openTestDevice, testGroup } from '../support/test-device.ts';

const [what, times] = process.argv.slice(2);
const [tokens, hidden, topk] = [300, 256, 2];
await using world = await join();
const group = await testGroup(world);
await using device = (await openTestDevice(group)) as CpuDevice;
const n = group.size;
/** In the middle of the last rank. */
const experts = 2 * n;
const expert = experts - 2;
const value = toBf16(1 + group.rank);
const x = await device.tensor('bf16', [tokens, hidden], new Uint16Array(tokens * hidden).fill(value));
const ids = await device.tensor(
  'i32',
  [tokens, topk],
  Int32Array.from({ length: tokens * topk }, (_, at) => (at % topk === 0 ? expert : -1)),
);
const ranksOfHosts = group.topology.hosts.map(({ length }) => length);

/** Bytes of this job's shared memory that this process maps. */
function mapped(): number {
  const ranges = readFileSync('/proc/self/maps', 'utf8')
    .split('\n')
    .filter((line) => line.includes(`/dev/shm/${world.filePrefix}`));
  return ranges.reduce((sum, line) => {
    const [, start = '0', end = '0'] = /^([0-9a-f]+)-([0-9a-f]+)/.exec(line) ?? [];
    return sum + Number.parseInt(end, 16) - Number.parseInt(start, 16);
  }, 0);
}

/** Windows of this host, as the size functions count them, for hosts as full as this one. */
function checkShared(sharedMemoryBytes: number): void {
  const here = group.topology.scaleUpRanks.length;
  if (here === Math.max(...ranksOfHosts)) assert.equal(mapped(), sharedMemoryBytes, 'shared memory');
}

async function checkSums(sums: Tensor<'bf16'>): Promise<void> {
  const got = [...(await sums.toHost())];
  assert.deepEqual(new Set(got), new Set([toBf16(2 * fromBf16(value))]));
  sums.close();
}

function doubled(rows: Tensor<'bf16'>): void {
  rows.view().set(rows.view().map((bits) => toBf16(2 * fromBf16(bits))));
}

async function useBuffer(numRdmaBytes: number): Promise<void> {
  const config = { maxTokensPerRank: tokens, hidden, numExperts: experts, maxTopk: topk, numRdmaBytes };
  const size = bufferSize(config, n, ranksOfHosts);
  const before = device.space.used;
  await using buffer = await EpBuffer.create(group, device, config);
  assert.deepEqual(buffer.size, size);
  checkShared(size.sharedMemoryBytes);
  const taken = device.space.used - before;
  // Beside it there are the small tables of the kernels.
  const tables = tokens * (n + 16) + 64 * 1024;
  assert.ok(taken >= size.addressSpaceBytes && taken <= size.addressSpaceBytes + tables, `${taken}`);
  for (let round = 0; round < Number(times); round++) {
    const { recvX, handle } = await buffer.dispatch({ x, topkIdx: ids });
    assert.equal(handle.numRecvTokens, group.rank === n - 1 ? n * tokens : 0);
    const y = buffer.combineInput(handle);
    y.view().set(recvX.view());
    doubled(y);
    await checkSums((await buffer.combine({ x: y, handle })).combinedX);
    handle.close();
    assert.equal(device.space.used - before, taken, `memory after round ${round}`);
  }
}

async function useLayer(numRdmaBytes: number): Promise<void> {
  const before = device.space.used;
  await using layer = await EPAll2AllLayer.create(group, device, {
    maxTokensPerRank: tokens,
    hidden,
    maxTopk: topk,
    numExperts: experts,
    capacity: 0.5,
    numRdmaBytes,
  });
  const first = layer.context.outputSize;
  checkShared(first.sharedMemoryBytes);
  const tables = device.space.used - before - first.addressSpaceBytes;
  assert.ok(tables >= 0 && tables < tokens * (n + 16) + 64 * 1024, `${tables}`);
  for (let round = 0; round < Number(times); round++) {
    const { recvX: output, handle } = await layer.dispatch({ x, topkIdx: ids });
    assert.equal(handle.numRecvTokens, group.rank === n - 1 ? n * tokens : 0);
    doubled(output);
    await checkSums(await layer.combine({ x: output, handle }));
    handle.close();
    const { outputSize: grown, windowBytes } = layer.context;
    assert.ok(grown.capacityRows >= n * tokens);
    checkShared(grown.sharedMemoryBytes);
    assert.equal(windowBytes, grown.bytes + grown.controlBytes + grown.network!.bytes);
    assert.equal(device.space.used - before, grown.addressSpaceBytes + tables, `memory after round ${round}`);
  }
}

const use = what === 'layer' ? useLayer : useBuffer;
const all = device.space.used;
await use(0);
// With a tenth of the memory, sums go in rounds.
const network = bufferSize({ maxTokensPerRank: tokens, hidden, numExperts: experts, maxTopk: topk }, n, ranksOfHosts);
const { sums, hostRows } = network.network!.regions;
await use(Math.ceil(network.network!.bytes - 0.9 * (sums.bytes + hostRows.bytes)));
assert.equal(device.space.used, all);
assert.equal(mapped(), 0);
