// The sender of pieces: head and bytes of a piece are put once, whenever there is room, and told of behind both.
import assert from 'node:assert/strict';
import test from 'node:test';
import { Piece } from '#lib/agent/staging/lane.js';
import {
  dataOffsetOf,
  PieceChannels,
  pieceHead,
  pieceKinds,
  plainStorage,
  RingMemory,
  stagingCounterOffset,
} from '#lib/agent/staging/ring.js';
import { SendSession } from '#lib/agent/staging/send-lane.js';
import { WeftlineError } from '#lib/core/errors.js';
import type { BackendChannel, BackendRegion, PutPlace } from '#lib/agent/backend.js';

const own = { info: new Uint8Array() } as unknown as BackendRegion;
const place = { info: new Uint8Array() } as unknown as BackendRegion;

/** One range of so many bytes, in its slot or at that offset of memory that the backend reaches. */
function pieceOf(bytes: number, sourceOffset?: number): Piece {
  const piece = Object.assign(new Piece(), { kind: pieceKinds.write, remote: { number: 1, key: 1 } });
  piece.add(0, 0, bytes);
  return sourceOffset === undefined ? piece : Object.assign(piece, { source: place, sourceOffset });
}

function open(count: number) {
  const ring = new RingMemory({ slots: 4, pieceBytes: 65_536 }, plainStorage);
  const log: string[] = [];
  /** How often there is room. */
  const room = { left: Number.POSITIVE_INFINITY };
  const states = Array.from({ length: count }, () => ({
    posted: 0,
    delivered: 0,
    error: undefined as WeftlineError | undefined,
    isQuiet: true,
  }));
  const channels = states.map((state, number) =>
    Object.assign(state, {
      put: ({ local, localOffset, remoteOffset, bytes }: PutPlace) => {
        if (room.left-- <= 0) return false;
        state.posted++;
        const from = local === own ? 'ring' : 'memory';
        return log.push(`${number}: ${bytes} of ${from} at ${localOffset} to ${remoteOffset}`) > 0;
      },
      signal: (_remote: unknown, offset: number, add: number) => {
        assert.equal(offset, stagingCounterOffset(number));
        if (room.left-- <= 0) return false;
        state.posted++;
        return log.push(`${number}: tell ${add}`) > 0;
      },
    }),
  );
  const remote = {} as never;
  const pieces = new PieceChannels(channels as unknown as BackendChannel[], { ring, local: own, remote });
  const session = new SendSession('b', pieces);
  return { ring, log, room, states, session };
}

test('a piece of memory that the backend reaches goes from its place, behind its head, and is told of last', () => {
  const { ring, log, room, session } = open(1);
  const slot = ring.slotOffset(2);
  const data = slot + dataOffsetOf(1);
  room.left = 0;
  assert.equal(session.post(2, pieceOf(40_000, 77)), false);
  for (let step = 0; step < 2; step++) {
    room.left = 1;
    assert.equal(session.post(2, pieceOf(40_000, 77)), false);
  }
  room.left = 1;
  assert.equal(session.post(2, pieceOf(40_000, 77)), true);
  assert.deepEqual(log, [
    `0: ${dataOffsetOf(1)} of ring at ${slot} to ${slot}`,
    `0: 40000 of memory at 77 to ${data}`,
    '0: tell 1',
  ]);
});

test('a piece that was given up half-way is passed over, and one of another channel begins anew', () => {
  const { ring, log, room, session } = open(2);
  room.left = 2;
  assert.equal(session.post(0, pieceOf(40_000, 0)), false);
  room.left = Number.POSITIVE_INFINITY;
  log.length = 0;
  assert.ok(session.skip(0));
  assert.ok(session.post(1, pieceOf(100)));
  assert.deepEqual(
    log.map((line) => line.split(' of ')[0]),
    ['0: 64', '0: tell 1', `1: ${dataOffsetOf(1) + 100}`, '1: tell 1'],
  );
  Atomics.add(ring.counters[1] as Int32Array, 0, 1);
  assert.deepEqual([session.returned(0), session.returned(1)], [0, 1]);
  Atomics.add(ring.counters[0] as Int32Array, 0, 1);
  assert.deepEqual([session.returned(0), session.returned(1)], [1, 1]);
});

test('memory may be given up when all that was put from it is delivered, or its channel has failed and is quiet', () => {
  const { states, session } = open(2);
  assert.ok(session.post(0, pieceOf(40_000, 0)));
  const isOver = session.fence();
  assert.ok(session.post(1, pieceOf(100)));
  assert.equal(isOver(), false);
  states[0]!.delivered = 3;
  assert.equal(isOver(), true);
  const isAllOver = session.fence();
  states[1]!.error = new WeftlineError('WL_PEER_LOST', 'gone');
  states[1]!.isQuiet = false;
  assert.equal(isAllOver(), false);
  states[1]!.isQuiet = true;
  assert.equal(isAllOver(), true);
});

test('a signal says how many pieces of each channel come before it, those that were given up among them', () => {
  const { ring, session } = open(2);
  const signal = Object.assign(new Piece(), { kind: pieceKinds.signal, remote: { number: 1, key: 1 } });
  const marksIn = (slot: number): number[] => [
    ...ring.words.subarray(
      (ring.slotOffset(slot) + pieceHead.size) / 4,
      (ring.slotOffset(slot) + pieceHead.size) / 4 + 2,
    ),
  ];
  for (const slot of [0, 1]) session.describe(slot, pieceOf(8));
  session.describe(2, pieceOf(8));
  assert.ok(session.skip(0));
  session.describe(3, signal);
  assert.deepEqual(marksIn(3), [2, 1]);
  session.describe(0, signal);
  assert.deepEqual(marksIn(0), [2, 2]);
});
