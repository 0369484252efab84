import assert from 'node:assert/strict';
import test from 'node:test';
import { f32Bits, f32FromBits } from '#lib/core/dtype.js';
import { fromFp8e4m3, toFp8e4m3, toFp8e4m3Saturating } from '#lib/reference/fp8-rows.js';

test('fromFp8e4m3() gives the numbers of the format', () => {
  assert.equal(fromFp8e4m3(0x01), 2 ** -9);
  assert.equal(fromFp8e4m3(0x07), 7 * 2 ** -9);
  assert.equal(fromFp8e4m3(0x08), 2 ** -6);
  assert.equal(fromFp8e4m3(0x38), 1);
  assert.equal(fromFp8e4m3(0xb9), -1.125);
  assert.equal(fromFp8e4m3(0x7e), 448);
  assert.ok(Object.is(fromFp8e4m3(0x80), -0));
  for (const nan of [0x7f, 0xff]) assert.ok(Number.isNaN(fromFp8e4m3(nan)));
});

test('all 256 codes survive the way to f32 and back', () => {
  for (let code = 0; code < 256; code++) {
    // A NaN loses its sign in JavaScript arithmetic, so its own bit patterns are checked below.
    if ((code & 0x7f) === 0x7f) continue;
    assert.equal(toFp8e4m3(fromFp8e4m3(code)), code);
    assert.equal(toFp8e4m3Saturating(fromFp8e4m3(code)), code);
  }
});

test('toFp8e4m3() takes the nearest code, the even one in the middle', () => {
  for (let code = 0; code < 0x7e; code++) {
    const low = fromFp8e4m3(code);
    const high = fromFp8e4m3(code + 1);
    const middle = (low + high) / 2;
    const even = code % 2 === 0 ? code : code + 1;
    for (const sign of [0, 0x80]) {
      const signed = (value: number): number => (sign ? -value : value);
      assert.equal(toFp8e4m3(signed(middle)), sign | even, `middle of ${low} and ${high}`);
      assert.equal(toFp8e4m3(signed(nextBelow(middle))), sign | code, `below the middle of ${low} and ${high}`);
      assert.equal(toFp8e4m3(signed(nextAbove(middle))), sign | (code + 1), `above the middle of ${low} and ${high}`);
    }
  }
});

test('beyond 448 toFp8e4m3() gives NaN and toFp8e4m3Saturating() 448', () => {
  assert.equal(toFp8e4m3(464), 0x7e);
  assert.equal(toFp8e4m3(nextAbove(464)), 0x7f);
  assert.equal(toFp8e4m3(-nextAbove(464)), 0xff);
  assert.equal(toFp8e4m3(Number.POSITIVE_INFINITY), 0x7f);
  assert.equal(toFp8e4m3(Number.NEGATIVE_INFINITY), 0xff);
  assert.equal(toFp8e4m3(Number.NaN) & 0x7f, 0x7f);
  assert.equal(toFp8e4m3Saturating(1e30), 0x7e);
  assert.equal(toFp8e4m3Saturating(Number.NEGATIVE_INFINITY), 0xfe);
  assert.equal(toFp8e4m3Saturating(Number.NaN) & 0x7f, 0x7f);
});

function nextAbove(value: number): number {
  return f32FromBits(f32Bits(value) + 1);
}

function nextBelow(value: number): number {
  return f32FromBits(f32Bits(value) - 1);
}
