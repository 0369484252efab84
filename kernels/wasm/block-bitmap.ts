// The blocks of a run of elements that are zero. An element counts where its magnitude is above the threshold, or where it is a
// NaN. Blocks have a multiple of 128 bytes, but for the last one.
import { REDUCTION_FORMAT_BF16, REDUCTION_FORMAT_F32 } from 'abi';
import { evenLanes, oddLanes } from './bf16';

/** The block has an element that counts; has none, and all its bits are zero; has none, but bits, as of -0. */
const COUNTS = 0;
const CLEAR = 1;
const SMALL = 2;

/**
 * bitmap[b] = 0 if block b of `input` has an element that counts, else 1: then block b of `output` is filled with zeros.
 * `output` may be `input`, of which only what is not zero is written; else they are apart. Returns how many blocks count.
 */
export function markBlocks(
  input: usize,
  bytes: usize,
  blockBytes: usize,
  format: i32,
  threshold: f64,
  bitmap: usize,
  output: usize,
): i32 {
  if (threshold == 0) {
    if (format == REDUCTION_FORMAT_F32) return mark(input, bytes, blockBytes, 0, 0, bitmap, output);
    if (format == REDUCTION_FORMAT_BF16) return mark(input, bytes, blockBytes, 1, 0, bitmap, output);
    return mark(input, bytes, blockBytes, 2, 0, bitmap, output);
  }
  if (format == REDUCTION_FORMAT_F32) return mark(input, bytes, blockBytes, 3, threshold, bitmap, output);
  if (format == REDUCTION_FORMAT_BF16) return mark(input, bytes, blockBytes, 4, threshold, bitmap, output);
  return mark(input, bytes, blockBytes, 5, Math.min(Math.floor(threshold), 4294967295), bitmap, output);
}

/** Lanes that are not zero where an element counts. `test` is a constant wherever this is inlined. */
@inline
function counted(x: v128, test: i32, limit: v128): v128 {
  if (test == 0) return v128.and(x, i32x4.splat(0x7fffffff));
  if (test == 1) return v128.and(x, i32x4.splat(0x7fff7fff));
  if (test == 2) return x;
  if (test == 3) return v128.not(f32x4.le(f32x4.abs(x), limit));
  if (test == 4) {
    const even = f32x4.le(f32x4.abs(evenLanes(x)), limit);
    return v128.not(v128.and(even, f32x4.le(f32x4.abs(oddLanes(x)), limit)));
  }
  return i32x4.gt_u(i32x4.abs(x), limit);
}

@inline
function mark(
  input: usize,
  bytes: usize,
  blockBytes: usize,
  test: i32,
  threshold: f64,
  bitmap: usize,
  output: usize,
): i32 {
  const limit = test == 5 ? i32x4.splat(<i32>(<u32>threshold)) : f32x4.splat(<f32>threshold);
  let found = 0;
  for (let from: usize = 0; from < bytes; from += blockBytes, bitmap++) {
    const length = min(blockBytes, bytes - from);
    const state = stateOf(input + from, length, test, limit);
    store<u8>(bitmap, <u8>(state != COUNTS));
    if (state == COUNTS) found++;
    else if (input != output || state == SMALL) memory.fill(output + from, 0, length);
  }
  return found;
}

@inline
function stateOf(start: usize, bytes: usize, test: i32, limit: v128): i32 {
  const whole = start + (bytes & ~127);
  let bits = i32x4.splat(0);
  let at = start;
  for (; at < whole; at += 128) {
    const a = v128.load(at), b = v128.load(at, 16), c = v128.load(at, 32), d = v128.load(at, 48);
    const e = v128.load(at, 64), f = v128.load(at, 80), g = v128.load(at, 96), h = v128.load(at, 112);
    const some = v128.or(v128.or(v128.or(a, b), v128.or(c, d)), v128.or(v128.or(e, f), v128.or(g, h)));
    if (!v128.any_true(some)) continue;
    bits = v128.or(bits, some);
    if (test < 3) {
      if (v128.any_true(counted(some, test, limit))) return COUNTS;
      continue;
    }
    const first = v128.or(
      v128.or(counted(a, test, limit), counted(b, test, limit)),
      v128.or(counted(c, test, limit), counted(d, test, limit)),
    );
    const second = v128.or(
      v128.or(counted(e, test, limit), counted(f, test, limit)),
      v128.or(counted(g, test, limit), counted(h, test, limit)),
    );
    if (v128.any_true(v128.or(first, second))) return COUNTS;
  }
  const step: usize = test == 1 || test == 4 ? 2 : 4;
  for (const end = start + bytes; at < end; at += step) {
    const x = step == 2 ? i16x8.splat(<i16>load<u16>(at)) : i32x4.splat(load<i32>(at));
    if (v128.any_true(counted(x, test, limit))) return COUNTS;
    bits = v128.or(bits, x);
  }
  return v128.any_true(bits) ? SMALL : CLEAR;
}
