import assert from 'node:assert/strict';
import test from 'node:test';
import { PinnedRings } from '#lib/agent/staging/cuda-copies.js';
import { withCode } from '../../../support/with-code.ts';

const KIB = 1024;
const GIB = 2 ** 30;

/** Addresses count up; nothing large is really there. */
function counting(): { readonly allocate: (bytes: number) => Fake; readonly sizes: number[] } {
  const sizes: number[] = [];
  const allocate = (bytes: number): Fake => {
    sizes.push(bytes);
    return { bytes, hostAddress: 4096 * sizes.length, buffer: new ArrayBuffer(4 * KIB) };
  };
  return { allocate, sizes };
}

interface Fake {
  readonly bytes: number;
  readonly hostAddress: number;
  readonly buffer: ArrayBuffer;
}

test('rings that were given back are used again, the smallest that is large enough', () => {
  const { allocate, sizes } = counting();
  const rings = new PinnedRings(allocate, 64 * KIB);
  assert.deepEqual(
    sizes,
    Array.from({ length: 4 }, () => 64 * KIB),
  );
  const large = rings.make(256 * KIB);
  large.free();
  const small = rings.make(32 * KIB);
  assert.notEqual(small.address, large.address);
  assert.equal(rings.make(100 * KIB).address, large.address);
  assert.equal(sizes.length, 5);
});

test('a ring begins with counters that are zero, also when it is used again', () => {
  const rings = new PinnedRings(counting().allocate, KIB);
  const first = rings.make(KIB);
  new Uint8Array(first.buffer).fill(7);
  first.free();
  for (let ring = 0; ring < 4; ring++) assert.equal(new Uint8Array(rings.make(KIB).buffer)[0], 0);
});

test('peers that ask for rings of ever new sizes pin no more than the bound', () => {
  const { allocate, sizes } = counting();
  const rings = new PinnedRings(allocate, KIB);
  assert.throws(
    () => {
      for (let step = 1; step < 100; step++) rings.make(step * 64 * KIB * KIB).free();
    },
    withCode('WL_CAPACITY', /rings hold \d+ of at most 1073741824 bytes/),
  );
  assert.ok(sizes.reduce((sum, bytes) => sum + bytes, 0) <= GIB);
  // What is there still serves.
  rings.make(64 * KIB * KIB).free();
});
