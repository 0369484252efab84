// The packet layouts keep their sizes, and headers of a burst their distance.
import assert from 'node:assert/strict';
import test from 'node:test';
import {
  ackHeader,
  ackPath,
  controlHeader,
  controlKinds,
  controlRecord,
  DATA_HEADER_BYTES,
  dataHeader,
  failReasons,
  MAX_FLOWS,
  MAX_MESSAGE_BYTES,
  MAX_PATHS,
  packetFlags,
  packetKinds,
  packetPrefix,
  TRANSPORT_VERSION,
} from '#lib/transport/wire/packet-layout.js';
import { createReceivedBatch, placeRun } from '#lib/transport/io/packet-io.js';
import {
  dropReasons,
  requestStatus,
  type EngineOptions,
  type TransportEngine,
} from '#lib/transport/engine/transport-engine.js';

test('every packet begins with the same prefix', () => {
  assert.equal(TRANSPORT_VERSION, 7);
  for (const layout of [dataHeader, ackHeader, controlHeader]) {
    for (const [field, at] of Object.entries(packetPrefix.offset)) {
      assert.equal((layout.offset as Record<string, number>)[field], at, `${layout.name}.${field}`);
    }
  }
});

test('sizes of the layouts', () => {
  assert.deepEqual(
    [packetPrefix, dataHeader, ackHeader, ackPath, controlHeader, controlRecord].map((l) => l.size),
    [24, DATA_HEADER_BYTES, 48, 16, 32, 32],
  );
  assert.deepEqual([MAX_PATHS, MAX_FLOWS, MAX_MESSAGE_BYTES], [256, 65_536, 1_099_511_627_775]);
});

test('numbers of kinds, flags and reasons are distinct', () => {
  for (const table of [packetKinds, packetFlags, controlKinds, failReasons, requestStatus]) {
    const values = Object.values(table);
    assert.equal(new Set(values).size, values.length);
  }
  assert.equal(new Set(dropReasons).size, dropReasons.length);
});

test('placeRun() puts payloads side by side', () => {
  const source = Uint8Array.from([9, 9, 1, 2, 3, 9, 9, 4, 5, 6, 9, 9, 7]);
  const region = { id: 1, key: 1, bytes: new Uint8Array(10), address: 0, remote: { read: false, write: false } };
  placeRun({
    source,
    sourceOffset: 2,
    sourceStride: 5,
    region,
    regionOffset: 1,
    count: 3,
    payloadBytes: 3,
    lastPayloadBytes: 1,
  });
  assert.deepEqual([...region.bytes], [0, 1, 2, 3, 4, 5, 6, 7, 0, 0]);
});

test('createReceivedBatch() names no peer', () => {
  const batch = createReceivedBatch(new Uint8Array(8), 4);
  assert.deepEqual([batch.count, [...batch.peer]], [0, [-1, -1, -1, -1]]);
  const keys: (keyof TransportEngine)[] = ['onPackets', 'onTimer', 'nextDeadline'];
  const options: (keyof EngineOptions)[] = ['io', 'settings'];
  assert.equal(keys.length + options.length, 5);
});
