// The ring of messages on their way, whose places become free in any order.
import assert from 'node:assert/strict';
import test from 'node:test';
import { MessageRing } from '#lib/agent/message-ring.js';
import fc from '../../support/fast-check.ts';

const BYTES = 256;
const MOST = 8;
const open = (): MessageRing => new MessageRing({ bytes: BYTES, most: MOST, peer: 'b' });
const busy = {
  code: 'WL_BUSY',
  message: /^Cannot send a message of \d+ bytes to b, which has not taken earlier ones yet/,
};

test('no two messages share a byte until the first is over, whatever ends in which order', () => {
  const step = fc.record({ bytes: fc.integer({ min: 0, max: 12 }).map((words) => words * 8), ends: fc.nat(MOST) });
  fc.assert(
    fc.property(fc.array(step, { maxLength: 200 }), (steps) => {
      const ring = open();
      const waiting: { readonly number: number; readonly at: number; readonly bytes: number }[] = [];
      for (const { bytes, ends } of steps) {
        const { next } = ring;
        try {
          const number = ring.take(bytes, bytes);
          const at = ring.offsetOf(number);
          assert.equal(number, next);
          assert.ok(at + bytes <= BYTES);
          const isShared = waiting.some((other) => at < other.at + other.bytes && other.at < at + bytes);
          assert.equal(isShared, false);
          waiting.push({ number, at, bytes });
        } catch (error) {
          assert.throws(() => {
            throw error;
          }, busy);
          assert.equal(ring.next, next);
          assert.ok(waiting.length > 0, 'an empty ring has room');
        }
        for (const { number } of waiting.splice(ends % (waiting.length + 1), 1)) ring.free(number);
        assert.equal(ring.first, waiting[0]?.number ?? ring.next);
      }
    }),
  );
});

test('a peer without room takes nothing, and nothing is lost of the ring', () => {
  const ring = open();
  assert.throws(() => ring.take(5, 8, false), busy);
  assert.deepEqual([ring.first, ring.next], [0, 0]);
  for (let number = 0; number < MOST; number++) assert.equal(ring.take(5, 8), number);
  assert.throws(() => ring.take(5, 8), busy);
  ring.free(1);
  assert.throws(() => ring.take(5, 8), busy);
  ring.free(0);
  assert.equal(ring.first, 2);
  assert.equal(ring.take(5, 8), MOST);
});
