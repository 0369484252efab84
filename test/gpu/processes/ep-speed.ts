// How fast EpBuffer moves rows between GPUs: weftline run -n 4 ep-speed.js [SMs,SMs,…] [OUT.json], one rank per GPU.
//
// 4096 tokens of 7168 per rank, top-8 of 256 experts. Times are of the device, opening and closing barrier included,
// the median of 30 calls after 8; GB/s counts every received row of the slowest rank, its own too.
import { writeFileSync } from 'node:fs';
import { type CudaDevice, openDevice, type Tensor } from 'weftline';
import { EpBuffer } from 'weftline/ep';
import { join } from 'weftline/world';
import { random } from '../../local/ranks/ep-case.ts';

const [tokens, hidden, topk, experts, warmup, calls] = [4096, 7168, 8, 256, 8, 30];
const [smCounts = '4,8,12,16,20,24,32', jsonPath] = process.argv.slice(2);
const world = await join();
const device = (await openDevice('cuda', world)) as CudaDevice;
const next = random(world.rank + 1);
const chosen = Array.from({ length: tokens }, () => {
  const set = new Set<number>();
  while (set.size < topk) set.add(Math.floor(next() * experts));
  return [...set];
});
const topkIdx = await device.tensor('i64', [tokens, topk], BigInt64Array.from(chosen.flat(), BigInt));
const topkWeights = await device.tensor('f32', [tokens, topk], new Float32Array(tokens * topk).fill(0.125));
const x = await device.tensor('bf16', [tokens, hidden], new Uint16Array(tokens * hidden).fill(0x3f80));
const fp8 = {
  data: await device.tensor('fp8e4m3', [tokens, hidden], new Uint8Array(tokens * hidden).fill(0x38)),
  scales: await device.tensor('f32', [tokens, hidden / 128], new Float32Array((tokens * hidden) / 128).fill(1)),
};
const out: Tensor<'bf16'> = device.empty('bf16', [tokens, hidden]);

interface Measured {
  readonly name: string;
  readonly sms: number;
  /** Of the slowest rank. */
  readonly microseconds: number;
  readonly logicalGBps: number;
  /** Until the call returned to the host. */
  readonly hostMicroseconds: number;
}
const results: Measured[] = [];

async function measure(name: string, sms: number, bytes: number, call: () => Promise<unknown>): Promise<void> {
  for (let i = 0; i < warmup; i++) await call();
  await device.stream.idle();
  await world.barrier('begin');
  const marks = Array.from({ length: calls }, () => [
    device.createEvent({ timing: true }),
    device.createEvent({ timing: true }),
  ]);
  const hostTimes: number[] = [];
  for (const [begin, end] of marks) {
    begin?.record(device.stream);
    const start = performance.now();
    await call();
    hostTimes.push((performance.now() - start) * 1000);
    end?.record(device.stream);
  }
  await device.stream.idle();
  const times = marks.map(([begin, end]) => (begin && end ? end.millisecondsSince(begin) * 1000 : 0));
  for (const event of marks.flat()) event[Symbol.dispose]();
  const all = await world.allGather('measured', { time: median(times), host: median(hostTimes), bytes });
  const microseconds = Math.max(...all.map(({ time }) => time));
  const measured = {
    name,
    sms,
    microseconds,
    logicalGBps: Math.min(...all.map((one) => one.bytes)) / microseconds / 1e3,
    hostMicroseconds: Math.max(...all.map(({ host }) => host)),
  };
  results.push(measured);
  if (world.rank > 0) return;
  const { logicalGBps, hostMicroseconds } = measured;
  const figures = [microseconds, logicalGBps, hostMicroseconds].map((value) => value.toFixed(1).padStart(8));
  console.log(
    `${String(sms).padStart(3)} SMs  ${name.padEnd(22)} ${figures[0]} us ${figures[1]} GB/s ${figures[2]} us host`,
  );
}

function median(values: readonly number[]): number {
  return values.toSorted((a, b) => a - b)[Math.floor(values.length / 2)] ?? 0;
}

for (const sms of smCounts.split(',').map(Number)) {
  const config = { maxTokensPerRank: tokens, hidden, numExperts: experts, maxTopk: topk, numSms: sms };
  const buffer = await EpBuffer.create(world, device, config);
  const { handle } = await buffer.dispatch({ x, topkIdx, topkWeights });
  const { rows } = handle;
  const bf16Bytes = rows * hidden * 2;
  const fp8Bytes = rows * (hidden + (hidden / 128) * 4);
  await measure('dispatch bf16, cached', sms, bf16Bytes, () => buffer.dispatch({ x, handle }));
  await measure('dispatch fp8, cached', sms, fp8Bytes, () => buffer.dispatch({ x: fp8, handle }));
  await measure('dispatch bf16', sms, bf16Bytes, async () =>
    (await buffer.dispatch({ x, topkIdx, topkWeights })).handle.dispose(),
  );
  const y = buffer.combineInput(handle);
  await measure('combine bf16', sms, bf16Bytes, () => buffer.combine({ x: y, handle, out }));
  handle.dispose();
  await buffer.barrier();
  await buffer[Symbol.asyncDispose]();
}
if (world.rank === 0 && jsonPath !== undefined) {
  const { name, driverVersion, multiprocessors } = device.properties;
  const gpu = { name, driverVersion, multiprocessors, count: world.size };
  writeFileSync(jsonPath, `${JSON.stringify({ gpu, tokens, hidden, topk, experts, results }, null, 2)}\n`);
}
await world.close();
