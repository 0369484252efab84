// Chunks are taken in their order, whichever channel they come on, also where the cells wrap around.
import assert from 'node:assert/strict';
import test from 'node:test';
import { ChunkArrivals } from '#lib/group/network/peer-words.js';
import fc from '../../../support/fast-check.ts';

const FIRST_CELL = 3;
const PEER = 2;

interface Pretended {
  readonly arrivals: ChunkArrivals;
  /** A chunk of that channel arrives. */
  readonly signal: (channel: number) => void;
}

/** `before`: chunks that each channel has brought and that were taken. */
function pretend(channels: number, before = 0): Pretended {
  const cells = new Int32Array(channels).fill(before);
  const count = (peer: number, cell: number): number => {
    assert.equal(peer, PEER);
    return cells[cell - FIRST_CELL]!;
  };
  const arrivals = new ChunkArrivals({ count }, PEER, FIRST_CELL, channels, before);
  return { arrivals, signal: (channel) => (cells[channel]! += 1) };
}

/** Everything that is here. */
function takeAll({ arrivals }: Pretended): void {
  while (arrivals.take());
}

test('a chunk is taken when it and all before it are here', () => {
  const pretended = pretend(2);
  const { arrivals, signal } = pretended;
  arrivals.begin();
  signal(1);
  signal(1);
  takeAll(pretended);
  assert.equal(arrivals.taken, 0);
  signal(0);
  takeAll(pretended);
  assert.equal(arrivals.taken, 2);
  signal(0);
  takeAll(pretended);
  assert.equal(arrivals.taken, 4);
});

test('what comes after the chunks of a call is left to the next one', () => {
  const { arrivals, signal } = pretend(1);
  arrivals.begin();
  signal(0);
  signal(0);
  assert.ok(arrivals.take());
  arrivals.begin();
  assert.equal(arrivals.taken, 0);
  assert.ok(arrivals.take());
  assert.ok(!arrivals.take());
});

test('any order between channels takes the chunks that are here without a gap', () => {
  const anyOrder = fc.record({
    channels: fc.integer({ min: 1, max: 4 }),
    arriving: fc.array(fc.integer({ min: 0, max: 3 }), { maxLength: 40 }),
  });
  fc.assert(
    fc.property(anyOrder, ({ channels, arriving }) => {
      const pretended = pretend(channels);
      pretended.arrivals.begin();
      const here = Array.from({ length: channels }, () => 0);
      for (const channel of arriving.map((one) => one % channels)) {
        pretended.signal(channel);
        here[channel]! += 1;
        takeAll(pretended);
        const complete = Math.min(...here.map((count, of) => count * channels + of));
        assert.equal(pretended.arrivals.taken, complete);
      }
    }),
  );
});

test('counts of 32 bits wrap around, at the last positive one and from -1 to 0', () => {
  for (const before of [0x7fff_ffff, -1]) {
    const { arrivals, signal } = pretend(1, before);
    arrivals.begin();
    assert.ok(!arrivals.take());
    signal(0);
    signal(0);
    assert.ok(arrivals.take());
    assert.ok(arrivals.take());
    assert.ok(!arrivals.take());
  }
});
