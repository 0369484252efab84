// The receiver of pieces checks each whole before it writes anything: what makes no sense ends the session.
import assert from 'node:assert/strict';
import test from 'node:test';
import { MemoryTable, PlainCopies } from '#lib/agent/staging/devices.js';
import { ReceiveSession } from '#lib/agent/staging/receive-sessions.js';
import {
  dataOffsetOf,
  PieceChannels,
  pieceFragment,
  pieceHead,
  pieceKinds,
  pieceStatuses,
  plainStorage,
  RingMemory,
  stagingCounterOffset,
} from '#lib/agent/staging/ring.js';
import { putWide } from '#lib/abi/layout.js';
import type { BackendChannel, PutPlace } from '#lib/agent/backend.js';
import { NativeBlock } from '#lib/native/library.js';
import { withCode } from '../../../support/with-code.ts';

const BYTES = 4096;
const SLOTS = 4;
const DATA = 0x5a;

interface Piece {
  readonly kind?: number;
  readonly key?: number;
  readonly fragments?: number;
  /** Remote offset, bytes, offset in the slot. */
  readonly parts?: readonly (readonly [number, number, number])[];
  readonly offset?: number;
  readonly add?: number;
  /** Pieces that come before a signal, by channel. */
  readonly marks?: readonly number[];
}

function open(count = 1) {
  const memory = new MemoryTable();
  const block = new NativeBlock(BYTES);
  const copies = new PlainCopies();
  const region = memory.add({ address: block.address, bytes: BYTES, copies, isOffered: true });
  const odd = memory.add({ address: block.address + 4, bytes: BYTES - 4, copies, isOffered: true });
  const hidden = memory.add({ address: block.address, bytes: BYTES, copies, isOffered: false });
  const ring = new RingMemory({ slots: SLOTS, pieceBytes: 65_536 }, plainStorage);
  const puts: PutPlace[] = [];
  const signals: number[] = [];
  /** What was done, by channel. */
  const done: string[][] = [];
  const channelOf = (number: number): BackendChannel => {
    const log: string[] = [];
    done.push(log);
    return {
      put: (place: PutPlace) => log.push('put') > 0 && puts.push({ ...place }) > 0,
      signal: (_remote: unknown, offset: number, add: number) => {
        assert.equal(offset, stagingCounterOffset(number));
        return log.push(`tell ${add}`) > 0 && signals.push(add) > 0;
      },
    } as unknown as BackendChannel;
  };
  const none = {} as never;
  const opened = Array.from({ length: count }, (_, number) => channelOf(number));
  const channels = new PieceChannels(opened, { ring, local: none, remote: none });
  const session = new ReceiveSession({ peer: 'b', memory, channels });
  let sent = 0;
  /** The sender's signal of that piece comes. */
  const tell = (piece: number): void => void Atomics.add(ring.counters[piece % count] as Int32Array, 0, 1);
  /** As the sender's put leaves it. Returns the piece's number. */
  const put = ({ kind = pieceKinds.write, key = region.key, parts = [[0, 8, 0]], ...rest }: Piece): number => {
    const at = ring.slotOffset(sent % SLOTS);
    const { words } = ring;
    const fragments = rest.fragments ?? (kind === pieceKinds.signal ? 0 : parts.length);
    words[(at + pieceHead.offset.kind) / 4] = kind;
    words[(at + pieceHead.offset.region) / 4] =
      [hidden, odd].find((known) => known.key === key)?.number ?? region.number;
    putWide(words, (at + pieceHead.offset.key) / 4, key);
    words[(at + pieceHead.offset.fragments) / 4] = fragments;
    putWide(words, (at + pieceHead.offset.offset) / 4, rest.offset ?? 0);
    putWide(words, (at + pieceHead.offset.add) / 4, rest.add ?? 0);
    words[(at + pieceHead.offset.hasSum) / 4] = 0;
    for (const [channel, mark] of (rest.marks ?? []).entries()) words[(at + pieceHead.size) / 4 + channel] = mark;
    for (const [index, [remoteOffset, bytes, slotOffset]] of kind === pieceKinds.signal ? [] : parts.entries()) {
      const first = at + pieceHead.size + index * pieceFragment.size;
      putWide(words, (first + pieceFragment.offset.remoteOffset) / 4, remoteOffset);
      words[(first + pieceFragment.offset.bytes) / 4] = bytes;
      words[(first + pieceFragment.offset.slotOffset) / 4] = slotOffset;
    }
    ring.memory.view?.fill(DATA, at + dataOffsetOf(parts.length), at + dataOffsetOf(parts.length) + 1024);
    return sent++;
  };
  const send = (piece: Piece): void => tell(put(piece));
  return { session, send, put, tell, done, block, ring, puts, signals, memory, region, hidden, odd };
}

test('a write lands where its fragments say, a signal behind it, and each piece is given back', () => {
  const { session, send, block, signals } = open();
  send({
    parts: [
      [16, 8, 0],
      [4000, 96, 512],
    ],
  });
  send({ kind: pieceKinds.signal, offset: 8, add: 3 });
  assert.ok(session.step());
  const expected = new Uint8Array(BYTES);
  expected.fill(DATA, 16, 24).fill(DATA, 4000, 4096);
  expected[8] = 3;
  assert.deepEqual(block.bytes, expected);
  assert.equal(
    signals.reduce((sum, add) => sum + add, 0),
    2,
  );
});

test('a read is answered with the bytes of its fragments', () => {
  const { session, send, block, ring, puts } = open();
  block.bytes.fill(9);
  send({ kind: pieceKinds.read, parts: [[100, 50, 16]] });
  session.step();
  assert.equal(puts.length, 1);
  const { localOffset, remoteOffset, bytes } = puts[0] as PutPlace;
  assert.equal(localOffset, ring.slotOffset(0) + dataOffsetOf(1));
  assert.deepEqual([remoteOffset, bytes], [localOffset, 66]);
  assert.ok(ring.memory.view?.subarray(localOffset + 16, localOffset + 66).every((byte) => byte === 9));
});

test('memory that was released, or was never offered, is neither read nor written, and the sender is told', () => {
  const { session, send, block, ring, puts, region, hidden } = open();
  const before = block.bytes.slice();
  send({ key: region.key + 1 });
  send({ key: hidden.key });
  region.isOpen = false;
  send({});
  session.step();
  assert.deepEqual(block.bytes, before);
  assert.deepEqual(
    puts.map(({ remoteOffset }) => remoteOffset),
    [0, 1, 2].map((slot) => ring.statusOffset(slot)),
  );
  assert.equal(ring.words[ring.statusOffset(2) / 4], pieceStatuses.unauthorized);
});

test('a signal into a region that begins at no multiple of 8 is refused, and the session goes on', () => {
  const { session, send, block, ring, odd } = open();
  send({ kind: pieceKinds.signal, key: odd.key, offset: 8, add: 3 });
  send({ parts: [[0, 8, 0]] });
  session.step();
  assert.equal(ring.words[ring.statusOffset(0) / 4], pieceStatuses.failed);
  const expected = new Uint8Array(BYTES).fill(DATA, 0, 8);
  assert.deepEqual(block.bytes, expected);
});

const bad: Readonly<Record<string, Piece>> = {
  'of an unknown kind': { kind: 77 },
  'with no fragment': { fragments: 0, parts: [] },
  'with too many fragments': { fragments: 2049 },
  'with a fragment that leaves the memory': {
    parts: [
      [0, 8, 0],
      [BYTES - 4, 8, 16],
    ],
  },
  'with a fragment that begins beyond 2^53': { parts: [[2 ** 60, 8, 0]] },
  'with a fragment that leaves the slot': { parts: [[0, 4096, 65_000]] },
  'with an empty fragment': { parts: [[0, 0, 0]] },
  'with a signal outside of the memory': { kind: pieceKinds.signal, offset: BYTES },
  'with a signal at an odd place': { kind: pieceKinds.signal, offset: 4 },
};

for (const [what, piece] of Object.entries(bad)) {
  test(`a piece ${what} ends the session, and nothing of it is written`, () => {
    const { session, send, block } = open();
    send(piece);
    assert.throws(() => session.step(), withCode('WL_PROTOCOL', /staging thread of b/));
    assert.ok(block.bytes.every((byte) => byte === 0));
  });
}

test('more pieces than there are slots end the session', () => {
  const { session, ring } = open();
  Atomics.store(ring.counters[0] as Int32Array, 0, SLOTS + 1);
  assert.throws(() => session.step(), withCode('WL_PROTOCOL', /4 slots/));
});

test('pieces of a channel are taken whatever is missing on another one, and answered each on its own', () => {
  const { session, put, tell, block, done } = open(2);
  const pieces = [0, 1, 2, 3].map((piece) => put({ parts: [[piece * 8, 8, 0]] }));
  // The second channel overtakes the first.
  tell(1);
  tell(3);
  assert.ok(session.step());
  assert.deepEqual(block.bytes, new Uint8Array(BYTES).fill(DATA, 8, 16).fill(DATA, 24, 32));
  assert.deepEqual(done, [[], ['tell 2']]);
  tell(0);
  tell(2);
  while (session.step());
  assert.deepEqual(block.bytes, new Uint8Array(BYTES).fill(DATA, 0, 32));
  assert.equal(pieces.length, 4);
  assert.deepEqual(done, [['tell 2'], ['tell 2']]);
});

test('a signal waits for the pieces before it on other channels, and for none behind it', () => {
  const { session, put, tell, block, done } = open(2);
  put({ parts: [[0, 8, 0]] });
  put({ kind: pieceKinds.signal, offset: 16, add: 3, marks: [1, 0] });
  put({ parts: [[8, 8, 0]] });
  tell(1);
  assert.equal(session.step(), false);
  assert.ok(block.bytes.every((byte) => byte === 0));
  tell(0);
  while (session.step());
  const expected = new Uint8Array(BYTES).fill(DATA, 0, 8);
  expected[16] = 3;
  assert.deepEqual(block.bytes, expected);
  assert.deepEqual(done, [['tell 1'], ['tell 1']]);
});

test('a read of one channel is answered on that channel, before the signal that tells of it', () => {
  const { session, send, done } = open(2);
  send({ parts: [[0, 8, 0]] });
  send({ kind: pieceKinds.read, parts: [[100, 50, 16]] });
  session.step();
  assert.deepEqual(done, [['tell 1'], ['put', 'tell 1']]);
});

test('more unanswered pieces than there are slots end the session, on however many channels they come', () => {
  const { session, ring } = open(3);
  // The first channel has two of the slots, the others have one each.
  for (const counter of ring.counters.slice(0, 3)) Atomics.store(counter, 0, 2);
  assert.throws(() => session.step(), withCode('WL_PROTOCOL', /2 more pieces, 0 unanswered ones.* 1 slots/));
});
