// How fast EPAll2AllLayer works between GPUs: weftline run -n 4 layer-speed.js [SMs,SMs,…] [OUT.json], one rank per GPU.
//
// 4096 tokens of 7168 per rank, top-8 of 256 experts. GB/s counts every received row, one per (token, expert); the wire
// carries one per (token, other rank). EpBuffer's dispatch beside it moves just those rows and those that stay.
import { writeFileSync } from 'node:fs';
import { type CudaDevice, openDevice } from 'weftline';
import { EPAll2AllLayer, EpBuffer } from 'weftline/ep';
import { join } from 'weftline/world';
import { random } from '../../local/ranks/ep-case.ts';
import { type Measured, measure } from '../support/device-time.ts';

const [tokens, hidden, topk, experts] = [4096, 7168, 8, 256];
const [smCounts = '16,20,24,32,64', jsonPath] = process.argv.slice(2);
const world = await join();
const device = (await openDevice('cuda', world)) as CudaDevice;
const next = random(world.rank + 1);
const chosen = Array.from({ length: tokens }, () => {
  const set = new Set<number>();
  while (set.size < topk) set.add(Math.floor(next() * experts));
  return [...set];
});
const expIndices = await device.tensor('i32', [tokens, topk], Int32Array.from(chosen.flat()));
const weight = await device.tensor('f32', [tokens, topk], new Float32Array(tokens * topk).fill(0.125));
const input = await device.tensor('bf16', [tokens, hidden], new Uint16Array(tokens * hidden).fill(0x3f80));
const out = device.empty('bf16', [tokens, hidden]);
const rowsToRanks = chosen.flatMap((row) => [
  ...new Set(row.map((expert) => Math.floor((expert * world.size) / experts))),
]);
const sent = rowsToRanks.filter((rank) => rank !== world.rank).length;
const results: Measured[] = [];

for (const numSm of smCounts.split(',').map(Number)) {
  for (const enableLocalCombine of [false, true]) {
    const options = { maxTokens: tokens, hidden, topk, numTotExperts: experts, capacity: 1.25 };
    const layer = await EPAll2AllLayer.create(world, device, { ...options, numSm, enableLocalCombine });
    const { layoutDesc } = await layer.dispatch({ input, expIndices, weight });
    const bytes = layoutDesc.numRecvTokens * hidden * 2;
    const kind = enableLocalCombine ? ', local combine' : '';
    const y = layer.combineInput(layoutDesc);
    const dispatch = async (): Promise<void> =>
      (await layer.dispatch({ input, expIndices, weight })).layoutDesc.dispose();
    const combine = (): Promise<unknown> => layer.combine({ input: y, layoutDesc, out });
    for (const [name, call] of Object.entries({ dispatch, combine })) {
      results.push(await measure(world, device, { name: `${name}${kind}`, sms: numSm, bytes, call }));
    }
    layoutDesc.dispose();
    await layer.epBarrierAll();
    await layer.finalize();
  }
  const config = { maxTokensPerRank: tokens, hidden, numExperts: experts, maxTopk: topk, numSms: numSm };
  const buffer = await EpBuffer.create(world, device, config);
  const { handle } = await buffer.dispatch({ x: input, topkIdx: expIndices });
  const bytes = handle.numRecvTokens * hidden * 2;
  const call = (): Promise<unknown> => buffer.dispatch({ x: input, handle });
  results.push(await measure(world, device, { name: 'EpBuffer, cached', sms: numSm, bytes, call }));
  handle.dispose();
  await buffer.barrier();
  await buffer[Symbol.asyncDispose]();
}
const all = await world.allGather('sent', sent);
if (world.rank === 0) {
  const { name, driverVersion, multiprocessors } = device.properties;
  const gpu = { name, driverVersion, multiprocessors, count: world.size };
  const document = { gpu, tokens, hidden, topk, experts, rowsSentToOtherRanks: all, results };
  console.log(`rows sent to other ranks: ${all.join(', ')}`);
  if (jsonPath !== undefined) writeFileSync(jsonPath, `${JSON.stringify(document, null, 2)}\n`);
}
await world.close();
