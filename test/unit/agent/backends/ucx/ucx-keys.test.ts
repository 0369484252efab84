// Keys of a peer's memory, over a worker that is played: what is unpacked for which endpoint.
import assert from 'node:assert/strict';
import test from 'node:test';
import { UcxKeys, type UcxWorker } from '#lib/agent/backends/ucx/ucx-worker.js';

test('a key is unpacked for each endpoint anew, also behind one that UCX has not ended', () => {
  const forgotten: number[] = [];
  const worker = {
    unpack: (endpoint: number) => 100 * endpoint,
    forgetKey: (handle: number) => forgotten.push(handle),
  } as unknown as UcxWorker;
  const keys = new UcxKeys();
  const key = keys.add(new Uint8Array(12))!;
  keys.attach(worker, 1);
  assert.equal(keys.handleOf(key), 100);
  keys.attach(worker, 2);
  assert.equal(keys.handleOf(key), 200);
  keys.detach(2);
  assert.deepEqual(forgotten, [200]);
});
