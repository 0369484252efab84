// Ranges of a table that are packed for one scattered write: any sizes, joined and cut, over a bad network.
import assert from 'node:assert/strict';
import test from 'node:test';
import { PartTable } from '#lib/transport/part-table.js';
import { seededRandom } from '#lib/core/seeded-random.js';
import { requestStatus } from '#lib/transport/engine/transport-engine.js';
import { MAX_RANGE_BYTES, PackedRanges } from '#lib/transport/send/range-list.js';
import { testSeed } from '../../support/seed.ts';
import { isEnded, Loopback, pattern } from './support/loopback.js';

/** Rows one behind the other here, in reverse order and with gaps of a byte there. */
function reversed(lengths: readonly number[]): { readonly table: PartTable; readonly bytes: number } {
  const table = PartTable.ofCount(lengths.length);
  let [source, target] = [0, 0];
  for (const length of lengths) target += length + 1;
  const bytes = target;
  for (const [at, length] of lengths.entries()) {
    table.localOffset[at] = source;
    table.remoteOffset[at] = target -= length + 1;
    table.bytes[at] = length;
    source += length;
  }
  return { table, bytes };
}

test('neighbours are joined, long ranges are cut, ranges of nothing are left out', () => {
  const packed = new PackedRanges();
  const table = PartTable.ofCount(5);
  const long = MAX_RANGE_BYTES;
  table.localOffset.set([0, 100, 500, 700, 700]);
  table.remoteOffset.set([1000, 1100, 3000, 0, 5000]);
  table.bytes.set([100, 50, 200, 0, 2 * long + 8]);
  const regionBytes = 3 * long;
  assert.equal(packed.pack(table, 0, 5, regionBytes), 5);
  const { sources, targets, lengths, end } = packed.list;
  assert.deepEqual([...sources.subarray(0, end)], [0, 500, 700, 700 + long, 700 + 2 * long]);
  assert.deepEqual([...targets.subarray(0, end)], [1000, 3000, 5000, 5000 + long, 5000 + 2 * long]);
  assert.deepEqual([...lengths.subarray(0, end)], [150, 200, long, long, 8]);
  assert.equal(packed.list.bytes, 358 + 2 * long);
  assert.equal(packed.pack(table, 3, 4, regionBytes), 0);
  assert.equal(packed.pack(table, 1, 2, regionBytes), 1);
  assert.deepEqual([packed.list.sources[0], packed.list.targets[0], packed.list.lengths[0]], [100, 1100, 50]);
});

test('ranges outside of the region of this side, and of no whole bytes, are refused', () => {
  const packed = new PackedRanges();
  for (const [source, target, length] of [
    [990, 0, 11],
    [-1, 0, 1],
    [0.5, 0, 1],
    [0, 0, NaN],
    [0, 0, Infinity],
    [0, -1, 1],
    [0, 2 ** 48, 1],
  ] as const) {
    const table = PartTable.ofCount(1);
    table.localOffset[0] = source;
    table.remoteOffset[0] = target;
    table.bytes[0] = length;
    assert.throws(() => packed.pack(table, 0, 1, 1000), { code: 'WL_INVALID_ARGUMENT', message: /range 0/ });
  }
});

for (const segmentBytes of [1368, 8952, 65_472]) {
  test(`any ranges arrive in packets of ${segmentBytes} bytes over a bad network, before the signal behind them`, () => {
    const random = seededRandom(testSeed());
    const packed = new PackedRanges();
    for (let round = 0; round < 6; round++) {
      const net = new Loopback({ paths: 4, segmentBytes, loss: 0.05, duplication: 0.05, reordering: 0.3, seed: round });
      const most = [40, 3000, 20_000, 100_000][round % 4] as number;
      const count = 1 + Math.floor(random() * Math.min(2000, 1_000_000 / most));
      const { table, bytes } = reversed(Array.from({ length: count }, () => Math.floor(random() * (most + 1))));
      const from = net.a.region(bytes);
      const to = net.b.region(bytes);
      const counter = net.b.region(8);
      pattern(from.bytes);
      to.bytes.fill(7);
      const expected = new Uint8Array(to.bytes);
      for (let at = 0; at < count; at++) {
        const start = table.localOffset[at]!;
        expected.set(from.bytes.subarray(start, start + table.bytes[at]!), table.remoteOffset[at]);
      }
      if (packed.pack(table, 0, count, bytes) === 0) continue;
      // Nothing of the table is looked at any more.
      table.bytes.fill(0);
      const where = { remoteRegion: to.id, remoteKey: to.key };
      const scatter = net.a.connection.scatter({ region: from, ranges: packed.list, ...where });
      net.a.connection.signal({ add: 1, remoteRegion: counter.id, remoteKey: counter.key, remoteOffset: 0 });
      const isSame = (): boolean => Buffer.compare(to.bytes, expected) === 0;
      let wasEarly = false;
      const ok = net.run(() => {
        wasEarly ||= counter.bytes[0] === 1 && !isSame();
        return isEnded(net.a, scatter);
      });
      assert.ok(ok && !wasEarly);
      assert.equal(net.a.engine.poll(scatter), requestStatus.done);
      assert.ok(isSame(), `round ${round}`);
      net.settle();
      assert.equal(counter.bytes[0], 1);
    }
  });
}
