// The copies of a table's rows in steps, against one range after the other.
import { CopyCursor, CopyRows } from '#lib/agent/backends/local/copy-lane.js';
import assert from 'node:assert/strict';
import test from 'node:test';
import { NativeBlock } from '#lib/native/library.js';
import { PartTable } from '#lib/transport/part-table.js';
import fc from '../support/fast-check.ts';

/** Room for a row: rows do not overlap, because nothing says which of them is copied last. */
const ROOM = 600;
const MAX_ROWS = 12;
const REGION = ROOM * MAX_ROWS;

const row = fc.record({
  local: fc.nat(1),
  remote: fc.nat(1),
  localOffset: fc.nat(70),
  remoteOffset: fc.nat(70),
  bytes: fc.oneof(fc.integer({ min: 1, max: 20 }), fc.integer({ min: 50, max: 120 })),
  ranges: fc.oneof(fc.constant(1), fc.integer({ min: 1, max: 5 })),
  localStride: fc.integer({ min: 1, max: 100 }),
  remoteStride: fc.integer({ min: 1, max: 100 }),
});

/** Bytes of a table before a place. */
function bytesBefore({ bytes, ranges }: PartTable, { row: last, range, offset }: CopyCursor): number {
  let sum = range * (bytes[last] ?? 0) + offset;
  for (let at = 0; at < last; at++) sum += bytes[at]! * ranges[at]!;
  return sum;
}

test('rows are copied in steps as range after range, mapped or by the kernel, both ways', () => {
  const ours = [new NativeBlock(REGION), new NativeBlock(REGION)];
  const theirs = [new NativeBlock(REGION), new NativeBlock(REGION)];
  const rows = fc.array(row, { maxLength: MAX_ROWS }).map((all) =>
    all.map((one, at) => ({
      ...one,
      localOffset: one.localOffset + at * ROOM,
      remoteOffset: one.remoteOffset + at * ROOM,
    })),
  );
  fc.assert(
    fc.property(
      rows,
      fc.boolean(),
      fc.integer({ min: 1, max: 150 }),
      fc.integer({ min: 1, max: 6 }),
      (all, isRead, stepBytes, stepPieces) => {
        const parts = PartTable.ofCount(all.length);
        for (const [index, fields] of all.entries()) {
          for (const [name, value] of Object.entries(fields)) parts[name as keyof typeof fields][index] = value;
        }
        // The second memory there is reached by calls of the kernel.
        const copies = CopyRows.of({
          parts,
          isRead,
          locals: ours.map(({ address }) => address),
          remotes: theirs.map(({ address }, index) => ({ process: index === 0 ? 0 : process.pid, address })),
        });
        for (const [number, { bytes }] of [...ours, ...theirs].entries()) {
          for (let at = 0; at < REGION; at++) bytes[at] = at * 7 + number * 60;
        }
        const [here, there] = [ours, theirs].map((side) => side.map(({ bytes }) => bytes.slice()));
        assert.ok(here && there);
        let expectedBytes = 0;
        for (const { local, remote, bytes, ranges, ...at } of all) {
          for (let range = 0; range < ranges; range++) {
            const [near, far] = [at.localOffset + range * at.localStride, at.remoteOffset + range * at.remoteStride];
            const [from, to] = [here[local] as Uint8Array, there[remote] as Uint8Array];
            if (isRead) from.set(to.subarray(far, far + bytes), near);
            else to.set(from.subarray(near, near + bytes), far);
            expectedBytes += bytes;
          }
        }
        assert.equal(parts.sums().bytes, expectedBytes);
        const [start, end] = [new CopyCursor(), new CopyCursor()];
        for (let step = 0; start.row < all.length; step++) {
          assert.ok(step < 10_000);
          end.follow(start);
          copies.move(end, stepBytes, stepPieces);
          const moved = bytesBefore(parts, end) - bytesBefore(parts, start);
          assert.ok(moved > 0 && moved <= stepBytes);
          assert.equal(copies.copy(start, end), 0);
          start.follow(end);
        }
        for (const [index, bytes] of [...here, ...there].entries()) {
          assert.deepEqual([...ours, ...theirs][index]?.bytes, bytes);
        }
        // Once more changes nothing but what overlaps: it ends, and touches no others.
        assert.equal(copies.copyAll(), 0);
      },
    ),
  );
});
