// Functions that take bytes give the same result for any Uint8Array, wherever it begins, and keep no view of it.
import assert from 'node:assert/strict';
import test from 'node:test';
import { CpuDevice } from 'weftline';
import { DescriptorList } from 'weftline/agent';
import { join } from 'weftline/world';
import {
  isOfProcess,
  localRegionInfo,
  localRegionKinds,
  readRegionInfo,
} from '#lib/agent/backends/local/local-region.js';
import { Block } from '#lib/abi/layout.js';
import { MultipathRemoteRegion } from '#lib/agent/backends/multipath/multipath-link.js';
import { mailboxSender, NotificationRing, SENDER_RING_BYTES } from '#lib/agent/backends/local/mailbox-layout.js';
import { RdmaRemoteRegion } from '#lib/agent/rdma/rdma-region.js';
import { UcxKeys } from '#lib/agent/backends/ucx/ucx-worker.js';
import { decodeMetadata, encodeMetadata } from '#lib/agent/metadata.js';
import { copyOf } from '#lib/core/bytes.js';
import { parseHeader } from '#lib/programs/moe/safetensors-header.js';
import { decodeDescs, encodeDescs } from '#lib/device-api/host/device-side.js';
import { encodeFrame, FrameReader, memberLimits } from '#lib/meeting/frames.js';
import { emptyShapes, shapesOf } from '../support/byte-shapes.ts';

const text = (value: string): Uint8Array => new TextEncoder().encode(value);

/** `read` gives the same for every shape, also after the bytes were overwritten. */
function assertSame(values: Uint8Array, read: (bytes: Uint8Array) => unknown): void {
  const expected = read(new Uint8Array(values));
  for (const { shape, bytes } of shapesOf(values)) {
    const found = read(bytes);
    bytes.fill(0xee);
    assert.deepEqual(found, expected, shape);
  }
}

test('copyOf() copies, to the beginning of memory of its own', () => {
  assertSame(Uint8Array.of(1, 2, 3), (bytes) => {
    const copy = copyOf(bytes);
    return [copy, copy.byteOffset, copy.buffer.byteLength, Buffer.isBuffer(copy), copy.buffer instanceof ArrayBuffer];
  });
});

test('metadata, with all that they hold of backends', () => {
  const info = Uint8Array.from({ length: 40 }, (_, index) => index);
  const metadata = encodeMetadata({
    name: 'one',
    incarnation: '0123456789abcdef',
    host: 'here',
    process: 7,
    isWhole: false,
    connections: new Map([['local', info]]),
    regions: [{ number: 3, name: 'r', kind: 'host', address: 4096, bytes: 10, info: new Map([['local', info]]) }],
    withdrawn: [1, 2],
  });
  assertSame(metadata, decodeMetadata);
  for (const { bytes, shape } of shapesOf(info)) {
    const connections = new Map([['local', bytes]] as const);
    const one = encodeMetadata({ ...decodeMetadata(metadata), connections });
    assert.deepEqual(one, metadata, shape);
  }
});

test('lists of descriptors', () => {
  const list = new DescriptorList('host', Float64Array.of(4096, 2 ** 40), Float64Array.of(5, 6));
  assertSame(list.encode(), (bytes) => {
    const { kind, runs } = DescriptorList.decode(bytes);
    return { kind, runs };
  });
  assertSame(
    encodeDescs({ agent: 'a', host: 'h', process: 1, ranges: [{ region: 1, offset: 0, bytes: 8 }] }),
    decodeDescs,
  );
});

test('what backends publish of themselves and of their regions', () => {
  const info = new Uint8Array(localRegionInfo.size);
  const block = Block.over(localRegionInfo, info);
  block.set('kind', localRegionKinds.process);
  block.set('slot', 5);
  block.set('key', 0xdead_beef);
  block.set('bytes', 100);
  block.set('address', 2 ** 41);
  assertSame(info, (bytes) => {
    const { bytes: length, keyAt, keyValue, reach } = readRegionInfo(bytes, { kind: 'host', bytes: 100 }, () => 0);
    return { length, keyAt, keyValue, reach };
  });
  assertSame(info, isOfProcess);
  assertSame(Uint8Array.of(1, 0, 0, 0, 2, 0, 0, 0), (bytes) => {
    const { remoteRegion, remoteKey } = new MultipathRemoteRegion(bytes, 9);
    return { remoteRegion, remoteKey };
  });
  assertSame(
    Uint8Array.from({ length: 30 }, (_, index) => index % 7),
    (bytes) => {
      const keys = new UcxKeys();
      const { address, key } = new RdmaRemoteRegion(bytes, { bytes: 9, peer: 'a peer', keys });
      return { address, key, name: keys.namesOf([key]) };
    },
  );
});

test('records of a ring of notifications', () => {
  assertSame(text('a message'), (bytes) => {
    const buffer = new ArrayBuffer(mailboxSender.size + SENDER_RING_BYTES);
    const ring = new NotificationRing({ buffer, slotAt: 0, ringAt: mailboxSender.size });
    assert.ok(ring.push(bytes));
    return new NotificationRing({ buffer, slotAt: 0, ringAt: mailboxSender.size }).take();
  });
});

test("frames of the store and the store's values", async () => {
  const whole = Buffer.concat(encodeFrame({ verb: 'x' }, [text('one'), text('two')]));
  assertSame(whole, (bytes) => {
    const reader = new FrameReader(memberLimits(1000));
    reader.push(Buffer.from(bytes));
    const { header, parts } = reader.next() as { header: unknown; parts: readonly Uint8Array[] };
    return [header, parts.map((part) => Buffer.from(part).toString())];
  });
  assertSame(text('part'), (bytes) => Buffer.concat(encodeFrame({}, [bytes])));
  await using world = await join({ environment: {} });
  const { store } = world;
  for (const { shape, bytes } of shapesOf(text('value'))) {
    await store.set('k', bytes);
    bytes.fill(1);
    assert.equal(Buffer.from(await store.get('k')).toString(), 'value', shape);
  }
  for (const { shape, bytes } of shapesOf(text('other'))) {
    await store.set('k', text('value'));
    const { swapped } = await store.compareAndSet('k', shapesOf(text('value')).at(-1)?.bytes, bytes);
    bytes.fill(1);
    assert.ok(swapped, shape);
    assert.equal(Buffer.from(await store.get('k')).toString(), 'other', shape);
    await store.set('k', text('value'));
    bytes.set(text('value'));
    assert.equal((await store.compareAndSet('k', bytes, text('x'))).swapped, true, shape);
  }
  for (const { shape, bytes } of shapesOf(text('mine'))) {
    const gathered = store.allGather(`round of ${shape}`, bytes);
    bytes.fill(1);
    assert.deepEqual(
      (await gathered).map((part) => Buffer.from(part).toString()),
      ['mine'],
      shape,
    );
  }
});

test('headers of safetensors files', () => {
  const header = text(JSON.stringify({ t: { dtype: 'U8', shape: [3], data_offsets: [0, 3] } }));
  assertSame(header, (bytes) => parseHeader(bytes, 3, 'file'));
});

test('tensors of a CPU device', async () => {
  const device = await CpuDevice.create();
  const values = Uint8Array.from({ length: 24 }, (_, index) => index * 3);
  for (const { shape, bytes } of shapesOf(values)) {
    using made = await device.tensor('u8', [24], bytes);
    assert.deepEqual(new Uint8Array(await made.toHost()), values, shape);
    using filled = device.empty('u8', [24]);
    await filled.fromHost(bytes);
    bytes.fill(1);
    assert.deepEqual(new Uint8Array(await filled.toHost()), values, shape);
  }
  assert.equal(emptyShapes(3).length, shapesOf(values).length);
});
