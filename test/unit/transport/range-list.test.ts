// Ranges of a table in one scattered write: any sizes up to the longest, over a bad network.
import assert from 'node:assert/strict';
import test from 'node:test';
import { PartTable } from '#lib/transport/part-table.js';
import { seededRandom } from '#lib/core/seeded-random.js';
import { requestStatus } from '#lib/transport/engine/transport-engine.js';
import { MAX_RANGE_BYTES, RangeList } from '#lib/transport/send/range-list.js';
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

test('ranges of no whole bytes or places, too long, or outside of the region of this side, are refused', () => {
  const net = new Loopback({ paths: 1, segmentBytes: 1368, seed: 1 });
  const from = net.a.region(40_000);
  const to = net.b.region(40_000);
  for (const [source, target, length] of [
    [39_990, 0, 11],
    [-1, 0, 1],
    [0.5, 0, 1],
    [0, 0, NaN],
    [0, 0, Infinity],
    [0, -1, 1],
    [0, 2 ** 48, 1],
    [0, 0, MAX_RANGE_BYTES + 1],
  ] as const) {
    const columns = { sources: new Float64Array(2), targets: new Float64Array(2), lengths: new Float64Array(2) };
    columns.sources[1] = source;
    columns.targets[1] = target;
    columns.lengths[1] = length;
    const scatter = (): unknown =>
      net.a.connection.scatter({
        region: from,
        ranges: new RangeList(columns),
        remoteRegion: to.id,
        remoteKey: to.key,
      });
    assert.throws(scatter, { code: 'WL_INVALID_ARGUMENT' });
  }
});

for (const segmentBytes of [1368, 8952, 65_472]) {
  test(`any ranges arrive in packets of ${segmentBytes} bytes over a bad network, before the signal behind them`, () => {
    const random = seededRandom(testSeed());
    const list = new RangeList();
    for (let round = 0; round < 6; round++) {
      const net = new Loopback({ paths: 4, segmentBytes, loss: 0.05, duplication: 0.05, reordering: 0.3, seed: round });
      const most = [40, 3000, 20_000, MAX_RANGE_BYTES][round % 4] as number;
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
      list.cover({ sources: table.localOffset, targets: table.remoteOffset, lengths: table.bytes }, 0, count);
      if (list.bytes === 0) continue;
      const where = { remoteRegion: to.id, remoteKey: to.key };
      const scatter = net.a.connection.scatter({ region: from, ranges: list, ...where });
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
