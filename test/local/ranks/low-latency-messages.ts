// What low-latency calls put to other hosts: each rank counts its messages and their bytes, call by call.
import assert from 'node:assert/strict';
import type { Tensor } from 'weftline';
import { EpLowLatency, type LowLatencyConfig } from 'weftline/ep';
import { join } from 'weftline/world';
import { hostRoutes } from '#lib/group/network/host-routes.js';
import { OutQueue } from '#lib/group/network/out-queue.js';
import { openOwnDevice } from '../support/test-device.ts';

const [HIDDEN, HEADER_BYTES, ALIGNMENT_BYTES] = [256, 64, 16];
await using world = await join();
const { rank: me, size } = world;
await using device = await openOwnDevice(world);
const { ways, served } = hostRoutes(world.topology.hosts, me);
/** Tokens of a rank, each of which goes to all ranks; the last one has none. */
const tokensOf = (rank: number) => (rank === size - 1 ? 0 : 3 + rank);

const sent = { messages: 0, bytes: 0 };
// oxlint-disable-next-line typescript/unbound-method -- called with its own object
const { put } = OutQueue.prototype;
OutQueue.prototype.put = function count(this: OutQueue, ...args: Parameters<typeof put>): void {
  const bytes = args[3];
  if (bytes > 0) sent.messages += 1;
  sent.bytes += bytes;
  put.apply(this, args);
};

/** What this rank has put since the last look. */
function look() {
  const { messages, bytes } = sent;
  sent.messages = 0;
  sent.bytes = 0;
  return { messages, bytes };
}

async function run(variant: Partial<LowLatencyConfig>, dtype: 'bf16' | 'fp8'): Promise<void> {
  const config = { maxTokensPerRank: 2 + size, hidden: HIDDEN, numExperts: size, maxTopk: size, ...variant };
  await using ll = await EpLowLatency.create(world, device, config);
  const tokens = tokensOf(me);
  const x = await device.tensor('bf16', [tokens, HIDDEN], new Uint16Array(tokens * HIDDEN));
  const ids = Int32Array.from({ length: tokens * size }, (_, at) => at % size);
  const topkIdx = await device.tensor('i32', [tokens, size], ids);
  const topkWeights = await device.tensor('f32', [tokens, size], new Float32Array(tokens * size));
  const isByChoice = variant.combineTravels === 'choices';
  const withDispatch = isByChoice ? {} : { topkWeights };
  const withCombine = isByChoice ? { topkWeights } : {};
  const rowBytes = dtype === 'bf16' ? HIDDEN * 2 : HIDDEN + (HIDDEN / 128) * 4;
  // In 'rank-major' scales stand column by column, each of as many rows as there may be.
  const spare = variant.layout === 'rank-major' ? (config.maxTokensPerRank - tokens) * (HIDDEN / 128) * 4 : 0;
  const sumBytes = { bf16: HIDDEN * 2, f32: HIDDEN * 4, 'fp8-lossy': HIDDEN + HIDDEN / 32 }[ll.config.combinePrecision];
  const least = HEADER_BYTES + tokens * (rowBytes + 4 + size * (isByChoice ? 4 : 8));
  look();
  for (let call = 0; call < 4; call++) {
    const args = { x, topkIdx, ...withDispatch, dtype, returnRecvHook: false } as const;
    const { recvX, handle } = await ll.dispatch(args);
    const dispatched = look();
    assert.equal(dispatched.messages, ways.length, 'a dispatch is one message to each other host');
    assert.ok(dispatched.bytes >= ways.length * least, 'every row');
    assert.ok(dispatched.bytes <= ways.length * (least + spare + 4 * ALIGNMENT_BYTES), 'each row once');
    const { shape } = 'data' in recvX ? recvX.data : recvX;
    const y: Tensor<'bf16'> = device.empty('bf16', shape);
    await ll.combine({ x: y, handle, ...withCombine, returnRecvHook: false });
    y.close();
    const combined = look();
    const weighted = isByChoice && tokens > 0 ? ways.length : 0;
    assert.equal(combined.messages, served.length + weighted, 'one message of sums to each rank that is served');
    const sums = served.reduce((sum, { rank }) => sum + HEADER_BYTES + tokensOf(rank) * sumBytes, 0);
    assert.equal(combined.bytes, sums + weighted * tokens * size * 4, 'a row for each token');
  }
}

for (const dtype of ['bf16', 'fp8'] as const) {
  await run({}, dtype);
  await run({ combineTravels: 'choices' }, dtype);
  await run({ layout: 'rank-major' }, dtype);
}
for (const combinePrecision of ['f32', 'fp8-lossy'] as const) {
  await run({ combinePrecision }, 'bf16');
  await run({ combinePrecision, combineTravels: 'choices' }, 'fp8');
  await run({ combinePrecision, layout: 'rank-major' }, 'fp8');
}
