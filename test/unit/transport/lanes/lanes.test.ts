// Tests which lane takes what: turns of messages, parts of large requests, shares of prepared transfers.
import assert from 'node:assert/strict';
import test from 'node:test';
import fc from '../../../support/fast-check.ts';
import { PartTable, PartWriter } from '#lib/transport/part-table.js';
import {
  CUT_ROWS,
  divideInto,
  divideParts,
  homeLane,
  LaneChoice,
  type Spread,
  spreads,
} from '#lib/transport/lanes/lane-choice.js';

const KIB = 1024;
const lanes = fc.integer({ min: 1, max: 16 });
const size = fc.oneof(fc.nat(1000), fc.nat(1_000_000), fc.nat(2 ** 32 - 1));

function chosen({ count, parts }: LaneChoice): readonly { lane: number; offset: number; bytes: number }[] {
  return parts.slice(0, count).map((part) => ({ ...part }));
}

test('the parts of a request are the whole of it, each on a lane of its own', () => {
  const spread = fc.constantFrom(...spreads);
  fc.assert(
    fc.property(lanes, spread, fc.nat(65_535), fc.array(size, { maxLength: 8 }), (count, how, id, sizes) => {
      const choice = new LaneChoice(count, how);
      const flow = choice.flow(id);
      for (const [turn, bytes] of sizes.entries()) {
        for (const kind of ['message', 'read'] as const) {
          if (kind === 'message') choice.message(flow, turn, bytes);
          else choice.read(flow, bytes);
          const parts = chosen(choice);
          assert.equal(new Set(parts.map(({ lane }) => lane)).size, parts.length);
          let end = 0;
          for (const part of parts.filter(({ bytes: length }) => length > 0)) {
            assert.ok(part.lane < count);
            assert.equal(part.offset, end);
            assert.equal(part.offset % (64 * KIB), 0);
            end += part.bytes;
          }
          assert.equal(end, bytes);
          if (kind === 'read') assert.ok(parts.length === 1 || parts.every(({ bytes: length }) => length > 0));
        }
      }
    }),
  );
});

test('both ends of a connection take the same turns, whatever the sizes', () => {
  const [near, far] = [new LaneChoice(4, 'turn'), new LaneChoice(4, 'turn')];
  for (let turn = 0; turn < 10; turn++) {
    near.message(near.flow(7), turn, 10 + turn);
    far.message(far.flow(7), turn, 1_000_000);
    assert.equal(near.parts[0]?.lane, far.parts[0]?.lane);
    assert.equal(near.parts[0]?.lane, (homeLane(7, 4) + turn) % 4);
  }
});

/** The lanes of four reads of flow 2. */
function laneOf(spread: Spread, bytes: number): number[] {
  const choice = new LaneChoice(4, spread);
  const found: number[] = [];
  for (let at = 0; at < 4; at++) {
    choice.read(choice.flow(2), bytes);
    found.push(...chosen(choice).map(({ lane }) => lane));
  }
  return found;
}

test('small reads stay on the home lane, large ones are spread', () => {
  assert.deepEqual(laneOf('turn', 100), [2, 2, 2, 2]);
  assert.deepEqual(laneOf('turn', 1_000_000), [2, 3, 0, 1]);
  assert.deepEqual(laneOf('split', 131_071), [2, 2, 2, 2]);
  assert.deepEqual(laneOf('split', 1_000_000).slice(0, 4), [2, 3, 0, 1]);
});

test('flows that are not spread keep their home lane, whatever their size and turn', () => {
  assert.deepEqual(laneOf('flow', 1_000_000), [2, 2, 2, 2]);
  const choice = new LaneChoice(4, 'flow');
  const lanesOfMessages = [0, 1, 2].map((turn) => {
    choice.message(choice.flow(7), turn, 1_000_000);
    return chosen(choice).map(({ lane }) => lane);
  });
  assert.deepEqual(lanesOfMessages, [[3], [3], [3]]);
});

/** Tables of others get the same parts. */
function checkInto(table: PartTable, shares: readonly PartTable[], home: number): void {
  const room = table.count + CUT_ROWS;
  const writers = shares.map(() => new PartWriter(PartTable.withRoom(room), false));
  for (let time = 0; time < 2; time++) {
    for (const [lane, into] of divideInto(writers, table, home).entries()) {
      assert.equal(into.capacity, room);
      assert.deepEqual(rangesOf(into), rangesOf(shares[lane] as PartTable));
    }
  }
}

/** Every range by itself. */
function rangesOf(table: PartTable): number[][] {
  return Array.from({ length: table.count }, (_, row) =>
    Array.from({ length: table.ranges[row]! }, (_range, at) => [
      table.local[row]!,
      table.localOffset[row]! + at * table.localStride[row]!,
      table.remote[row]!,
      table.remoteOffset[row]! + at * table.remoteStride[row]!,
      table.bytes[row]!,
    ]),
  ).flat();
}

test('rows of many ranges are shared out as the same ranges one by one', () => {
  const row = fc.record({
    bytes: fc.integer({ min: 1, max: 200_000 }),
    isSmall: fc.boolean(),
    ranges: fc.integer({ min: 1, max: 70 }),
  });
  fc.assert(
    fc.property(lanes, fc.nat(15), fc.array(row, { maxLength: 8 }), (count, first, rows) => {
      const home = first % count;
      const table = PartTable.ofCount(rows.length);
      const single = PartTable.ofCount(rows.reduce((sum, { ranges }) => sum + ranges, 0));
      let at = 0;
      for (const [index, { bytes: most, isSmall, ranges }] of rows.entries()) {
        const bytes = isSmall ? 1 + (most % 4000) : most;
        table.bytes[index] = bytes;
        table.ranges[index] = ranges;
        table.localOffset[index] = index * 1e9;
        table.remoteOffset[index] = index * 1e9 + 8;
        table.localStride[index] = bytes + 3;
        table.remoteStride[index] = bytes + 9;
        for (let range = 0; range < ranges; range++, at++) {
          single.bytes[at] = bytes;
          single.localOffset[at] = index * 1e9 + range * (bytes + 3);
          single.remoteOffset[at] = index * 1e9 + 8 + range * (bytes + 9);
        }
      }
      const shares = divideParts(table, count, home);
      const expected = divideParts(single, count, home);
      for (const [lane, share] of shares.entries()) {
        assert.deepEqual(rangesOf(share), rangesOf(expected[lane] as PartTable));
      }
      checkInto(table, shares, home);
    }),
  );
});

test('the parts of a transfer are shared out by bytes, in their order, and large ones are cut', () => {
  const part = fc.record({ bytes: fc.oneof(fc.nat(4000), fc.nat(3_000_000)), local: fc.nat(3), remote: fc.nat(2) });
  fc.assert(
    fc.property(lanes, fc.nat(15), fc.array(part, { maxLength: 30 }), (count, first, rows) => {
      const home = first % count;
      const table = PartTable.ofCount(rows.length);
      for (const [at, { bytes, local, remote }] of rows.entries()) {
        table.bytes[at] = bytes;
        table.local[at] = local;
        table.remote[at] = remote;
        table.localOffset[at] = at * 10_000_000;
        table.remoteOffset[at] = at * 20_000_000 + 8;
      }
      const shares = divideParts(table, count, home);
      checkInto(table, shares, home);
      assert.equal(shares.length, count);
      const total = rows.reduce((sum, { bytes }) => sum + bytes, 0);
      const used = Math.min(count, Math.floor(total / (64 * KIB)));
      const seen = rows.map(() => 0);
      for (let step = 0; step < count; step++) {
        const share = shares[(home + step) % count] as PartTable;
        let bytes = 0;
        for (let piece = 0; piece < share.count; piece++) {
          const at = Math.floor(share.localOffset[piece]! / 10_000_000);
          const offset = share.localOffset[piece]! % 10_000_000;
          assert.equal(offset, seen[at]);
          assert.equal(share.remoteOffset[piece], at * 20_000_000 + 8 + offset);
          assert.deepEqual([share.local[piece], share.remote[piece]], [rows[at]?.local, rows[at]?.remote]);
          seen[at]! += share.bytes[piece]!;
          bytes += share.bytes[piece]!;
        }
        if (used >= 2) assert.ok(bytes <= total / used + 2 * 8192, `${bytes} of ${total} on one of ${used} lanes`);
      }
      assert.deepEqual(
        seen,
        rows.map(({ bytes }) => bytes),
      );
    }),
  );
});
