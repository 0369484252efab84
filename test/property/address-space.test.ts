import assert from 'node:assert/strict';
import test from 'node:test';
import fc from '../support/fast-check.ts';
import { AddressSpace } from '#lib/device/cpu/cpu-device.js';

const START = 4096;
const LIMIT = 1 << 20;

interface Taken {
  readonly start: number;
  readonly size: number;
}

/** Takes and releases in any order, checking after each step against a plain list of what is in use. */
function play(steps: readonly (readonly [number, number, number])[]): { space: AddressSpace; taken: Taken[] } {
  const space = new AddressSpace(START, LIMIT);
  const taken: Taken[] = [];
  for (const [bytes, shift, choice] of steps) {
    if (choice % 3 === 0 && taken.length > 0) {
      const [range] = taken.splice(choice % taken.length, 1) as [Taken];
      assert.equal(space.release(range.start), range.size);
    } else {
      const range = tryTake(space, bytes, 1 << shift);
      if (range === undefined) checkNoRoom(taken, bytes, 1 << shift);
      else {
        checkPlacement(range, taken, bytes, 1 << shift);
        taken.push(range);
      }
    }
    const used = taken.reduce((sum, range) => sum + range.size, 0);
    assert.equal(space.used, used);
    assert.equal(space.largestGap, Math.max(0, ...gaps(taken).map((gap) => gap.size)));
  }
  return { space, taken };
}

function tryTake(space: AddressSpace, bytes: number, alignment: number): Taken | undefined {
  try {
    const before = space.used;
    const start = space.take(bytes, alignment);
    return { start, size: space.used - before };
  } catch (error) {
    assert.equal((error as { code?: string }).code, 'WL_MEMORY');
    return undefined;
  }
}

function checkPlacement(range: Taken, taken: readonly Taken[], bytes: number, alignment: number): void {
  assert.equal(range.start % alignment, 0);
  assert.ok(range.size >= bytes && range.size - bytes <= alignment, 'no more than the alignment is lost');
  assert.ok(range.start >= START && range.start + range.size <= LIMIT);
  for (const other of taken) {
    assert.ok(range.start + range.size <= other.start || other.start + other.size <= range.start, 'ranges overlap');
  }
}

/** INVARIANT: WL_MEMORY is only right when no gap can hold the aligned range. */
function checkNoRoom(taken: readonly Taken[], bytes: number, alignment: number): void {
  const size = Math.ceil(Math.max(bytes, 1) / alignment) * alignment;
  for (const gap of gaps(taken)) {
    assert.ok(Math.ceil(gap.start / alignment) * alignment + size > gap.start + gap.size, 'a gap would have held it');
  }
}

function gaps(taken: readonly Taken[]): Taken[] {
  const result: Taken[] = [];
  let end = START;
  for (const range of taken.toSorted((a, b) => a.start - b.start)) {
    if (range.start > end) result.push({ start: end, size: range.start - end });
    end = range.start + range.size;
  }
  if (end < LIMIT) result.push({ start: end, size: LIMIT - end });
  return result;
}

const step = fc.tuple(
  fc.oneof(fc.integer({ min: 0, max: 300 }), fc.integer({ min: 0, max: 400_000 })),
  fc.integer({ min: 0, max: 16 }),
  fc.nat(1000),
);

test('ranges never overlap, are aligned, and WL_MEMORY comes only when nothing fits', () => {
  fc.assert(
    fc.property(fc.array(step, { maxLength: 60 }), (steps) => {
      play(steps);
    }),
  );
});

test('once everything is released, one gap is left, whatever the order', () => {
  fc.assert(
    fc.property(fc.array(step, { maxLength: 60 }), fc.infiniteStream(fc.nat()), (steps, order) => {
      const { space, taken } = play(steps);
      while (taken.length > 0) {
        const [range] = taken.splice((order.next().value as number) % taken.length, 1) as [Taken];
        space.release(range.start);
      }
      assert.equal(space.used, 0);
      assert.equal(space.largestGap, LIMIT - START);
      assert.equal(space.take(LIMIT - START, 1), START);
    }),
  );
});

test('release() of an address that is not in use is refused and changes nothing', () => {
  const space = new AddressSpace(START, LIMIT);
  const start = space.take(100, 64);
  assert.throws(() => space.release(start + 64), { code: 'WL_INTERNAL' });
  assert.equal(space.used, 128);
  space.release(start);
  assert.throws(() => space.release(start), { code: 'WL_INTERNAL' });
  assert.equal(space.used, 0);
});
