// Tests how flushing is chosen, by what device and memory can do.
import assert from 'node:assert/strict';
import test from 'node:test';
import { chooseFlush, type FlushCapabilities } from '#lib/native/verbs/visibility-flush.js';

const gpu: FlushCapabilities = {
  isOrdered: false,
  atomicCap: 'within the device',
  isFlagRegistered: true,
  isFlagMapped: true,
};

test('memory that shows writes in order needs no flush', () => {
  assert.equal(chooseFlush({ ...gpu, isOrdered: true })?.way, 'mapped');
});

test('an atomic flushes and tells at once, where the device has them and may write to the flag', () => {
  assert.equal(chooseFlush(gpu)?.way, 'fetch-add');
  assert.equal(chooseFlush({ ...gpu, isOrdered: true, isFlagMapped: false })?.way, 'fetch-add');
});

test('otherwise the device reads, and the host tells', () => {
  assert.deepEqual(chooseFlush({ ...gpu, atomicCap: 'none' }), { way: 'read', reason: 'the device has no atomics' });
  assert.deepEqual(chooseFlush({ ...gpu, isFlagRegistered: false }), {
    way: 'read',
    reason: 'the device may not write to the flag',
  });
});

test('there is no way if nobody can write to the flag', () => {
  assert.equal(chooseFlush({ ...gpu, isFlagRegistered: false, isFlagMapped: false }), undefined);
  assert.equal(chooseFlush({ ...gpu, atomicCap: 'none', isFlagMapped: false }), undefined);
});
