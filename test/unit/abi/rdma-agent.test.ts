// Immediate data of the agent's writes over RDMA: messages that lie in the inbox, those that need none, and wakes.
import assert from 'node:assert/strict';
import test from 'node:test';
import {
  canBeShort,
  immediateBytes,
  immediateOffset,
  isShort,
  messageImmediate,
  shortImmediate,
  shortMessage,
  RDMA_MESSAGE_ALIGNMENT,
  RDMA_RING_BYTES,
  RDMA_WAKE,
} from '#lib/agent/rdma/rdma-messages.js';
import fc from '../../support/fast-check.ts';

test('short messages stand in the immediate data', () => {
  fc.assert(
    fc.property(fc.uint8Array({ maxLength: 3 }), (message) => {
      const immediate = shortImmediate(message);
      assert.ok(immediate >= 0 && immediate < 2 ** 32);
      assert.ok(isShort(immediate) && canBeShort(immediate));
      assert.deepEqual(shortMessage(immediate), Uint8Array.from(message));
    }),
  );
});

test('where a longer message lies, and wakes, are told from them', () => {
  const places = RDMA_RING_BYTES / RDMA_MESSAGE_ALIGNMENT;
  fc.assert(
    fc.property(fc.nat(places - 1), fc.integer({ min: 4, max: 32_760 }), (place, bytes) => {
      const immediate = messageImmediate(place * RDMA_MESSAGE_ALIGNMENT, bytes);
      assert.ok(!isShort(immediate) && immediate !== RDMA_WAKE);
      assert.equal(immediateOffset(immediate), place * RDMA_MESSAGE_ALIGNMENT);
      assert.equal(immediateBytes(immediate), bytes);
    }),
  );
  assert.ok(!isShort(RDMA_WAKE));
});

test('other bits are no message', () => {
  for (const immediate of [0x8400_0000, 0xffff_ffff, 0xc000_0000]) assert.ok(!canBeShort(immediate));
});
