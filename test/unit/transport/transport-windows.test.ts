// The windows, tables and counters under the engine: sequence numbers that wrap, bitmaps, bursts, checksums, handles.
import assert from 'node:assert/strict';
import test from 'node:test';
import { seededRandom } from '#lib/core/seeded-random.js';
import { BurstTable, NO_BURST, SendWindow } from '#lib/transport/send/send-window.js';
import type { Connection } from '#lib/transport/engine/connection.js';
import { ControlLog } from '#lib/transport/control/control-log.js';
import { PathTable } from '#lib/transport/paths/path-table.js';
import { RECEIVE_WINDOW_SEGMENTS, ReceiveWindow } from '#lib/transport/receive/receive-side.js';
import { RequestTable } from '#lib/transport/engine/request.js';
import { CRC32C_START, crc32cEnd, crc32cUpdate, crc32cZeroWord } from '#lib/transport/wire/crc32c.js';
import { Loopback } from './support/loopback.js';

function crc32c(bytes: Uint8Array): number {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  return crc32cEnd(crc32cUpdate(CRC32C_START, view, 0, bytes.length)) >>> 0;
}

test('crc32c: the vectors of RFC 3720, appendix B.4', () => {
  assert.equal(crc32c(new Uint8Array(32)), 0x8a91_36aa);
  assert.equal(crc32c(new Uint8Array(32).fill(255)), 0x62a8_ab43);
  assert.equal(crc32c(Uint8Array.from({ length: 32 }, (_, index) => index)), 0x46dd_794e);
  assert.equal(crc32c(new TextEncoder().encode('123456789')), 0xe306_9283);
  assert.equal(crc32cEnd(crc32cZeroWord(CRC32C_START)) >>> 0, crc32c(new Uint8Array(4)));
});

test('ReceiveWindow: any order gives the same as a set, over the wrap of the numbers', () => {
  for (const begin of [0, 0x7fff_fff0 | 0, -20, -0x8000_0000]) {
    const random = seededRandom(begin);
    const window = new ReceiveWindow();
    window.next = begin;
    window.end = begin;
    const seen = new Set<number>();
    let first = 0;
    for (let step = 0; step < 20_000; step++) {
      const index = first + (random() < 0.3 ? 0 : Math.floor(random() * 300));
      const sequence = (begin + index) | 0;
      assert.equal(window.has(sequence), index < first || seen.has(index));
      if (!window.has(sequence)) {
        window.add(sequence);
        seen.add(index);
      }
      while (seen.has(first)) first++;
      assert.equal(window.next, (begin + first) | 0);
    }
    assert.ok(first > 5000, `${first}`);
  }
});

test('ReceiveWindow: words list what has come, and nothing shares a bit with the oldest missing one', () => {
  const window = new ReceiveWindow();
  window.next = 37;
  window.end = 37;
  assert.equal(window.words(), 0);
  for (const sequence of [40, 63, 64, 100]) window.add(sequence);
  assert.equal(window.words(), 3);
  assert.equal(window.word(0) >>> 0, (0b1_1111 | (1 << 8) | (1 << 31)) >>> 0);
  assert.deepEqual([window.word(1), window.word(2)], [1, 1 << 4]);
  assert.ok(!window.isTooFar((37 + RECEIVE_WINDOW_SEGMENTS - 33) | 0));
  assert.ok(window.isTooFar((37 + RECEIVE_WINDOW_SEGMENTS - 32) | 0));
  assert.ok(!window.isTooFar(36));
});

test('SendWindow and BurstTable: bytes in flight come and go, the oldest lost segment is found', () => {
  const window = new SendWindow(200);
  window.first = -40;
  window.next = -40;
  const bursts = new BurstTable(window.mask + 1, { paths: 2, rails: 1 }, 64);
  for (let index = 0; index < 4; index++) {
    const burst = bursts.open(index % 2, 0, index);
    const first = window.next;
    for (let segment = 0; segment < 30; segment++) {
      window.burst[window.append(1, segment * 10, 10) & window.mask] = burst;
    }
    bursts.fill(burst, first, 30, 300);
  }
  assert.equal(window.outstanding, 120);
  assert.equal(bursts.controllerBytes[0], 120 * 74);
  for (const sequence of [70, 5, 33]) window.lose(sequence, bursts);
  assert.equal(window.lostCount, 3);
  assert.equal(window.firstLost(), 5);
  assert.equal(bursts.controllerBytes[0], 117 * 74);
  window.acknowledge(5, bursts);
  assert.equal(window.firstLost(), 33);
  assert.equal(bursts.touchedCount, 0);
  const again = bursts.open(1, 0, 9);
  window.setInFlight(33, again);
  bursts.fill(again, 33, 1, 10);
  assert.equal(window.firstLost(), 70);
  for (let sequence = -40; sequence < 80; sequence++) if (sequence !== 5) window.acknowledge(sequence, bursts);
  assert.deepEqual([...bursts.controllerBytes, ...bursts.pathBytes, ...bursts.railBytes], [0, 0, 0, 0, 0]);
  assert.deepEqual([...bursts.oldest], [NO_BURST, NO_BURST]);
  assert.equal(window.lostCount, 0);
});

test('PathTable: two distinct live paths are compared, the dead are not taken, news fades', () => {
  const random = seededRandom(3);
  const paths = new PathTable(4);
  const inFlight = { pathBytes: new Float64Array(4), railBytes: new Float64Array(1) };
  for (let path = 0; path < 4; path++) paths.sample(path, path === 2 ? 1000 : 100);
  const taken = [0, 0, 0, 0];
  const draw = (): number => (taken[paths.choose(random, inFlight)] as number)++;
  for (let round = 0; round < 20; round++) draw();
  assert.equal(taken[2], 0);
  for (let round = 0; round < 3000; round++) draw();
  assert.ok((taken[2] as number) > 100, 'a path that was slow long ago is tried again');
  paths.kill(1);
  paths.kill(3);
  const before = taken.slice();
  for (let round = 0; round < 200; round++) draw();
  assert.deepEqual([taken[1], taken[3]], [before[1], before[3]]);
  paths.revive(1);
  assert.equal(paths.aliveCount, 3);
});

test('PathTable: of several rails the one with the fewest bytes in flight is taken, with whatever live path it has', () => {
  const random = seededRandom(5);
  // Rail 0 has paths 0, 3 and 6; rail 1: 1 and 4; rail 2: 2 and 5.
  const paths = new PathTable(7, 3);
  const inFlight = { pathBytes: new Float64Array(7), railBytes: new Float64Array(3) };
  const taken = (rounds = 300): number[] => {
    const counts = [0, 0, 0, 0, 0, 0, 0];
    for (let round = 0; round < rounds; round++) {
      for (let path = 0; path < 7; path++) paths.sample(path, 100);
      counts[paths.choose(random, inFlight)]! += 1;
    }
    return counts;
  };
  assert.ok(Math.min(...taken()) > 20, 'equal rails have equal parts, and so have the paths of each');
  // The bytes are those of other paths of the rails.
  inFlight.railBytes.set([100_000, 200_000, 50_000]);
  assert.deepEqual(taken().toSpliced(5, 1).toSpliced(2, 1), [0, 0, 0, 0, 0]);
  paths.kill(2);
  assert.equal(taken()[5], 300);
  paths.kill(5);
  assert.deepEqual(
    taken().map((count) => count > 0),
    [true, false, false, true, false, false, true],
  );
  for (const path of [0, 3, 6, 1]) paths.kill(path);
  assert.equal(taken()[4], 300);
  paths.kill(4);
  assert.equal(
    taken().reduce((sum, count) => sum + count),
    300,
  );
});

test('PathTable: what got no answer is tried on any live path of another rail, else on any other live path', () => {
  const random = seededRandom(6);
  const paths = new PathTable(6, 2);
  const besides = (path: number): number[] =>
    [...new Set(Array.from({ length: 100 }, () => paths.besides(path, random)))].toSorted((a, b) => a - b);
  assert.deepEqual(besides(0), [1, 3, 5]);
  paths.kill(3);
  assert.deepEqual(besides(0), [1, 5]);
  assert.deepEqual(besides(3), [0, 2, 4]);
  paths.kill(1);
  paths.kill(5);
  assert.deepEqual(besides(0), [2, 4]);
  for (const path of [2, 4]) paths.kill(path);
  assert.deepEqual(besides(0), [1]);
  assert.equal(new PathTable(1).besides(0, random), 0);
});

test('PathTable: a path is nearly as good as another up to a quarter more of its cost, and if it lives', () => {
  const paths = new PathTable(3);
  const inFlight = { pathBytes: new Float64Array(3), railBytes: new Float64Array(1) };
  for (const [path, rtt] of [100, 120, 130].entries()) paths.sample(path, rtt);
  assert.equal(paths.isNearlyAsGood(1, 0, inFlight), true);
  assert.equal(paths.isNearlyAsGood(2, 0, inFlight), false);
  inFlight.pathBytes[1] = 65_536;
  assert.equal(paths.isNearlyAsGood(1, 0, inFlight), false);
  paths.kill(0);
  assert.equal(paths.isNearlyAsGood(0, 2, inFlight), false);
});

test('ControlLog: keeps a reserve, confirms only what was sent, merges grants', () => {
  const log = new ControlLog();
  let ordinary = 0;
  while (log.hasRoom()) {
    assert.ok(log.append(2, 0));
    log.setIds(ordinary++, 0, 0);
  }
  assert.ok(log.append(6, 0));
  assert.equal(log.confirm(5, 1), false);
  log.sent = log.end;
  assert.equal(log.confirm(5, 1), true);
  assert.equal(log.confirm(3, 2), true);
  assert.equal(log.first, 5);
  assert.equal(log.raiseLast(2, 1, 10), false);
  while (log.append(2, 0)) ordinary++;
  assert.equal(log.open, 1024);
  log.setIds(77, 0, 0);
  assert.equal(log.raiseLast(2, 76, 10), false);
  assert.equal(log.raiseLast(2, 77, 10), true);
});

test('RequestTable: a slot that is used for ever never has the handle 0, nor the one before', () => {
  const { connection } = new Loopback().a;
  const table = new RequestTable();
  let before = 0;
  for (let round = 0; round < 140_000; round++) {
    const request = table.open('send', connection as Connection);
    assert.ok(request.handle > 0xffff && request.handle < 2 ** 32 && request.handle !== before);
    assert.equal(table.find(request.handle | 0), request);
    before = request.handle;
    table.close(request);
    assert.equal(table.find(before), undefined);
  }
});
