import assert from 'node:assert/strict';
import test from 'node:test';
import { f32Bits, f32FromBits } from '#lib/core/dtype.js';
import { fromBf16, toBf16 } from 'weftline';

const INFINITY_BITS = 0x7f80;

function isNaNPattern(bits: number): boolean {
  return (bits & 0x7fff) > INFINITY_BITS;
}

/** The value of a pattern from sign, exponent and fraction; independent of bit tricks on f32. */
function decode(bits: number): number {
  const sign = bits & 0x8000 ? -1 : 1;
  const exponent = (bits >>> 7) & 0xff;
  const fraction = bits & 0x7f;
  if (exponent === 0xff) return fraction === 0 ? sign * Infinity : NaN;
  if (exponent === 0) return sign * fraction * 2 ** -133;
  return sign * (1 + fraction / 128) * 2 ** (exponent - 127);
}

/** The nearest pattern by comparing exact distances; a tie goes to the even one; infinity counts as 2^128. */
function nearest(value: number): number {
  if (Number.isNaN(value)) return 0x7fc0;
  const sign = Object.is(value, -0) || value < 0 ? 0x8000 : 0;
  const size = Math.abs(value);
  if (size === Infinity) return sign | INFINITY_BITS;
  let low = 0;
  let high = INFINITY_BITS;
  const reach = (bits: number): number => (bits === INFINITY_BITS ? 2 ** 128 : decode(bits));
  while (high - low > 1) {
    const middle = (low + high) >>> 1;
    if (reach(middle) <= size) low = middle;
    else high = middle;
  }
  const below = size - reach(low);
  const above = reach(high) - size;
  const chosen = below < above || (below === above && low % 2 === 0) ? low : high;
  return sign | chosen;
}

test('fromBf16() gives the value of every one of the 65,536 patterns', () => {
  for (let bits = 0; bits <= 0xffff; bits += 1) {
    assert.ok(Object.is(fromBf16(bits), decode(bits)), `pattern 0x${bits.toString(16)}`);
  }
});

test('toBf16() gives every pattern back; every NaN becomes 0x7fc0', () => {
  for (let bits = 0; bits <= 0xffff; bits += 1) {
    assert.equal(toBf16(fromBf16(bits)), isNaNPattern(bits) ? 0x7fc0 : bits);
  }
});

test('toBf16() rounds the middle between two patterns, and the values beside it, as the exact distances say', () => {
  for (let low = 0; low < 0xffff; low += 1) {
    if ((low & 0x7fff) >= INFINITY_BITS) continue;
    const middle = (((low << 16) >>> 0) | 0x8000) >>> 0;
    for (const bits of [middle - 1, middle, middle + 1]) {
      const value = f32FromBits(bits);
      const got = toBf16(value);
      if (got !== nearest(value)) {
        assert.fail(
          `0x${bits.toString(16)} (${value}) became 0x${got.toString(16)}, not 0x${nearest(value).toString(16)}`,
        );
      }
    }
  }
});

test('toBf16() agrees with the exact distances on 200,000 f32 patterns spread over the whole range', () => {
  let wrong = 0;
  for (let step = 0; step < 200_000; step += 1) {
    const value = f32FromBits(Math.imul(step, 0x9e37_79b1) >>> 0);
    if (toBf16(value) !== nearest(value)) wrong += 1;
  }
  assert.equal(wrong, 0);
});

test('toBf16() keeps the sign of zero, overflows to infinity and keeps subnormals', () => {
  assert.equal(toBf16(0), 0);
  assert.equal(toBf16(-0), 0x8000);
  assert.equal(toBf16(Infinity), 0x7f80);
  assert.equal(toBf16(-Infinity), 0xff80);
  assert.equal(toBf16(NaN), 0x7fc0);
  const largest = fromBf16(0x7f7f);
  const tie = largest + 2 ** 119;
  assert.equal(toBf16(largest), 0x7f7f);
  assert.equal(toBf16(f32FromBits(f32Bits(tie) - 1)), 0x7f7f);
  assert.equal(toBf16(tie), 0x7f80);
  assert.equal(toBf16(-tie), 0xff80);
  assert.equal(toBf16(1e39), 0x7f80);
  assert.equal(toBf16(2 ** -133), 1);
  assert.equal(toBf16(2 ** -134), 0);
  assert.equal(toBf16(3 * 2 ** -134), 2);
  assert.equal(toBf16(2 ** -149), 0);
});
