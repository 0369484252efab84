// Writes, reads, signals and flushes: data, order, and what a wrong key or range does.
import assert from 'node:assert/strict';
import test from 'node:test';
import {
  CHUNK_BYTES,
  CHUNKS,
  chunkPlace,
  DATA_HEADER_BYTES,
  dataHeader,
  packetFlags,
  PLACE_BYTES,
} from '#lib/transport/wire/packet-layout.js';
import { CRC32C_START, crc32cEnd, crc32cUpdate } from '#lib/transport/wire/crc32c.js';
import { DIRECT_BYTES, RangeList } from '#lib/transport/send/range-list.js';
import type { Region } from '#lib/transport/engine/region.js';
import { type EngineHandle, requestStatus } from '#lib/transport/engine/transport-engine.js';
import { isEnded, Loopback, pattern, type Side } from './support/loopback.js';

function remote(region: Region, remoteOffset = 0) {
  return { remoteRegion: region.id, remoteKey: region.key, remoteOffset };
}

test('write() fills a range of the peer and nothing else', () => {
  const net = new Loopback({ paths: 4, loss: 0.03, reordering: 0.2 });
  const from = net.a.region(50_000);
  const to = net.b.region(60_000);
  pattern(from.bytes);
  to.bytes.fill(7);
  const write = net.a.connection.write({ region: from, offset: 10, bytes: 40_000, ...remote(to, 100) });
  assert.ok(net.run(() => isEnded(net.a, write)));
  assert.equal(net.a.engine.poll(write), requestStatus.done);
  assert.deepEqual(to.bytes.subarray(100, 40_100), from.bytes.subarray(10, 40_010));
  assert.ok(to.bytes.subarray(0, 100).every((byte) => byte === 7));
  assert.ok(to.bytes.subarray(40_100).every((byte) => byte === 7));
});

test('read() fetches a range of the peer', () => {
  for (const bytes of [0, 9, 40_000]) {
    const net = new Loopback({ paths: 2, loss: 0.03, seed: bytes });
    const to = net.a.region(50_000);
    const from = net.b.region(50_000);
    pattern(from.bytes);
    const read = net.a.connection.read({ region: to, offset: 3, bytes, ...remote(from, 17) });
    assert.ok(net.run(() => isEnded(net.a, read)));
    assert.equal(net.a.engine.poll(read), requestStatus.done);
    assert.deepEqual(to.bytes.subarray(3, 3 + bytes), from.bytes.subarray(17, 17 + bytes));
    assert.equal(to.bytes[3 + bytes], 0);
  }
});

test('a signal shows only behind the data of earlier writes', () => {
  for (let seed = 1; seed <= 10; seed++) {
    const net = new Loopback({ seed, paths: 4, loss: 0.05, reordering: 0.5, delay: (path) => 10 + 30 * path });
    const from = net.a.region(20_000);
    const to = net.b.region(20_000);
    const counters = net.b.region(64);
    from.bytes.fill(1);
    const cell = new BigUint64Array(counters.bytes.buffer, 0, 8);
    let last = 0;
    for (let round = 0; round < 10; round++) {
      net.a.connection.write({ region: from, offset: 0, bytes: 2000, ...remote(to, round * 2000) });
      last = net.a.connection.signal({ add: 2 ** 33 + 1, ...remote(counters, 16) });
    }
    const flush = net.a.connection.flush();
    const ok = net.run(() => {
      const rounds = Number(cell[2]) % 2 ** 33;
      assert.ok(
        to.bytes.subarray(0, rounds * 2000).every((byte) => byte === 1),
        `seed ${seed}, ${rounds} rounds`,
      );
      return isEnded(net.a, flush);
    });
    assert.ok(ok);
    assert.equal(net.a.engine.poll(last), requestStatus.done);
    assert.equal(cell[2], 10n * (2n ** 33n + 1n));
  }
});

test('signals by the thousand, both ways at once and between messages, all arrive on a network that reorders and loses', () => {
  const count = 3000;
  for (let seed = 1; seed <= 3; seed++) {
    const net = new Loopback({ seed, paths: 4, loss: 0.05, reordering: 0.5, delay: (path) => 10 + 200 * path });
    const sides = [net.a, net.b] as const;
    const cells = sides.map((side) => side.region(8));
    const data = sides.map((side) => side.region(10_000));
    const posted: (readonly [Side, EngineHandle])[] = [];
    for (let index = 0; index < count; index++) {
      sides.forEach((side, end) => {
        posted.push([side, side.connection.signal({ add: 1, ...remote(cells[1 - end]!) })]);
        if (index % 100 !== 0) return;
        const part = { region: data[end]!, offset: 0, bytes: index };
        posted.push([side, side.connection.postReceive(part)], [side, side.connection.postSend(part)]);
      });
    }
    assert.ok(
      net.run(() => posted.every(([side, handle]) => isEnded(side, handle))),
      `seed ${seed}`,
    );
    for (const [side, handle] of posted) assert.equal(side.engine.poll(handle), requestStatus.done);
    for (const cell of cells) assert.equal(new BigUint64Array(cell.bytes.buffer)[0], BigInt(count), `seed ${seed}`);
    for (const side of sides) assert.equal(side.engine.drops.window, 0);
  }
});

test('flush() without anything before it is done at once', () => {
  const net = new Loopback();
  const flush = net.a.connection.flush(3);
  assert.ok(net.run(() => isEnded(net.a, flush), 1000));
  assert.equal(net.packets, 0);
});

const refusals = [
  ['a wrong key', (to: Region) => ({ ...remote(to), remoteKey: (to.key ^ 1) >>> 0 }), 'WL_UNAUTHORIZED'],
  ['a region that is not there', (to: Region) => ({ ...remote(to), remoteRegion: to.id + 1 }), 'WL_UNAUTHORIZED'],
  ['a range that ends outside', (to: Region) => remote(to, 7000), 'WL_INVALID_ARGUMENT'],
  ['a range that begins outside', (to: Region) => remote(to, 2 ** 40), 'WL_INVALID_ARGUMENT'],
] as const;

for (const [what, where, code] of refusals) {
  test(`${what} fails writes, reads and signals, and nothing is written`, () => {
    const net = new Loopback({ paths: 2, loss: 0.05, burstSegments: 2 });
    const local = net.a.region(8000);
    local.bytes.fill(9);
    const to = net.b.region(8000);
    const write = net.a.connection.write({ region: local, offset: 0, bytes: 5000, ...where(to) });
    const read = net.a.connection.read({ region: local, offset: 0, bytes: 5000, ...where(to) });
    const add = { add: 1, ...where(to) };
    if (add.remoteOffset === 7000) add.remoteOffset = 8000;
    const signal = net.a.connection.signal(add);
    const good = net.a.connection.write({ region: local, offset: 0, bytes: 1, ...remote(to, 7999) });
    const all = [write, read, signal, good];
    assert.ok(net.run(() => all.every((handle) => isEnded(net.a, handle))));
    for (const handle of [write, read, signal]) {
      assert.equal(net.a.engine.requestError(handle)?.code, code);
      assert.match(net.a.engine.requestError(handle)?.message ?? '', /rank 1 \(b\)/);
    }
    assert.equal(net.a.engine.poll(good), requestStatus.done);
    assert.ok(to.bytes.subarray(0, 7999).every((byte) => byte === 0));
    assert.ok(local.bytes.every((byte) => byte === 9));
    net.settle(5_000_000);
    assert.equal(net.a.connection.error, undefined);
  });
}

test('a region for reading takes no writes, one for nothing gives no reads', () => {
  const net = new Loopback();
  const local = net.a.region(100);
  const to = net.b.region(100, { read: true, write: false });
  const write = net.a.connection.write({ region: local, offset: 0, bytes: 5, ...remote(to) });
  to.bytes.fill(3);
  const read = net.a.connection.read({ region: local, offset: 0, bytes: 5, ...remote(to) });
  assert.ok(net.run(() => isEnded(net.a, write) && isEnded(net.a, read)));
  assert.equal(net.a.engine.requestError(write)?.code, 'WL_UNAUTHORIZED');
  assert.equal(net.a.engine.poll(read), requestStatus.done);
  assert.deepEqual([...local.bytes.subarray(0, 6)], [3, 3, 3, 3, 3, 0]);
});

/** `count` ranges of up to `longest` bytes: side by side here, one behind the other with gaps, the last first, there. */
function scattered(count: number, longest: number): RangeList {
  const lengths = Float64Array.from({ length: count }, (_, at) => (at * 89) % (longest + 1));
  let at = 0;
  const sources = lengths.map((length) => (at += length) - length);
  const targets = lengths.map((_, index) => (count - 1 - index) * (longest + 3));
  return new RangeList({ sources, targets, lengths });
}

/** 50 bytes to the beginning, 50 to `target`. */
function ranges(target: number): RangeList {
  return new RangeList({
    sources: Float64Array.of(0, 100),
    targets: Float64Array.of(0, target),
    lengths: Float64Array.of(50, 50),
  });
}

function one(source: number, target: number, length: number): RangeList {
  return new RangeList({
    sources: Float64Array.of(source),
    targets: Float64Array.of(target),
    lengths: Float64Array.of(length),
  });
}

function place({ id, key }: Region): { remoteRegion: number; remoteKey: number } {
  return { remoteRegion: id, remoteKey: key };
}

for (const transportChecksum of ['none', 'header', 'full'] as const) {
  test(`scatter() writes every range and nothing else, over a bad network, checksum ${transportChecksum}`, () => {
    for (const join of [false, true]) {
      const net = new Loopback({
        paths: 4,
        join,
        segmentBytes: 2048,
        ...(join ? {} : { loss: 0.05, duplication: 0.05, reordering: 0.3 }),
        settings: { transportChecksum },
      });
      const list = scattered(500, 700);
      const from = net.a.region(list.sourceEnd);
      const to = net.b.region(500 * 703);
      pattern(from.bytes);
      to.bytes.fill(7);
      const expected = new Uint8Array(to.bytes);
      for (let index = 0; index < list.count; index++) {
        const start = list.sources[index] as number;
        const bytes = from.bytes.subarray(start, start + (list.lengths[index] as number));
        expected.set(bytes, list.targets[index]);
      }
      const counter = net.b.region(8);
      const scatter = net.a.connection.scatter({ region: from, ranges: list, ...place(to) });
      net.a.connection.signal({ add: 1, ...remote(counter) });
      const ok = net.run(() => {
        if (counter.bytes[0] === 1) assert.deepEqual(to.bytes, expected);
        return isEnded(net.a, scatter);
      });
      assert.ok(ok);
      assert.equal(net.a.engine.poll(scatter), requestStatus.done);
      assert.deepEqual(to.bytes, expected);
      net.settle();
      assert.equal(counter.bytes[0], 1);
      // As full as may be, for ranges of 350 bytes.
      if (join) assert.ok(net.packets < 150, `${net.packets} packets`);
    }
  });
}

test('scatter() of a window over columns writes the ranges of the window alone', () => {
  const net = new Loopback({ segmentBytes: 2048, loss: 0.05, reordering: 0.3 });
  const all = scattered(300, 700);
  const from = net.a.region(all.sourceEnd);
  const to = net.b.region(300 * 703);
  pattern(from.bytes);
  to.bytes.fill(7);
  const window = new RangeList(all, 40, 250);
  assert.equal(window.count, 210);
  const expected = new Uint8Array(to.bytes);
  for (let index = 40; index < 250; index++) {
    const start = all.sources[index] as number;
    expected.set(from.bytes.subarray(start, start + (all.lengths[index] as number)), all.targets[index]);
  }
  const scatter = net.a.connection.scatter({ region: from, ranges: window, ...place(to) });
  assert.ok(net.run(() => isEnded(net.a, scatter)));
  assert.equal(net.a.engine.poll(scatter), requestStatus.done);
  assert.deepEqual(to.bytes, expected);
  assert.throws(() => new RangeList(all, 40, 301), { code: 'WL_INVALID_ARGUMENT' });
});

/** Rows of up to nine ranges each, and the same ranges one by one. */
function repeated(rows: number, longest: number): { readonly list: RangeList; readonly single: RangeList } {
  const [sources, targets, lengths]: [number[], number[], number[]] = [[], [], []];
  const [sourceStrides, targetStrides, counts]: [number[], number[], number[]] = [[], [], []];
  const single = { sources: [] as number[], targets: [] as number[], lengths: [] as number[] };
  let [source, target] = [0, 0];
  for (let row = 0; row < rows; row++) {
    const length = 1 + ((row * 89) % longest);
    const [stride, targetStride, count] = [length + (row % 3), length + (row % 5), 1 + (row % 9)];
    lengths.push(length);
    sources.push(source);
    targets.push(target);
    sourceStrides.push(stride);
    targetStrides.push(targetStride);
    counts.push(count);
    for (let range = 0; range < count; range++, source += stride, target += targetStride) {
      single.sources.push(source);
      single.targets.push(target);
      single.lengths.push(length);
    }
  }
  const columns = {
    sources: Float64Array.from(sources),
    targets: Float64Array.from(targets),
    lengths: Float64Array.from(lengths),
  };
  const repeats = {
    ranges: Uint32Array.from(counts),
    sourceStrides: Float64Array.from(sourceStrides),
    targetStrides: Float64Array.from(targetStrides),
  };
  return {
    list: new RangeList(columns, 0, rows, repeats),
    single: new RangeList({
      sources: Float64Array.from(single.sources),
      targets: Float64Array.from(single.targets),
      lengths: Float64Array.from(single.lengths),
    }),
  };
}

test('rows of many ranges are written and read as the same ranges one by one', () => {
  for (const [rows, longest] of [
    [300, 700],
    [3000, 9],
    [40, 30_000],
  ] as const) {
    const net = new Loopback({ segmentBytes: 2048, loss: 0.02, reordering: 0.3 });
    const { list, single } = repeated(rows, longest);
    for (const name of ['count', 'bytes', 'chunkBytes', 'writeBytes', 'longest', 'sourceEnd'] as const) {
      assert.equal(list[name], single[name]);
    }
    const from = net.a.region(list.sourceEnd);
    const to = net.b.region(2 * list.sourceEnd + 100_000);
    pattern(from.bytes);
    to.bytes.fill(7);
    const expected = new Uint8Array(to.bytes);
    for (let index = 0; index < single.count; index++) {
      const start = single.sources[index] as number;
      const bytes = from.bytes.subarray(start, start + (single.lengths[index] as number));
      expected.set(bytes, single.targets[index]);
    }
    const scatter = net.a.connection.scatter({ region: from, ranges: list, ...place(to) });
    assert.ok(net.run(() => isEnded(net.a, scatter)));
    assert.equal(net.a.engine.poll(scatter), requestStatus.done);
    assert.deepEqual(to.bytes, expected);
    const back = net.a.region(list.sourceEnd);
    const gather = net.a.connection.gather({ region: back, ranges: list, ...place(to) });
    assert.ok(net.run(() => isEnded(net.a, gather)));
    assert.equal(net.a.engine.poll(gather), requestStatus.done);
    assert.deepEqual(back.bytes, gathered(single, to.bytes, new Uint8Array(back.bytes.length)));
  }
});

test('scatter() that leaves the region, has a wrong key or may not write fails, and the connection goes on', () => {
  const net = new Loopback();
  const local = net.a.region(1000);
  local.bytes.fill(9);
  const to = net.b.region(1000);
  const readOnly = net.b.region(1000, { read: true, write: false });
  const cases = [
    [{ ranges: ranges(951), ...place(to) }, 'WL_INVALID_ARGUMENT'],
    [{ ranges: ranges(2 ** 40), ...place(to) }, 'WL_INVALID_ARGUMENT'],
    [{ ranges: ranges(100), ...place(to), remoteKey: (to.key ^ 1) >>> 0 }, 'WL_UNAUTHORIZED'],
    [{ ranges: ranges(100), ...place(readOnly) }, 'WL_UNAUTHORIZED'],
  ] as const;
  for (const [options, code] of cases) {
    const handle = net.a.connection.scatter({ region: local, ...options });
    assert.ok(net.run(() => isEnded(net.a, handle)));
    assert.equal(net.a.engine.requestError(handle)?.code, code);
  }
  assert.ok(to.bytes.every((byte) => byte === 0) && readOnly.bytes.every((byte) => byte === 0));
  const good = net.a.connection.scatter({ region: local, ranges: ranges(950), ...place(to) });
  assert.ok(net.run(() => isEnded(net.a, good)));
  assert.equal(net.a.engine.poll(good), requestStatus.done);
  assert.equal(to.bytes.filter((byte) => byte === 9).length, 100);
});

/** What gather() is to bring: the ranges of `list` from where scatter() would put them. */
function gathered(list: RangeList, remoteBytes: Uint8Array, localBytes: Uint8Array): Uint8Array {
  const expected = Uint8Array.from(localBytes);
  for (let index = list.first; index < list.end; index++) {
    const start = list.targets[index] as number;
    expected.set(remoteBytes.subarray(start, start + (list.lengths[index] as number)), list.sources[index]);
  }
  return expected;
}

for (const transportAuthentication of [false, true]) {
  test(`gather() reads every range and nothing else, over a bad network, authenticated: ${transportAuthentication}`, () => {
    for (const [count, longest] of [
      [500, 700],
      [1, 5],
      [40_000, 20],
      [900, 9000],
    ] as const) {
      const net = new Loopback({
        paths: 4,
        segmentBytes: 8952,
        loss: 0.03,
        duplication: 0.05,
        reordering: 0.3,
        settings: { transportAuthentication },
      });
      const list = scattered(count, longest);
      const local = net.a.region(list.sourceEnd + 10);
      const store = net.b.region(count * (longest + 3), { read: true, write: false });
      pattern(store.bytes);
      local.bytes.fill(7);
      const expected = gathered(list, store.bytes, local.bytes);
      const gather = net.a.connection.gather({ region: local, ranges: list, ...place(store) });
      assert.ok(net.run(() => isEnded(net.a, gather)));
      assert.equal(net.a.engine.poll(gather), requestStatus.done);
      assert.equal(Buffer.compare(local.bytes, expected), 0, `${count} ranges of up to ${longest} bytes`);
      assert.equal(net.a.engine.receivedBytes(gather), list.bytes);
    }
  });
}

test('a long range of scatter() that leaves the region, or has a wrong key, writes nothing outside, and fails', () => {
  const net = new Loopback({ segmentBytes: 2048, loss: 0.05, reordering: 0.3 });
  const bytes = 20_000;
  const local = net.a.region(bytes);
  local.bytes.fill(9);
  const to = net.b.region(bytes);
  const readOnly = net.b.region(bytes, { read: true, write: false });
  const cases = [
    [{ ranges: one(0, bytes - DIRECT_BYTES + 1, DIRECT_BYTES), ...place(to) }, 'WL_INVALID_ARGUMENT'],
    [{ ranges: one(0, 0, DIRECT_BYTES), ...place(to), remoteKey: (to.key ^ 1) >>> 0 }, 'WL_UNAUTHORIZED'],
    [{ ranges: one(0, 0, bytes), ...place(readOnly) }, 'WL_UNAUTHORIZED'],
  ] as const;
  for (const [options, code] of cases) {
    const handle = net.a.connection.scatter({ region: local, ...options });
    assert.ok(net.run(() => isEnded(net.a, handle)));
    assert.equal(net.a.engine.requestError(handle)?.code, code);
  }
  assert.ok(to.bytes.every((byte) => byte === 0) && readOnly.bytes.every((byte) => byte === 0));
  for (const length of [DIRECT_BYTES - 1, DIRECT_BYTES, bytes - 7]) {
    to.bytes.fill(0);
    const good = net.a.connection.scatter({ region: local, ranges: one(0, 7, length), ...place(to) });
    assert.ok(net.run(() => isEnded(net.a, good)));
    assert.equal(net.a.engine.poll(good), requestStatus.done);
    assert.deepEqual([to.bytes.indexOf(9), to.bytes.filter((byte) => byte === 9).length], [7, length]);
  }
});

test('gather() outside of the region, with a wrong key or without the right to read fails, and the connection goes on', () => {
  const net = new Loopback();
  const local = net.a.region(1000);
  const store = net.b.region(1000);
  store.bytes.fill(9);
  const writeOnly = net.b.region(1000, { read: false, write: true });
  const cases = [
    [{ ranges: ranges(951), ...place(store) }, 'WL_INVALID_ARGUMENT'],
    [{ ranges: ranges(2 ** 40), ...place(store) }, 'WL_INVALID_ARGUMENT'],
    [{ ranges: ranges(100), ...place(store), remoteKey: (store.key ^ 1) >>> 0 }, 'WL_UNAUTHORIZED'],
    [{ ranges: ranges(100), ...place(writeOnly) }, 'WL_UNAUTHORIZED'],
  ] as const;
  for (const [options, code] of cases) {
    const handle = net.a.connection.gather({ region: local, ...options });
    assert.ok(net.run(() => isEnded(net.a, handle)));
    assert.equal(net.a.engine.requestError(handle)?.code, code);
    assert.match(net.a.engine.requestError(handle)?.message ?? '', /Cannot read 100 bytes/);
  }
  assert.ok(local.bytes.every((byte) => byte === 0));
  const good = net.a.connection.gather({ region: local, ranges: ranges(950), ...place(store) });
  assert.ok(net.run(() => isEnded(net.a, good)));
  assert.equal(net.a.engine.poll(good), requestStatus.done);
  assert.equal(local.bytes.filter((byte) => byte === 9).length, 100);
});

test('what answers a gather() that was cancelled is written nowhere, and later ones go on', () => {
  const net = new Loopback({ segmentBytes: 2048, loss: 0.02, reordering: 0.2 });
  const list = scattered(1500, 2000);
  const [aside, local] = [net.a.region(list.sourceEnd), net.a.region(list.sourceEnd)];
  const store = net.b.region(1500 * 2003);
  pattern(store.bytes);
  for (let times = 1; times <= 6; times++) {
    const cancelled = net.a.connection.gather({ region: aside, ranges: list, ...place(store) });
    net.run(() => isEnded(net.a, cancelled), 30 * times);
    net.a.connection.cancel(cancelled);
    aside.bytes.fill(0);
    net.run(() => false, 10);
    assert.ok(aside.bytes.every((byte) => byte === 0));
  }
  const handles = [0, 0, 1, 2].map((flow) =>
    net.a.connection.gather({ region: local, ranges: list, flow, ...place(store) }),
  );
  assert.ok(net.run(() => handles.every((handle) => isEnded(net.a, handle))));
  for (const handle of handles) assert.equal(net.a.engine.poll(handle), requestStatus.done);
  assert.equal(Buffer.compare(local.bytes, gathered(list, store.bytes, local.bytes)), 0);
  assert.ok(aside.bytes.every((byte) => byte === 0));
});

test('more gather() requests than are answered at a time all end', () => {
  const net = new Loopback({ segmentBytes: 2048, reordering: 0.2 });
  const local = net.a.region(1000);
  const store = net.b.region(1000);
  store.bytes.fill(9);
  const handles = Array.from({ length: 200 }, (_, index) =>
    net.a.connection.gather({ region: local, ranges: ranges(100 + index), ...place(store) }),
  );
  assert.ok(net.run(() => handles.every((handle) => isEnded(net.a, handle))));
  for (const handle of handles) assert.equal(net.a.engine.poll(handle), requestStatus.done);
});

test('an answer whose ranges are not those that were asked for is refused', () => {
  const taken: Uint8Array[] = [];
  const net = new Loopback({
    settings: { transportChecksum: 'none' },
    lose: ({ bytes, to }) => to.name === 'a' && bytes[1] === 1 && taken.push(Uint8Array.from(bytes)) > 0,
  });
  const local = net.a.region(1000);
  const store = net.b.region(1000);
  store.bytes.fill(9);
  const gather = net.a.connection.gather({ region: local, ranges: ranges(500), ...place(store) });
  net.run(() => taken.length > 1, 1000);
  const [chunk, order] = taken as [Uint8Array, Uint8Array];
  viewOf(chunk).setUint16(placeAt(0) + chunkPlace.offset.length, 51, true);
  const sum = crc32cEnd(crc32cUpdate(CRC32C_START, viewOf(chunk), placeAt(0), placeAt(2)));
  viewOf(order).setInt32(dataHeader.offset.offset, sum, true);
  net.receive(net.a, chunk, 0);
  net.receive(net.a, order, 0);
  assert.equal(net.a.engine.drops.bounds, 1);
  assert.ok(local.bytes.every((byte) => byte === 0));
  assert.equal(isEnded(net.a, gather), false);
});

/** A network whose packets of one scattered write were taken out, and what they would have been written to. */
interface TakenScatter {
  readonly net: Loopback;
  /** The chunk, which has two places, and the order to have it scattered. */
  readonly chunk: Uint8Array;
  readonly order: Uint8Array;
  readonly to: Region;
}

function takeScatter(): TakenScatter {
  const taken: Uint8Array[] = [];
  const net = new Loopback({
    settings: { transportChecksum: 'none' },
    lose: ({ bytes, to }) => to.name === 'b' && taken.push(bytes) > 0,
  });
  const from = net.a.region(1000);
  from.bytes.fill(9);
  const to = net.b.region(1000);
  net.a.connection.scatter({ region: from, ranges: ranges(500), ...place(to) });
  net.run(() => taken.length > 1, 1000);
  const [chunk, order] = taken.map((bytes) => Uint8Array.from(bytes)) as [Uint8Array, Uint8Array];
  return { net, chunk, order, to };
}

function viewOf(bytes: Uint8Array): DataView {
  return new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
}

function flagsOf(bytes: Uint8Array): number {
  return viewOf(bytes).getUint16(HEADER.flags, true);
}

function placeAt(index: number): number {
  return DATA_HEADER_BYTES + index * PLACE_BYTES;
}

const HEADER = dataHeader.offset;
const PLACE = chunkPlace.offset;

/** What is changed of a chunk and of its order; the checksum of the places is right afterwards. */
const lies: Record<string, (chunk: DataView, order: DataView) => void> = {
  'no place': (_, order) => order.setUint32(HEADER.base, 0, true),
  'a place less': (_, order) => order.setUint32(HEADER.base, 1, true),
  'a place more': (_, order) => order.setUint32(HEADER.base, 3, true),
  'more places than a chunk has': (_, order) => order.setUint32(HEADER.base, 0xffff_ffff, true),
  'more than 2^32 places': (_, order) => order.setUint16(HEADER.baseHigh, 1, true),
  'a byte less': (_, order) => order.setUint32(HEADER.messageBytes, 127, true),
  'more bytes than a chunk has': (_, order) => order.setUint32(HEADER.messageBytes, CHUNK_BYTES + 8, true),
  'more than 2^32 bytes': (_, order) => order.setUint8(HEADER.messageBytesHigh, 1),
  'a number that no chunk has': (_, order) => order.setUint8(HEADER.offsetHigh, CHUNKS),
  'a last length too short': (chunk) => chunk.setUint16(placeAt(1) + PLACE.length, 48, true),
  'a last length too long': (chunk) => chunk.setUint16(placeAt(1) + PLACE.length, 57, true),
  'a last range that ends outside': (chunk) => chunk.setUint32(placeAt(1), 951, true),
  'a last range beyond 2^32': (chunk) => chunk.setUint16(placeAt(1) + PLACE.baseHigh, 1, true),
};

for (const [what, lie] of Object.entries(lies)) {
  test(`a chunk with ${what} writes nothing at all`, () => {
    const { net, chunk, order, to } = takeScatter();
    lie(viewOf(chunk), viewOf(order));
    const places = Math.min(16, viewOf(order).getUint32(HEADER.base, true));
    const sum = crc32cEnd(crc32cUpdate(CRC32C_START, viewOf(chunk), placeAt(0), placeAt(places)));
    viewOf(order).setInt32(HEADER.offset, sum, true);
    net.receive(net.b, chunk, 0);
    net.receive(net.b, order, 0);
    assert.ok(to.bytes.every((byte) => byte === 0));
    assert.equal(net.b.engine.drops.bounds, 1);
  });
}

test('a chunk whose places were damaged on the way writes nothing at all', () => {
  const { net, chunk, order, to } = takeScatter();
  viewOf(chunk).setUint32(placeAt(1), 501, true);
  net.receive(net.b, chunk, 0);
  net.receive(net.b, order, 0);
  assert.ok(to.bytes.every((byte) => byte === 0));
  assert.equal(net.b.engine.drops.bounds, 1);
});

test('bytes of a chunk that would land outside of its memory are dropped', () => {
  const { net, chunk } = takeScatter();
  viewOf(chunk).setUint32(HEADER.offset, CHUNKS * CHUNK_BYTES - 8, true);
  net.receive(net.b, chunk, 0);
  assert.equal(net.b.engine.drops.bounds, 1);
});

test('an order that comes before its chunk waits for it, once', () => {
  const { net, chunk, order, to } = takeScatter();
  for (let times = 0; times < 3; times++) net.receive(net.b, Uint8Array.from(order), 0);
  assert.ok(to.bytes.every((byte) => byte === 0));
  net.receive(net.b, chunk, 0);
  assert.equal(to.bytes.filter((byte) => byte === 9).length, 100);
});

test('a chunk that comes again is not written again', () => {
  const { net, chunk, order, to } = takeScatter();
  net.receive(net.b, Uint8Array.from(chunk), 0);
  net.receive(net.b, Uint8Array.from(order), 0);
  assert.equal(to.bytes.filter((byte) => byte === 9).length, 100);
  to.bytes.fill(1);
  net.receive(net.b, chunk, 0);
  net.receive(net.b, order, 0);
  assert.ok(to.bytes.every((byte) => byte === 1));
  assert.equal(net.b.connection.statistics.duplicateSegments, 2);
});

test('a region that was released before its chunk was here is not written to, and the write fails', () => {
  let isBlocked = true;
  const net = new Loopback({
    lose: ({ bytes, to }) => isBlocked && to.name === 'b' && (flagsOf(bytes) & packetFlags.chunk) !== 0,
  });
  const from = net.a.region(1000);
  from.bytes.fill(9);
  const to = net.b.region(1000);
  const scatter = net.a.connection.scatter({ region: from, ranges: ranges(500), ...place(to) });
  net.run(() => false, 100);
  net.b.engine.release(to);
  isBlocked = false;
  assert.ok(net.run(() => isEnded(net.a, scatter)));
  assert.equal(net.a.engine.requestError(scatter)?.code, 'WL_UNAUTHORIZED');
  assert.ok(to.bytes.every((byte) => byte === 0));
});

test('scattered writes of many chunks go on after one was cancelled, and in the order of their flow', () => {
  const net = new Loopback({ segmentBytes: 8952, loss: 0.02, reordering: 0.2 });
  const list = scattered(1500, 2000);
  const from = net.a.region(list.sourceEnd);
  const to = net.b.region(1500 * 2003);
  pattern(from.bytes);
  const counter = net.b.region(8);
  const elsewhere = { region: from, ranges: list, ...place(net.b.region(1500 * 2003)) };
  assert.ok(list.bytes > CHUNKS * CHUNK_BYTES);
  for (let times = 0; times < 3; times++) {
    const cancelled = net.a.connection.scatter(elsewhere);
    net.run(() => isEnded(net.a, cancelled), 5 + 20 * times);
    net.a.connection.cancel(cancelled);
  }
  const last = (list.targets[0] as number) + 88;
  const handles = [
    net.a.connection.scatter({ ...elsewhere, flow: 1 }),
    net.a.connection.scatter({ region: from, ranges: new RangeList(list, 1), ...place(to) }),
    net.a.connection.scatter({ region: from, ranges: one(5, last, 1), ...place(to) }),
    net.a.connection.signal({ add: 1, ...remote(counter) }),
  ];
  const ok = net.run(() => {
    assert.ok(counter.bytes[0] === 0 || to.bytes[last] === from.bytes[5], 'the signal came before what it follows');
    return handles.every((handle) => isEnded(net.a, handle));
  });
  assert.ok(ok);
  for (const handle of handles) assert.equal(net.a.engine.poll(handle), requestStatus.done);
});

/** Writes ranges of these lengths, one behind the other here, and returns how long that takes. */
function timeOfScatter(lengths: readonly number[]): number {
  const net = new Loopback({ segmentBytes: 8952 });
  let [from, to] = [0, 0];
  const list = new RangeList({
    sources: Float64Array.from(lengths, (length) => (from += length) - length),
    targets: Float64Array.from(lengths, (length) => (to += length + 8) - length - 8),
    lengths: Float64Array.from(lengths),
  });
  const region = net.a.region(from);
  pattern(region.bytes);
  const store = net.b.region(to);
  const begin = net.now;
  const scatter = net.a.connection.scatter({ region, ranges: list, ...place(store) });
  assert.ok(net.run(() => isEnded(net.a, scatter)));
  for (const [at, length] of lengths.entries()) {
    const [source, target] = [list.sources[at]!, list.targets[at]!];
    const there = store.bytes.subarray(target, target + length);
    assert.ok(Buffer.from(there).equals(region.bytes.subarray(source, source + length)));
  }
  return net.now - begin;
}

test('short ranges between long ones take no longer than the same ranges one kind behind the other', () => {
  const [pairs, short, long] = [400, 224, 7168];
  const apart = [...Array<number>(pairs).fill(short), ...Array<number>(pairs).fill(long)];
  const inTurn = Array.from({ length: pairs }, () => [short, long]).flat();
  assert.ok(timeOfScatter(inTurn) < 1.5 * timeOfScatter(apart));
});

test('a cancelled write has ended only when nothing of it is written any more', () => {
  for (const spread of ['whole', 'small', 'long']) {
    for (let times = 0; times < 60; times++) {
      const net = new Loopback({ seed: times, paths: 3, segmentBytes: 1448, loss: 0.02, reordering: 0.5 });
      const list = spread === 'small' ? scattered(3000, 90) : scattered(100, 9000);
      const from = net.a.region(list.sourceEnd);
      const to = net.b.region(950_000);
      from.bytes.fill(1);
      const written = net.a.connection;
      const cancelled =
        spread === 'whole'
          ? written.write({ region: from, offset: 0, bytes: list.sourceEnd, ...remote(to) })
          : written.scatter({ region: from, ranges: list, ...place(to) });
      net.run(() => isEnded(net.a, cancelled), 10 * times);
      net.a.connection.cancel(cancelled);
      assert.ok(net.run(() => isEnded(net.a, cancelled)));
      const before = Uint8Array.from(to.bytes);
      net.run(() => false, 100_000);
      assert.ok(Buffer.from(before).equals(to.bytes), `${spread}, cancelled after ${10 * times} µs`);
    }
  }
});

test('a write that is cancelled while a packet of a chunk is missing writes no bytes of an earlier chunk', () => {
  const list = scattered(60, 300);
  for (let lost = 0; lost < 7; lost++) {
    let sent = Number.NEGATIVE_INFINITY;
    const net = new Loopback({ segmentBytes: 1448, lose: ({ to }) => to.name === 'b' && sent++ === lost });
    const from = net.a.region(list.sourceEnd);
    const to = net.b.region(60 * 303);
    const scatter = (region: Region) => net.a.connection.scatter({ region: from, ranges: list, ...place(region) });
    from.bytes.fill(9);
    const earlier = scatter(net.b.region(60 * 303));
    assert.ok(net.run(() => isEnded(net.a, earlier)));
    net.settle();
    from.bytes.fill(1);
    sent = 0;
    const cancelled = scatter(to);
    net.run(() => false, 15);
    assert.ok(sent > 7, `${sent} packets`);
    net.a.connection.cancel(cancelled);
    assert.ok(net.run(() => isEnded(net.a, cancelled)));
    assert.equal(net.a.engine.requestError(cancelled)?.code, 'WL_CLOSED');
    net.settle();
    const foreign = to.bytes.findIndex((byte) => byte > 1);
    assert.equal(foreign, -1, `packet ${lost} was lost: ${to.bytes[foreign]} at ${foreign}`);
  }
});

test('a cancelled write of which a range is refused has ended only when nothing of it is written any more', () => {
  for (let times = 0; times < 60; times++) {
    const net = new Loopback({ seed: times, paths: 3, segmentBytes: 8952, delay: (path) => 10 + 30 * path });
    const from = net.a.region(60 * 8000);
    const to = net.b.region(60 * 8000);
    from.bytes.fill(1);
    const places = Float64Array.from({ length: 60 }, (_, range) => range * 8000);
    const targets = places.with(times % 5, to.bytes.length - 1);
    const list = new RangeList({ sources: places, targets, lengths: new Float64Array(60).fill(8000) });
    const cancelled = net.a.connection.scatter({ region: from, ranges: list, ...place(to) });
    net.run(() => isEnded(net.a, cancelled), 2);
    net.a.connection.cancel(cancelled);
    assert.ok(net.run(() => isEnded(net.a, cancelled)));
    assert.equal(net.a.engine.requestError(cancelled)?.code, 'WL_CLOSED');
    const before = Uint8Array.from(to.bytes);
    net.settle();
    assert.ok(Buffer.from(before).equals(to.bytes), `seed ${times}`);
  }
});

test('scatter() and its ranges are checked before anything is sent', () => {
  const net = new Loopback({ segmentBytes: 680 });
  const local = net.a.region(1000);
  const where = { region: local, remoteRegion: 1, remoteKey: 1 };
  assert.throws(() => net.a.connection.scatter({ ...where, ranges: one(990, 0, 11) }), /sourceEnd/);
  const large = { ...net.a.region(1), bytes: new Uint8Array() };
  assert.throws(() => net.a.connection.scatter({ ...where, region: large, ranges: one(0, 0, 700) }), /region/);
  assert.throws(() => one(-1, 0, 1), /range 0/);
  assert.throws(() => one(0, 2 ** 48, 1), /range 0/);
  assert.throws(() => one(0, 0.5, 1), /range 0/);
  const none = new Float64Array(0);
  assert.throws(() => new RangeList({ sources: none, targets: none, lengths: none }), /at least one/);
  const column = Float64Array.of(8);
  for (const [strides, count] of [
    [2 ** 47, 3],
    [-1, 2],
    [Number.NaN, 2],
  ] as const) {
    const repeats = {
      ranges: Uint32Array.of(count),
      sourceStrides: column,
      targetStrides: Float64Array.of(strides),
    };
    const columns = { sources: column, targets: column, lengths: column };
    assert.throws(() => new RangeList(columns, 0, 1, repeats), { code: 'WL_INVALID_ARGUMENT' });
  }
});

test('both ends read many ranges at once, more than are answered at a time, and none waits for the other for ever', () => {
  for (const kind of ['ranges', 'plain reads'] as const) {
    const net = new Loopback({ segmentBytes: 65_472 });
    const list = scattered(100, 10_000);
    const posted = [net.a, net.b].flatMap((side) => {
      const local = side.region(list.sourceEnd);
      const store = side.other.region(100 * 10_003);
      const gather = () => side.connection.gather({ region: local, ranges: list, ...place(store) });
      const read = () => side.connection.read({ region: local, offset: 0, bytes: list.sourceEnd, ...remote(store) });
      const handles = Array.from({ length: 40 }, kind === 'ranges' ? gather : read);
      return [...handles, gather()].map((handle) => ({ side, handle }));
    });
    assert.ok(
      net.run(() => posted.every(({ side, handle }) => isEnded(side, handle)), 5_000_000),
      kind,
    );
    for (const { side, handle } of posted) assert.equal(side.engine.poll(handle), requestStatus.done);
  }
});

test('flows whose scattered writes wait for chunks take turns', () => {
  const net = new Loopback({ segmentBytes: 8952, rate: 1000 });
  const list = scattered(100, 9000);
  const from = net.a.region(list.sourceEnd);
  const to = net.b.region(100 * 9003);
  const flows = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11].map((flow) =>
    Array.from({ length: 10 }, () => net.a.connection.scatter({ region: from, ranges: list, flow, ...place(to) })),
  );
  assert.ok(net.run(() => flows.some((handles) => handles.every((handle) => isEnded(net.a, handle)))));
  const done = flows.map((handles) => handles.filter((handle) => isEnded(net.a, handle)).length);
  assert.ok(Math.min(...done) >= 7, `writes that each flow has done when the first has all: ${done.join(', ')}`);
});

test('a message for a gather() is put nowhere, not even straight from the socket', () => {
  const orders: Uint8Array[] = [];
  const net = new Loopback({
    direct: true,
    settings: { transportChecksum: 'none' },
    lose: ({ bytes, to }) => to.name === 'b' && orders.push(Uint8Array.from(bytes)) > 0,
  });
  const local = net.a.region(100);
  const store = net.b.region(100);
  const list = new RangeList({
    sources: new Float64Array(100),
    targets: new Float64Array(100),
    lengths: new Float64Array(100).fill(1),
  });
  const handle = net.a.connection.gather({ region: local, ranges: list, ...place(store) });
  net.run(() => orders.length > 1, 1000);
  const taken: Uint8Array[] = [];
  const donor = new Loopback({
    settings: { transportChecksum: 'none' },
    lose: ({ bytes, to }) => to.name === 'a' && bytes[1] === 1 && taken.push(Uint8Array.from(bytes)) > 0,
  });
  const from = donor.b.region(200);
  from.bytes.fill(9);
  donor.b.connection.write({ region: from, offset: 0, bytes: 200, ...remote(donor.a.region(200)) });
  donor.run(() => taken.length > 0, 1000);
  const packet = taken[0] as Uint8Array;
  const view = viewOf(packet);
  view.setUint32(HEADER.connection, net.a.connection.id, true);
  view.setUint16(HEADER.flags, 0, true);
  view.setUint32(HEADER.target, handle, true);
  net.receive(net.a, packet, 0);
  assert.equal(net.placed, 0);
  assert.ok(local.bytes.every((byte) => byte === 0));
});

test('an answer to ranges that a gather() has not asked for yet is refused', () => {
  const { net, chunk, order } = takeScatter();
  const local = net.b.region(1000);
  const gather = net.b.connection.gather({ region: local, ranges: ranges(500), ...place(net.a.region(1000)) });
  viewOf(order).setUint16(HEADER.flags, packetFlags.scatter, true);
  viewOf(order).setUint32(HEADER.target, gather, true);
  net.receive(net.b, chunk, 0);
  net.receive(net.b, order, 0);
  assert.equal(net.b.engine.drops.bounds, 1);
  assert.equal(isEnded(net.b, gather), false);
  assert.ok(local.bytes.every((byte) => byte === 0));
});

test('an answer shows no key of a region that another request was for', () => {
  const answers: Uint8Array[] = [];
  const net = new Loopback({
    settings: { transportChecksum: 'none' },
    lose: ({ bytes, to }) => {
      if (to.name === 'a' && bytes[1] === 1 && (flagsOf(bytes) & packetFlags.scatter) !== 0) answers.push(bytes);
      return false;
    },
  });
  const [local, store, other] = [net.a.region(1000), net.b.region(1000), net.a.region(1000)];
  const write = net.b.connection.write({ region: store, offset: 0, bytes: 10, ...remote(other) });
  assert.ok(net.run(() => isEnded(net.b, write)));
  net.b.engine.forget(write);
  const gather = net.a.connection.gather({ region: local, ranges: ranges(500), ...place(store) });
  assert.ok(net.run(() => isEnded(net.a, gather)));
  assert.deepEqual(
    answers.map((answer) => viewOf(answer).getUint32(HEADER.targetKey, true)),
    [0],
  );
});

test('scatter() and gather() on a connection that is over make no memory for chunks', () => {
  const net = new Loopback();
  const adopted: Region[] = [];
  const local = net.a.region(1000);
  Object.assign(net.a, { adopt: (region: Region) => adopted.push(region) });
  net.a.connection.close();
  const options = { region: local, ranges: ranges(500), remoteRegion: 1, remoteKey: 1 };
  assert.throws(() => net.a.connection.scatter(options), { code: 'WL_CLOSED' });
  assert.throws(() => net.a.connection.gather(options), { code: 'WL_CLOSED' });
  assert.equal(adopted.length, 0);
});
