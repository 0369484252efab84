// Checks the descriptors of a launch where they lie copied: bounds, sums, and whether two fragments are written to the same
// bytes. Fragments that come in the order of their places cost one comparison each. Others mark the bits of what they
// cover, in units of their common alignment; where those are too many, the fragments are sorted.
import {
  BLOCK_HEADER_BOUNCE,
  BLOCK_HEADER_BOUNCE_BYTES,
  BLOCK_HEADER_BYTES,
  BLOCK_HEADER_COUNT,
  BLOCK_HEADER_DESTINATION,
  BLOCK_HEADER_DESTINATION_BYTES,
  FRAGMENT_BYTES,
  FRAGMENT_CHECK_BITS,
  FRAGMENT_CHECK_BLOCK_BYTES,
  FRAGMENT_CHECK_BLOCK_FRAGMENTS,
  FRAGMENT_CHECK_BYTES,
  FRAGMENT_CHECK_END,
  FRAGMENT_CHECK_FIRST,
  FRAGMENT_CHECK_FRAGMENTS,
  FRAGMENT_CHECK_IS_ORDERED,
  FRAGMENT_CHECK_LEAST,
  FRAGMENT_CHECK_LONGEST,
  FRAGMENT_CHECK_MOST,
  FRAGMENT_CHECK_TOTAL_BYTES,
  FRAGMENT_DESTINATION_OFFSET,
  FRAGMENT_LENGTH,
  FRAGMENT_SOURCE_OFFSET,
  SORTED_FRAGMENT_BYTES,
  SORTED_FRAGMENT_LENGTH,
  SORTED_FRAGMENT_NAME,
  SORTED_FRAGMENT_START,
} from 'abi';

/** Digits that are sorted by, the lowest first. */
const DIGIT_BITS: u64 = 11;
const DIGITS: u32 = 1 << 11;

/** Call it before the first block of a launch. */
export function beginFragmentCheck(state: usize): void {
  memory.fill(state, 0, FRAGMENT_CHECK_BYTES);
  store<u64>(state, <u64>i64.MAX_VALUE, FRAGMENT_CHECK_LEAST);
  store<u32>(state, 1, FRAGMENT_CHECK_IS_ORDERED);
}

/**
 * Adds a block to the state. Returns the first descriptor that lies outside of its memory, or -1. The header's count fits
 * into the block, and its memory ends below 2^53.
 */
export function checkFragments(block: usize, packs: i32, state: usize): i32 {
  const count = load<u32>(block, BLOCK_HEADER_COUNT);
  const written = writtenBase(block, packs);
  if (load<u32>(state, FRAGMENT_CHECK_FRAGMENTS) == 0 && count > 0) {
    // An empty fragment counts too: any start will do.
    store<u64>(state, written + offsetOf(block + BLOCK_HEADER_BYTES, packs), FRAGMENT_CHECK_FIRST);
  }
  store<u64>(state, 0, FRAGMENT_CHECK_BLOCK_BYTES);
  store<u32>(state, 0, FRAGMENT_CHECK_BLOCK_FRAGMENTS);
  store<u32>(state, 0, FRAGMENT_CHECK_LONGEST);
  const pairs = count & ~1;
  const isPlain = checkPairs(block, packs, pairs, state);
  const outside = checkSingly(block, packs, isPlain ? pairs : 0, count, state);
  if (outside >= 0) return outside;
  const total = load<u64>(state, FRAGMENT_CHECK_TOTAL_BYTES) + load<u64>(state, FRAGMENT_CHECK_BLOCK_BYTES);
  store<u64>(state, total, FRAGMENT_CHECK_TOTAL_BYTES);
  const fragments = load<u32>(state, FRAGMENT_CHECK_FRAGMENTS) + load<u32>(state, FRAGMENT_CHECK_BLOCK_FRAGMENTS);
  store<u32>(state, fragments, FRAGMENT_CHECK_FRAGMENTS);
  return -1;
}

/** Descriptors two by two. False, without a change of the state, if one is empty or outside of its memory. */
function checkPairs(block: usize, packs: i32, count: u32, state: usize): bool {
  const zero = i64x2.splat(0);
  const lowHalf = i64x2.splat(0xffff_ffff);
  const bounceBytes = i64x2.splat(reachOf(block));
  const destinationBytes = v128.load64_splat(block, BLOCK_HEADER_DESTINATION_BYTES);
  const written = i64x2.splat(writtenBase(block, packs));
  const first = v128.load64_splat(state, FRAGMENT_CHECK_FIRST);
  const ofSource = i64x2.splat(packs != 0 ? -1 : 0);
  let least = v128.load64_splat(state, FRAGMENT_CHECK_LEAST);
  let most = v128.load64_splat(state, FRAGMENT_CHECK_MOST);
  let ends = v128.load64_splat(state, FRAGMENT_CHECK_END);
  // The sign bits tell.
  let wrong = zero;
  let unordered = zero;
  let bits = zero;
  let total = zero;
  let longest = zero;
  let descriptor = block + BLOCK_HEADER_BYTES;
  const stop = descriptor + <usize>count * FRAGMENT_BYTES;
  for (; descriptor < stop; descriptor += 2 * FRAGMENT_BYTES) {
    const one = v128.load(descriptor);
    const other = v128.load(descriptor, FRAGMENT_BYTES);
    // Source offset and length of both; then their destination offsets.
    const fronts = v128.shuffle<u64>(one, other, 0, 2);
    const places = v128.shuffle<u64>(one, other, 1, 3);
    const sources = v128.and(fronts, lowHalf);
    const lengths = i64x2.shr_u(fronts, 32);
    const placeEnds = i64x2.add(places, lengths);
    wrong = v128.or(wrong, i64x2.gt_s(i64x2.add(sources, lengths), bounceBytes));
    // What lies at 2^63 or above is negative, and no memory ends there.
    wrong = v128.or(wrong, v128.or(places, placeEnds));
    wrong = v128.or(wrong, v128.or(i64x2.gt_s(placeEnds, destinationBytes), i64x2.eq(lengths, zero)));
    const starts = i64x2.add(written, v128.bitselect(sources, places, ofSource));
    const before = ends;
    ends = i64x2.add(starts, lengths);
    unordered = v128.or(unordered, i64x2.gt_s(v128.shuffle<u64>(before, ends, 1, 2), starts));
    bits = v128.or(bits, v128.or(v128.xor(starts, first), lengths));
    total = i64x2.add(total, lengths);
    longest = i32x4.max_u(longest, lengths);
    least = v128.bitselect(starts, least, i64x2.gt_s(least, starts));
    most = v128.bitselect(ends, most, i64x2.gt_s(ends, most));
  }
  if (i64x2.bitmask(wrong) != 0) return false;
  if (count == 0) return true;
  store<u64>(state, min(u64At(least, 0), u64At(least, 1)), FRAGMENT_CHECK_LEAST);
  store<u64>(state, max(u64At(most, 0), u64At(most, 1)), FRAGMENT_CHECK_MOST);
  store<u64>(state, u64At(ends, 1), FRAGMENT_CHECK_END);
  const allBits = load<u64>(state, FRAGMENT_CHECK_BITS) | u64At(bits, 0) | u64At(bits, 1);
  store<u64>(state, allBits, FRAGMENT_CHECK_BITS);
  if (v128.any_true(unordered)) store<u32>(state, 0, FRAGMENT_CHECK_IS_ORDERED);
  store<u64>(state, u64At(total, 0) + u64At(total, 1), FRAGMENT_CHECK_BLOCK_BYTES);
  store<u32>(state, <u32>max(u64At(longest, 0), u64At(longest, 1)), FRAGMENT_CHECK_LONGEST);
  store<u32>(state, count, FRAGMENT_CHECK_BLOCK_FRAGMENTS);
  return true;
}

/** Bytes of the bounce buffer that offsets of 32 bits reach: every piece of a fragment has an offset of its own. */
function reachOf(block: usize): u64 {
  return min(load<u64>(block, BLOCK_HEADER_BOUNCE_BYTES), <u64>1 << 32);
}

// @ts-ignore: decorator
@inline
function u64At(vector: v128, lane: u8): u64 {
  return lane == 0 ? <u64>i64x2.extract_lane(vector, 0) : <u64>i64x2.extract_lane(vector, 1);
}

/** Descriptors `from` to `to`. Returns the first one outside of its memory, or -1. */
function checkSingly(block: usize, packs: i32, from: u32, to: u32, state: usize): i32 {
  const bounceBytes = reachOf(block);
  const destinationBytes = load<u64>(block, BLOCK_HEADER_DESTINATION_BYTES);
  const written = writtenBase(block, packs);
  const first = load<u64>(state, FRAGMENT_CHECK_FIRST);
  let least = load<u64>(state, FRAGMENT_CHECK_LEAST);
  let most = load<u64>(state, FRAGMENT_CHECK_MOST);
  let end = load<u64>(state, FRAGMENT_CHECK_END);
  let bits = load<u64>(state, FRAGMENT_CHECK_BITS);
  let isOrdered = load<u32>(state, FRAGMENT_CHECK_IS_ORDERED);
  let total = load<u64>(state, FRAGMENT_CHECK_BLOCK_BYTES);
  let longest = load<u32>(state, FRAGMENT_CHECK_LONGEST);
  let filled = load<u32>(state, FRAGMENT_CHECK_BLOCK_FRAGMENTS);
  let descriptor = block + BLOCK_HEADER_BYTES + <usize>from * FRAGMENT_BYTES;
  for (let index = from; index < to; index++, descriptor += FRAGMENT_BYTES) {
    const source = <u64>load<u32>(descriptor, FRAGMENT_SOURCE_OFFSET);
    const length = load<u32>(descriptor, FRAGMENT_LENGTH);
    const place = load<u64>(descriptor, FRAGMENT_DESTINATION_OFFSET);
    // A place near 2^64 must not wrap around.
    if (source + length > bounceBytes || place > destinationBytes || length > destinationBytes - place) {
      return <i32>index;
    }
    if (length == 0) continue;
    const start = written + (packs != 0 ? source : place);
    bits |= (start ^ first) | length;
    isOrdered &= <u32>(start >= end);
    end = start + length;
    least = min(least, start);
    most = max(most, end);
    longest = max(longest, length);
    total += length;
    filled++;
  }
  store<u64>(state, least, FRAGMENT_CHECK_LEAST);
  store<u64>(state, most, FRAGMENT_CHECK_MOST);
  store<u64>(state, end, FRAGMENT_CHECK_END);
  store<u64>(state, bits, FRAGMENT_CHECK_BITS);
  store<u32>(state, isOrdered, FRAGMENT_CHECK_IS_ORDERED);
  store<u64>(state, total, FRAGMENT_CHECK_BLOCK_BYTES);
  store<u32>(state, longest, FRAGMENT_CHECK_LONGEST);
  store<u32>(state, filled, FRAGMENT_CHECK_BLOCK_FRAGMENTS);
  return -1;
}

/** Clears a bit for each unit of what the launch writes. Returns 0 if they take more than `room` bytes, a multiple of 8. */
export function beginMarks(state: usize, marks: usize, room: usize): i32 {
  const units = (load<u64>(state, FRAGMENT_CHECK_MOST) - load<u64>(state, FRAGMENT_CHECK_LEAST)) >> unitShift(state);
  const bytes = ((units + 63) >> 6) << 3;
  if (bytes > <u64>room) return 0;
  memory.fill(marks, 0, <usize>bytes);
  return 1;
}

/** Marks what the fragments of a block cover. Returns 0 when one covers a unit that is marked already. */
export function markFragments(block: usize, packs: i32, state: usize, marks: usize): i32 {
  const count = load<u32>(block, BLOCK_HEADER_COUNT);
  const base = writtenBase(block, packs) - load<u64>(state, FRAGMENT_CHECK_LEAST);
  const shift = unitShift(state);
  let descriptor = block + BLOCK_HEADER_BYTES;
  for (let index: u32 = 0; index < count; index++, descriptor += FRAGMENT_BYTES) {
    const units = <u64>load<u32>(descriptor, FRAGMENT_LENGTH) >> shift;
    const unit = (base + offsetOf(descriptor, packs)) >> shift;
    const word = marks + <usize>((unit >> 6) << 3);
    const bit = unit & 63;
    if (units == 1) {
      const mark = <u64>1 << bit;
      const seen = load<u64>(word);
      if ((seen & mark) != 0) return 0;
      store<u64>(word, seen | mark);
    } else if (units != 0 && !markUnits(word, bit, units)) return 0;
  }
  return 1;
}

function markUnits(word: usize, bit: u64, units: u64): bool {
  while (units > 0) {
    const here = min(64 - bit, units);
    const mask = (u64.MAX_VALUE >> (64 - here)) << bit;
    const seen = load<u64>(word);
    if ((seen & mask) != 0) return false;
    store<u64>(word, seen | mask);
    units -= here;
    bit = 0;
    word += 8;
  }
  return true;
}

/** Writes a SortedFragment for each fragment of a block. Returns the address behind the last one. */
export function listFragments(block: usize, packs: i32, firstName: u32, state: usize, list: usize): usize {
  const count = load<u32>(block, BLOCK_HEADER_COUNT);
  const base = writtenBase(block, packs) - load<u64>(state, FRAGMENT_CHECK_LEAST);
  const shift = unitShift(state);
  let descriptor = block + BLOCK_HEADER_BYTES;
  for (let index: u32 = 0; index < count; index++, descriptor += FRAGMENT_BYTES) {
    const units = load<u32>(descriptor, FRAGMENT_LENGTH) >> <u32>shift;
    if (units == 0) continue;
    store<u64>(list, (base + offsetOf(descriptor, packs)) >> shift, SORTED_FRAGMENT_START);
    store<u32>(list, units, SORTED_FRAGMENT_LENGTH);
    store<u32>(list, firstName + index, SORTED_FRAGMENT_NAME);
    list += SORTED_FRAGMENT_BYTES;
  }
  return list;
}

/**
 * Sorts the listed fragments by start, those of the same start by their place in the list; `spare` has room for as many,
 * `digits` for 2048 u32. Returns the address of the second of the first two that overlap, behind the other, or 0.
 */
export function findOverlap(list: usize, end: usize, spare: usize, digits: usize, state: usize): usize {
  const bytes = end - list;
  let highest = (load<u64>(state, FRAGMENT_CHECK_MOST) - load<u64>(state, FRAGMENT_CHECK_LEAST)) >> unitShift(state);
  for (let shift: u64 = 0; highest != 0; shift += DIGIT_BITS, highest >>= DIGIT_BITS) {
    sortByDigit(list, bytes, spare, digits, shift);
    const sorted = spare;
    spare = list;
    list = sorted;
  }
  for (let at = list + SORTED_FRAGMENT_BYTES; at < list + bytes; at += SORTED_FRAGMENT_BYTES) {
    const before = at - SORTED_FRAGMENT_BYTES;
    const stop = load<u64>(before, SORTED_FRAGMENT_START) + <u64>load<u32>(before, SORTED_FRAGMENT_LENGTH);
    if (stop > load<u64>(at, SORTED_FRAGMENT_START)) return at;
  }
  return 0;
}

function sortByDigit(list: usize, bytes: usize, sorted: usize, digits: usize, shift: u64): void {
  memory.fill(digits, 0, <usize>DIGITS << 2);
  for (let at = list; at < list + bytes; at += SORTED_FRAGMENT_BYTES) {
    const counter = digits + digitOf(at, shift);
    store<u32>(counter, load<u32>(counter) + 1);
  }
  let place = <u32>sorted;
  for (let digit: u32 = 0; digit < DIGITS; digit++) {
    const counter = digits + (<usize>digit << 2);
    const next = place + load<u32>(counter) * SORTED_FRAGMENT_BYTES;
    store<u32>(counter, place);
    place = next;
  }
  for (let at = list; at < list + bytes; at += SORTED_FRAGMENT_BYTES) {
    const counter = digits + digitOf(at, shift);
    const to = load<u32>(counter);
    store<u32>(counter, to + SORTED_FRAGMENT_BYTES);
    v128.store(<usize>to, v128.load(at));
  }
}

/** The number as a distance in a table of u32. */
function digitOf(fragment: usize, shift: u64): usize {
  return <usize>((load<u64>(fragment, SORTED_FRAGMENT_START) >> shift) & <u64>(DIGITS - 1)) << 2;
}

/**
 * Writes the descriptors of a block that have bytes, in pieces of at most `share` bytes, to `to`. Returns how many these
 * are. `to` has room for them, and is not the block.
 */
export function divideFragments(block: usize, share: u32, to: usize): u32 {
  const count = load<u32>(block, BLOCK_HEADER_COUNT);
  const begin = to;
  let descriptor = block + BLOCK_HEADER_BYTES;
  for (let index: u32 = 0; index < count; index++, descriptor += FRAGMENT_BYTES) {
    let left = load<u32>(descriptor, FRAGMENT_LENGTH);
    let source = load<u32>(descriptor, FRAGMENT_SOURCE_OFFSET);
    let place = load<u64>(descriptor, FRAGMENT_DESTINATION_OFFSET);
    while (left > 0) {
      const length = min(left, share);
      store<u32>(to, source, FRAGMENT_SOURCE_OFFSET);
      store<u32>(to, length, FRAGMENT_LENGTH);
      store<u64>(to, place, FRAGMENT_DESTINATION_OFFSET);
      left -= length;
      source += length;
      place += length;
      to += FRAGMENT_BYTES;
    }
  }
  return <u32>((to - begin) / FRAGMENT_BYTES);
}

/** Unit of all fragments: their starts and lengths are multiples of 2 to the power of this from the first start on. */
function unitShift(state: usize): u64 {
  return ctz(load<u64>(state, FRAGMENT_CHECK_BITS));
}

/** Address of offset 0 of what is written. */
function writtenBase(block: usize, packs: i32): u64 {
  return packs != 0 ? load<u64>(block, BLOCK_HEADER_BOUNCE) : load<u64>(block, BLOCK_HEADER_DESTINATION);
}

function offsetOf(descriptor: usize, packs: i32): u64 {
  return packs != 0
    ? <u64>load<u32>(descriptor, FRAGMENT_SOURCE_OFFSET)
    : load<u64>(descriptor, FRAGMENT_DESTINATION_OFFSET);
}
