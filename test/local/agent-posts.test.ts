// Thousands of posts of 128 descriptors, 64 at a time: nothing leaks, nothing hangs, every byte and message arrives.
// POSTS=10000 in the environment makes it long where each block is a packet.
import assert from 'node:assert/strict';
import test from 'node:test';
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import { DescriptorList, type Transfer } from 'weftline/agent';
import { backendNames } from '#lib/agent/backends/backend-table.js';
import { openPair } from './support/agent-pair.ts';
import { whyMissing } from './support/missing-backend.ts';

const quickPosts: Readonly<Record<string, number>> = { local: 10_000, multipath: 10_000 };
const WARM_UP = 500;
const OUTSTANDING = 64;
const BLOCKS = 128;
const BLOCK_BYTES = 4096;
/** What a run may keep: caches and pools, not something per post. */
const KEPT_BYTES = 4 << 20;

setFlagsFromString('--expose-gc');
const collectGarbage = runInNewContext('gc') as () => void;

for (const backend of backendNames) {
  const skip = (await whyMissing(backend)) ?? false;
  const posts = Number(process.env['POSTS'] ?? quickPosts[backend] ?? 1500);
  test(`${backend}: ${posts} posts of ${BLOCKS} descriptors, ${OUTSTANDING} at a time`, { skip }, async (context) => {
    await using pair = await openPair(backend, BLOCKS * BLOCK_BYTES * 2);
    const { agent, peer } = pair;
    const out = await agent.allocate(BLOCKS * BLOCK_BYTES);
    const remote = agent.remoteMemory('there').find(({ name }) => name === 'allocated');
    assert.ok(remote);
    // Every other block of the peer, so that nothing is joined.
    const options = {
      operation: 'write',
      peer: 'there',
      local: DescriptorList.blocks(out, { blockBytes: BLOCK_BYTES }),
      remote: DescriptorList.blocks(remote, { blockBytes: BLOCK_BYTES, stride: 2 * BLOCK_BYTES, count: BLOCKS }),
    } as const;
    const transfers: Transfer[] = [];
    for (let index = 0; index < OUTSTANDING; index++) transfers.push(await agent.prepare(options));
    const message = Buffer.from('done');
    const run = async (count: number): Promise<void> => {
      for (let post = 0; post < count; post++) {
        const transfer = transfers[post % OUTSTANDING] as Transfer;
        if (transfer.state !== 'idle') await transfer.wait();
        transfer.post(post % 100 === 99 ? message : undefined);
      }
      for (const transfer of transfers) if (transfer.state !== 'idle') await transfer.wait();
    };
    await run(WARM_UP);
    collectGarbage();
    const before = process.memoryUsage();
    out.bytes.fill(200);
    const start = performance.now();
    await run(posts - WARM_UP);
    const seconds = (performance.now() - start) / 1000;
    collectGarbage();
    const after = process.memoryUsage();
    const mebibytes = (name: keyof typeof before): string =>
      `${name} ${(before[name] / 2 ** 20).toFixed(1)} to ${(after[name] / 2 ** 20).toFixed(1)} MiB`;
    context.diagnostic(
      `${posts - WARM_UP} posts in ${seconds.toFixed(2)} s; ${(['heapUsed', 'external', 'rss'] as const).map(mebibytes).join(', ')}`,
    );
    const grown = after.heapUsed - before.heapUsed + after.external - before.external;
    assert.ok(grown < KEPT_BYTES, `${grown} bytes were kept`);
    const { telemetry } = transfers[0] as Transfer;
    assert.equal(telemetry.parts, BLOCKS);
    assert.equal(
      transfers.reduce((sum, transfer) => sum + transfer.telemetry.posts, 0),
      posts,
    );
    const bytes = await peer.bytes('allocated', 0, BLOCKS * BLOCK_BYTES * 2);
    assert.ok(bytes.every((byte, at) => byte === (Math.floor(at / BLOCK_BYTES) % 2 === 0 ? 200 : 7)));
    for (let taken = 0; taken < posts / 100; taken++)
      await peer.do({ do: 'next', blocking: false, timeoutMs: 120_000 });
    await assert.rejects(peer.do({ do: 'next', blocking: false, timeoutMs: 20 }), { code: 'WL_TIMEOUT' });
  });
}
