// In the guest: three ways to tell a kernel of blocks behind their bytes, with memory of the host in place of a GPU's.
import assert from 'node:assert/strict';
import test from 'node:test';
import { NativeBlock } from '#lib/native/library.js';
import { chooseFlush, type FlushWay, VisibilityFlush } from '#lib/native/verbs/visibility-flush.js';
import { MemoryRegion } from '#lib/native/verbs/memory-region.js';
import { connectPair, doOne, fill, Side } from './support/pair.ts';

const BLOCKS = 200;
const BLOCK_BYTES = 4096;
const ways: readonly FlushWay[] = ['fetch-add', 'read', 'mapped'];

function openFlush(side: Side, flag: NativeBlock, way: FlushWay): VisibilityFlush {
  const access = { remoteWrite: true, remoteRead: true, remoteAtomic: true };
  const region = MemoryRegion.host(side.domain, flag.address, flag.bytes.length, access);
  return new VisibilityFlush({
    domain: side.domain,
    path: side.pathTo(side),
    mtu: 1024,
    way,
    data: { address: side.memory.address, key: side.region.remoteKey },
    flag: { address: flag.address, key: region.remoteKey },
    mappedFlag: new BigInt64Array(flag.bytes.buffer, flag.bytes.byteOffset, 1),
  });
}

for (const way of ways) {
  test(`flush by ${way}: the flag counts each block, behind its bytes`, () => {
    using a = new Side('rxe0');
    using b = new Side('rxe1');
    const [writer] = connectPair('rc', [a, b]);
    const flag = new NativeBlock(64);
    const flagWord = new BigInt64Array(flag.bytes.buffer, flag.bytes.byteOffset, 1);
    using flush = openFlush(b, flag, way);
    // rxe has no null memory region.
    assert.equal(flush.oldValue, way === 'fetch-add' ? 'memory' : 'none');
    for (const round of [1, 2]) {
      const bytes = a.memory.bytes.subarray(0, BLOCK_BYTES);
      fill(bytes, round);
      const target = { remoteAddress: b.memory.address, remoteKey: b.region.remoteKey };
      assert.equal(doOne(writer, a, { bytes: BLOCK_BYTES, ...target }), 0);
      const until = Date.now() + 120_000;
      for (let block = 1; block <= BLOCKS; block += 1) {
        while (!flush.block(block === BLOCKS)) {
          flush.poll();
          assert.ok(Date.now() < until, 'there is no room for a block');
        }
      }
      while (!flush.isDone) {
        flush.poll();
        assert.ok(Date.now() < until, 'the blocks are not told');
      }
      assert.equal(Atomics.load(flagWord, 0), BigInt(BLOCKS * round));
      assert.deepEqual(b.memory.bytes.subarray(0, BLOCK_BYTES), bytes);
    }
  });
}

test('a flush that its memory does not allow fails with the status in words', () => {
  using a = new Side('rxe0');
  const flag = new NativeBlock(64);
  const region = MemoryRegion.host(a.domain, flag.address, 64, { remoteRead: true });
  const { domain } = a;
  const place = { address: flag.address, key: region.remoteKey };
  using flush = new VisibilityFlush({ domain, path: a.pathTo(a), mtu: 1024, way: 'fetch-add', flag: place });
  assert.ok(flush.block(true));
  const until = Date.now() + 120_000;
  const settle = (): void => {
    while (!flush.isDone) {
      flush.poll();
      assert.ok(Date.now() < until, 'the flush did not end');
    }
  };
  assert.throws(settle, /Flushing writes \(fetch-add\) failed with IBV_WC_\w+/);
});

test('the device of the guest flushes by fetch-add, or by a read where the flag is not registered', () => {
  using a = new Side('rxe0');
  const { atomicCap } = a.context.attributes;
  const memory = { isOrdered: false, atomicCap, isFlagMapped: true };
  assert.equal(chooseFlush({ ...memory, isFlagRegistered: true })?.way, 'fetch-add');
  assert.equal(chooseFlush({ ...memory, isFlagRegistered: false })?.way, 'read');
});
