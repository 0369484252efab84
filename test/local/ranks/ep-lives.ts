// Makes two buffers and a layer, uses them all at once and each rank in an order of its own, releases them, and does so
// again: argv = lives. Nothing may be left of the lives before.
import assert from 'node:assert/strict';
import { readdirSync, readFileSync, readlinkSync } from 'node:fs';
import { setTimeout as sleep } from 'node:timers/promises';
import { fromBf16, type Tensor } from 'weftline';
import { EPAll2AllLayer, EpBuffer } from 'weftline/ep';
import { join } from 'weftline/world';
import { testGroup, openTestDevice } from '../support/test-device.ts';
import { random } from './ep-case.ts';

const lives = Number(process.argv[2]);
const [tokens, hidden, topk] = [40, 64, 3];
await using world = await join();
const group = await testGroup(world);
await using device = await openTestDevice(group);
const experts = 4 * group.size;
const next = random(group.rank + 1);
// Choices of all kinds: several of one rank, and none.
const ids = Array.from({ length: tokens }, (_, token) => [token % experts, (token + 1 + (token % 3)) % experts, -1]);
const x = await device.tensor('bf16', [tokens, hidden], new Uint16Array(tokens * hidden).fill(0x3f80));
const topkIdx = await device.tensor('i32', [tokens, topk], Int32Array.from(ids.flat()));

/** Sums of ones: how many rows were summed for each token. */
async function checkSums(sums: Tensor<'bf16'>, rowsOf: (choices: readonly number[]) => number): Promise<void> {
  const expected = ids.flatMap((choices) => Array.from({ length: hidden }, () => rowsOf(choices)));
  assert.deepEqual([...(await sums.toHost())].map(fromBf16), expected);
}

function ranksOf(choices: readonly number[]): number {
  return new Set(choices.filter((expert) => expert >= 0).map((expert) => Math.floor(expert / 4))).size;
}

async function useBuffer(buffer: EpBuffer): Promise<void> {
  const { recvX: rows, handle, event: sent } = await buffer.dispatch({ x, topkIdx, asyncFinish: true });
  const previous = sent && { previousEvent: sent };
  const { combinedX, event } = await buffer.combine({ x: rows, handle, asyncFinish: true, ...previous });
  await event?.wait();
  await checkSums(combinedX, ranksOf);
  for (const part of [combinedX, handle, event, sent]) part?.[Symbol.dispose]();
}

async function useLayer(layer: EPAll2AllLayer): Promise<void> {
  const { recvX: output, handle, event: sent } = await layer.dispatch({ x, topkIdx, asyncFinish: true });
  const previous = sent && { previousEvent: sent };
  const { combinedX: combined, event } = await layer.combine({ x: output, handle, asyncFinish: true, ...previous });
  await event?.wait();
  await checkSums(combined, (choices) => choices.filter((expert) => expert >= 0).length);
  for (const part of [combined, handle, event, sent]) part?.[Symbol.dispose]();
}

async function live(): Promise<void> {
  const config = { maxTokensPerRank: tokens, hidden, numExperts: experts, maxTopk: topk };
  const first = await EpBuffer.create(group, device, config);
  const second = await EpBuffer.create(group, device, { ...config, combineRows: 'shared' });
  const layer = await EPAll2AllLayer.create(group, device, {
    maxTokensPerRank: tokens,
    hidden,
    maxTopk: topk,
    numExperts: experts,
  });
  const uses = [() => useBuffer(first), () => useBuffer(second), () => useLayer(layer)];
  for (let round = 0; round < 3; round++) {
    const from = (group.rank + round) % uses.length;
    await Promise.all([...uses.slice(from), ...uses.slice(0, from)].map((use) => use()));
  }
  const objects: AsyncDisposable[] = [first, second, layer];
  if (group.rank % 2 === 1) objects.reverse();
  for (const object of objects) {
    if (next() < 0.3) await sleep(next() * 5);
    await object[Symbol.asyncDispose]();
  }
}

/** How often what the CUDA driver opens and maps may be counted more: it keeps some for what comes next. */
const DRIVER_MARGIN = 64;

interface Holdings {
  readonly files: number;
  readonly ranges: number;
  /** Files and mapped ranges of the devices of the driver. */
  readonly driver: number;
  readonly bytes: number;
}

function isDriver(text: string): boolean {
  return text.includes('/dev/nvidia');
}

/** The file behind a descriptor; the one that listed the folder is gone. */
function targetOf(descriptor: string): string {
  try {
    return readlinkSync(`/proc/self/fd/${descriptor}`);
  } catch {
    return '';
  }
}

/** What this process holds: open files, mapped ranges of shared memory and devices, and bytes of the device. */
async function holdings(): Promise<Holdings> {
  await group.barrier('lives');
  const files = readdirSync('/proc/self/fd').map(targetOf);
  const ranges = readFileSync('/proc/self/maps', 'utf8')
    .split('\n')
    .filter((line) => line.includes('/dev/'));
  const counts = {
    files: files.filter((file) => !isDriver(file)).length,
    ranges: ranges.filter((range) => !isDriver(range)).length,
    driver: [...files, ...ranges].filter(isDriver).length,
  };
  if (device.kind === 'cpu') return { ...counts, bytes: device.space.used };
  const [free, total]: [[number], [number]] = [[0], [0]];
  device.context.call('cuMemGetInfo', free, total);
  return { ...counts, bytes: total[0] - free[0] };
}

for (let warm = 0; warm < 2; warm++) await live();
const before = await holdings();
for (let life = 0; life < lives; life++) await live();
const after = await holdings();
const report = `before ${JSON.stringify(before)}, after ${JSON.stringify(after)}`;
assert.ok(after.files <= before.files + 2, report);
assert.ok(after.ranges <= before.ranges + 8, report);
assert.ok(after.driver <= before.driver + DRIVER_MARGIN, report);
// The driver and the pool keep some memory for what comes next, other ranks may share the GPU.
assert.ok(after.bytes <= before.bytes + (device.kind === 'cpu' ? 0 : 64 << 20), report);
console.log(`rank ${world.rank}: ${lives} lives; ${report}`);
