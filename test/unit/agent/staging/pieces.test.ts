// Pieces of a transfer: every byte once, in order, within the limits of a slot.
import assert from 'node:assert/strict';
import test from 'node:test';
import { PartTable } from '#lib/transport/part-table.js';
import { type DeviceCopies, MemoryTable, NO_TICKET } from '#lib/agent/staging/devices.js';
import { capacityFor, Job, Piece } from '#lib/agent/staging/lane.js';
import { MAX_PIECE_FRAGMENTS, plainStorage, RingMemory } from '#lib/agent/staging/ring.js';
import { seededRandom } from '#lib/core/seeded-random.js';
import { testSeed } from '../../../support/seed.ts';

const PIECE_BYTES = 256 << 10;

/** Memory of this side on one device or the other, which has room for a copy every second time. */
function openMemory() {
  const memory = new MemoryTable();
  let asked = 0;
  const device = (): DeviceCopies => ({ copy: () => (asked++ % 2 === 0 ? NO_TICKET : 0) }) as unknown as DeviceCopies;
  const [one, other] = [device(), device()];
  return [one, one, other].map((copies, index) =>
    memory.add({ address: index * 2 ** 45, bytes: 2 ** 42, copies, isOffered: false }),
  );
}

test('pieces hold every byte of the parts once, each of one region of the peer and of one device', () => {
  const random = seededRandom(testSeed());
  const ring = new RingMemory({ slots: 1, pieceBytes: PIECE_BYTES }, plainStorage);
  const locals = openMemory();
  const remotes = [0, 1].map((number) => ({ number, key: 1 }));
  const piece = new Piece();
  const way = { sendsFromPlace: true, placeOf: () => 256, post: () => true, isBack: () => true, isDrained: () => true };
  for (let round = 0; round < 200; round++) {
    const parts = PartTable.ofCount(1 + Math.floor(random() * (round % 10 === 0 ? 5000 : 40)));
    const isStrided = round % 2 === 0;
    for (let part = 0; part < parts.count; part++) {
      parts.localOffset[part] = Math.floor(random() * 2 ** 40);
      parts.remoteOffset[part] = Math.floor(random() * 2 ** 40);
      parts.bytes[part] = 1 + Math.floor(random() ** 8 * 3 * PIECE_BYTES);
      parts.local[part] = Math.floor(random() * 3);
      parts.remote[part] = Math.floor(random() * 2);
      parts.ranges[part] = isStrided ? 1 + Math.floor(random() ** 8 * 200) : 1;
      parts.localStride[part] = Math.floor(random() * 2 ** 20);
      parts.remoteStride[part] = Math.floor(random() * 2 ** 20);
    }
    const job = new Job({ way, isRead: false, parts, locals, remotes, onEnd: () => {} });
    job.begin(0, parts.count, PIECE_BYTES);
    let [part, range, done] = [0, 0, 0];
    while (!job.isCut) {
      while (!job.open(0, piece, ring));
      assert.ok(piece.count > 0 && piece.count <= MAX_PIECE_FRAGMENTS);
      assert.equal(piece.address, ring.address + ring.slotOffset(0) + 256);
      let used = 0;
      for (let at = 0; at < piece.count; at++) {
        assert.ok(piece.place[at]! >= used && piece.place[at]! % 16 === 0);
        used = piece.place[at]! + piece.bytes[at]!;
        const local = locals[parts.local[part]!]!;
        assert.equal(piece.copies, local.copies);
        assert.equal(piece.remote, remotes[parts.remote[part]!]);
        const [localOffset, remoteOffset] = [parts.localOffset[part]!, parts.remoteOffset[part]!];
        assert.equal(piece.memory[at], local.address + localOffset + range * parts.localStride[part]! + done);
        assert.equal(piece.remoteOffset[at], remoteOffset + range * parts.remoteStride[part]! + done);
        done += piece.bytes[at]!;
        if (done === parts.bytes[part]) [range, done] = [range + 1, 0];
        if (range === parts.ranges[part]) [part, range] = [part + 1, 0];
      }
      assert.equal(piece.length, used);
      assert.ok(used <= PIECE_BYTES);
    }
    assert.deepEqual([part, range, done], [parts.count, 0, 0]);
  }
});

test('small transfers are cut into a few pieces, so that copies and the network overlap, large ones into larger ones', () => {
  const [KiB, MiB] = [1 << 10, 1 << 20];
  const sizes = [1, 256 * KiB, MiB, 4 * MiB, 16 * MiB, 64 * MiB].map((total) => capacityFor(total, MiB) / KiB);
  assert.deepEqual(sizes, [128, 128, 256, 512, 1024, 1024]);
  assert.equal(capacityFor(64 * MiB, 4 * MiB), 4 * MiB);
  assert.equal(capacityFor(64 * MiB, 256 * KiB), 256 * KiB);
});
