// A dispatch and a combine of a layer and of low-latency mode, and what metrics say of their rows as the result; argv =
// "buffer" for EpBuffer instead, also across hosts.
import { EPAll2AllLayer, EpBuffer, EpLowLatency } from 'weftline/ep';
import { readMetrics } from 'weftline/metrics';
import { join } from 'weftline/world';
import { openTestDevice } from '../support/test-device.ts';

const [tokens, hidden, topk, experts] = [3, 64, 2, 4];
await using world = await join();
await using device = await openTestDevice(world);
const x = await device.tensor('bf16', [tokens, hidden], new Uint16Array(tokens * hidden).fill(0x3f80));
const choices = await device.tensor('i32', [tokens, topk], Int32Array.of(0, 1, 2, 3, 0, 2));
async function layerCalls(): Promise<void> {
  const options = { maxTokensPerRank: tokens, hidden, maxTopk: topk, numExperts: experts, enableLocalCombine: true };
  await using layer = await EPAll2AllLayer.create(world, device, options);
  const { recvX: output, handle } = await layer.dispatch({ x, topkIdx: choices });
  await layer.combine({ x: output, handle });
}

async function lowLatencyCalls(): Promise<void> {
  // Expert 0 and expert 2 get two rows of each rank, which is one more than they take in all.
  const config = { maxTokensPerRank: tokens, hidden, numExperts: experts, maxTopk: topk, maxTokensPerExpert: 3 };
  await using ll = await EpLowLatency.create(world, device, { ...config, overflow: 'drop' });
  const weights = await device.tensor('f32', [tokens, topk], new Float32Array(tokens * topk).fill(1));
  const { recvX, handle } = await ll.dispatch({ x, topkIdx: choices, topkWeights: weights, dtype: 'bf16' });
  const { combinedX } = await ll.combine({ x: recvX, handle });
  await combinedX.toHost();
  await ll.barrier();
}

async function bufferCalls(): Promise<void> {
  const config = { maxTokensPerRank: tokens, hidden, numExperts: experts, maxTopk: topk };
  await using buffer = await EpBuffer.create(world, device, config);
  const { recvX, handle } = await buffer.dispatch({ x, topkIdx: choices });
  const { combinedX } = await buffer.combine({ x: recvX, handle });
  await combinedX.toHost();
}

if (process.argv[2] === 'buffer') await bufferCalls();
else {
  await layerCalls();
  await lowLatencyCalls();
}
const { metrics } = await readMetrics();
const values = metrics
  .filter(({ name }) => name === 'weftline_ep_bytes_total' || name === 'weftline_ep_overflow_total')
  .flatMap(({ series }) => series.map(({ labels, value }) => [Object.values(labels).join(' '), value]));
console.log(JSON.stringify(Object.fromEntries(values)));
