// Element-wise sum, maximum and minimum over runs of elements, in the order in which they are listed. bf16 is computed in
// f32 and rounded once; i32 sums wrap; a NaN in any run gives the plain NaN (0x7fc00000, 0x7fc0), and -0 is less than 0.
//
// Elements of the tail are computed one by one in the first lane, by the same vector instructions, so that an element's
// result does not depend on its place.
import { REDUCTION_FORMAT_BF16, REDUCTION_FORMAT_F32, REDUCTION_MAX, REDUCTION_SUM } from 'abi';
import { evenLanes, interleaveToBf16, oddLanes, plainNan } from './bf16';

/**
 * out[i] = the reduction of element i of the runs whose addresses are at `sources`, of which there are `count` >= 1. `out` may
 * be one of the runs, and otherwise overlaps none. One run is copied.
 */
export function reduceRuns(
  out: usize,
  sources: usize,
  count: i32,
  bytes: usize,
  format: i32,
  reduction: i32,
): void {
  if (count == 1) {
    memory.copy(out, <usize>load<u32>(sources), bytes);
    return;
  }
  const end = sources + (<usize>count << 2);
  if (format == REDUCTION_FORMAT_F32) {
    if (reduction == REDUCTION_SUM) reduceF32(out, sources, end, bytes, 0);
    else if (reduction == REDUCTION_MAX) reduceF32(out, sources, end, bytes, 1);
    else reduceF32(out, sources, end, bytes, 2);
  } else if (format == REDUCTION_FORMAT_BF16) {
    if (reduction == REDUCTION_SUM) reduceBf16(out, sources, end, bytes, 0);
    else if (reduction == REDUCTION_MAX) reduceBf16(out, sources, end, bytes, 1);
    else reduceBf16(out, sources, end, bytes, 2);
  } else {
    if (reduction == REDUCTION_SUM) reduceI32(out, sources, end, bytes, 0);
    else if (reduction == REDUCTION_MAX) reduceI32(out, sources, end, bytes, 1);
    else reduceI32(out, sources, end, bytes, 2);
  }
}

// The reduction is a constant wherever these are inlined, so that no loop tests it.

@inline
function combineF32(a: v128, b: v128, reduction: i32): v128 {
  if (reduction == 0) return f32x4.add(a, b);
  return reduction == 1 ? f32x4.max(a, b) : f32x4.min(a, b);
}

@inline
function combineI32(a: v128, b: v128, reduction: i32): v128 {
  if (reduction == 0) return i32x4.add(a, b);
  return reduction == 1 ? i32x4.max_s(a, b) : i32x4.min_s(a, b);
}

@inline
function reduceF32(out: usize, sources: usize, end: usize, bytes: usize, reduction: i32): void {
  const first = <usize>load<u32>(sources);
  let at: usize = 0;
  for (; at + 64 <= bytes; at += 64) {
    const start = first + at;
    let a = v128.load(start), b = v128.load(start, 16), c = v128.load(start, 32), d = v128.load(start, 48);
    for (let s = sources + 4; s < end; s += 4) {
      const next = <usize>load<u32>(s) + at;
      a = combineF32(a, v128.load(next), reduction);
      b = combineF32(b, v128.load(next, 16), reduction);
      c = combineF32(c, v128.load(next, 32), reduction);
      d = combineF32(d, v128.load(next, 48), reduction);
    }
    v128.store(out + at, plainNan(a));
    v128.store(out + at, plainNan(b), 16);
    v128.store(out + at, plainNan(c), 32);
    v128.store(out + at, plainNan(d), 48);
  }
  for (; at < bytes; at += 4) {
    let a = f32x4.splat(load<f32>(first + at));
    for (let s = sources + 4; s < end; s += 4) {
      a = combineF32(a, f32x4.splat(load<f32>(<usize>load<u32>(s) + at)), reduction);
    }
    store<i32>(out + at, i32x4.extract_lane(plainNan(a), 0));
  }
}

@inline
function reduceBf16(out: usize, sources: usize, end: usize, bytes: usize, reduction: i32): void {
  const first = <usize>load<u32>(sources);
  let at: usize = 0;
  for (; at + 32 <= bytes; at += 32) {
    const x = v128.load(first + at), y = v128.load(first + at, 16);
    let a = evenLanes(x), b = oddLanes(x), c = evenLanes(y), d = oddLanes(y);
    for (let s = sources + 4; s < end; s += 4) {
      const next = <usize>load<u32>(s) + at;
      const p = v128.load(next), q = v128.load(next, 16);
      a = combineF32(a, evenLanes(p), reduction);
      b = combineF32(b, oddLanes(p), reduction);
      c = combineF32(c, evenLanes(q), reduction);
      d = combineF32(d, oddLanes(q), reduction);
    }
    v128.store(out + at, interleaveToBf16(a, b));
    v128.store(out + at, interleaveToBf16(c, d), 16);
  }
  for (; at < bytes; at += 2) {
    let a = evenLanes(i32x4.splat(<i32>load<u16>(first + at)));
    for (let s = sources + 4; s < end; s += 4) {
      a = combineF32(a, evenLanes(i32x4.splat(<i32>load<u16>(<usize>load<u32>(s) + at))), reduction);
    }
    store<u16>(out + at, <u16>i32x4.extract_lane(interleaveToBf16(a, a), 0));
  }
}

@inline
function reduceI32(out: usize, sources: usize, end: usize, bytes: usize, reduction: i32): void {
  const first = <usize>load<u32>(sources);
  let at: usize = 0;
  for (; at + 64 <= bytes; at += 64) {
    const start = first + at;
    let a = v128.load(start), b = v128.load(start, 16), c = v128.load(start, 32), d = v128.load(start, 48);
    for (let s = sources + 4; s < end; s += 4) {
      const next = <usize>load<u32>(s) + at;
      a = combineI32(a, v128.load(next), reduction);
      b = combineI32(b, v128.load(next, 16), reduction);
      c = combineI32(c, v128.load(next, 32), reduction);
      d = combineI32(d, v128.load(next, 48), reduction);
    }
    v128.store(out + at, a);
    v128.store(out + at, b, 16);
    v128.store(out + at, c, 32);
    v128.store(out + at, d, 48);
  }
  for (; at < bytes; at += 4) {
    let a = i32x4.splat(load<i32>(first + at));
    for (let s = sources + 4; s < end; s += 4) {
      a = combineI32(a, i32x4.splat(load<i32>(<usize>load<u32>(s) + at)), reduction);
    }
    store<i32>(out + at, i32x4.extract_lane(a, 0));
  }
}
