// Pieces of a transfer: every byte once, in order, within the limits of a slot.
import assert from 'node:assert/strict';
import test from 'node:test';
import { PartTable } from '#lib/transport/part-table.js';
import { MAX_PIECE_FRAGMENTS } from '#lib/agent/staging/wire-layout.js';
import { capacityFor, PiecePlan } from '#lib/agent/staging/planned-transfers.js';
import { seededRandom } from '#lib/core/seeded-random.js';
import { testSeed } from '../../../support/seed.ts';

const PIECE_BYTES = 256 << 10;

test('pieces hold every byte of the parts once, each of one region of the peer and of one device', () => {
  const random = seededRandom(testSeed());
  for (let round = 0; round < 200; round++) {
    const parts = PartTable.ofCount(1 + Math.floor(random() * (round % 10 === 0 ? 5000 : 40)));
    for (let part = 0; part < parts.count; part++) {
      parts.localOffset[part] = Math.floor(random() * 2 ** 40);
      parts.remoteOffset[part] = Math.floor(random() * 2 ** 40);
      parts.bytes[part] = 1 + Math.floor(random() ** 8 * 3 * PIECE_BYTES);
      parts.local[part] = Math.floor(random() * 3);
      parts.remote[part] = Math.floor(random() * 2);
    }
    const deviceOf = ['one', 'one', 'other'];
    const plan = new PiecePlan(parts, { pieceBytes: PIECE_BYTES, deviceOf });
    assert.equal(plan.first[plan.count], plan.bytes.length);
    let [part, done] = [0, 0];
    for (let piece = 0; piece < plan.count; piece++) {
      const [first, end] = [plan.first[piece]!, plan.first[piece + 1]!];
      assert.ok(end > first && end - first <= MAX_PIECE_FRAGMENTS);
      let used = 0;
      for (let at = first; at < end; at++) {
        assert.ok(plan.slotOffset[at]! >= used && plan.slotOffset[at]! % 16 === 0);
        used = plan.slotOffset[at]! + plan.bytes[at]!;
        assert.equal(plan.local[at], parts.local[part]);
        assert.equal(deviceOf[plan.local[at]!], deviceOf[plan.local[first]!]);
        assert.equal(plan.remote[at], parts.remote[part]);
        assert.equal(plan.remote[at], plan.remote[first]);
        assert.equal(plan.localOffset[at], parts.localOffset[part]! + done);
        assert.equal(plan.remoteOffset[at], parts.remoteOffset[part]! + done);
        done += plan.bytes[at]!;
        if (done === parts.bytes[part]) [part, done] = [part + 1, 0];
      }
      assert.equal(plan.pieceBytes[piece], used);
      assert.ok(used <= PIECE_BYTES);
    }
    assert.equal(part, parts.count);
  }
});

test('small transfers are cut into a few pieces, so that copies and the network overlap, large ones into larger ones', () => {
  const [KiB, MiB] = [1 << 10, 1 << 20];
  const sizes = [1, 256 * KiB, MiB, 4 * MiB, 16 * MiB, 64 * MiB].map((total) => capacityFor(total, MiB) / KiB);
  assert.deepEqual(sizes, [128, 128, 256, 512, 1024, 1024]);
  assert.equal(capacityFor(64 * MiB, 4 * MiB), 4 * MiB);
  assert.equal(capacityFor(64 * MiB, 256 * KiB), 256 * KiB);
});
