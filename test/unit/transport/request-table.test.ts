// The table of requests: what a handle finds, and what is left of the request that had a slot before.
import assert from 'node:assert/strict';
import test from 'node:test';
import { Request, type RequestOwner, RequestTable } from '#lib/transport/engine/request.js';

const owner: RequestOwner = { peer: 0, abandon: () => {}, unqueue: () => {}, ended: () => {} };

test('a request that takes a slot again has nothing of the one before, but for what its kind sets', () => {
  const table = new RequestTable();
  const before = table.open('receive', owner);
  const { handle } = before;
  before.record = 7;
  before.value = 3;
  before.granted = 5;
  before.received = 5;
  before.messageBytes = 5;
  before.announced = true;
  before.claimed = true;
  before.segmented = true;
  before.position = 9;
  before.unacked = 1;
  table.close(before);
  const after = table.open('send', owner);
  assert.equal(after, before);
  assert.notEqual(after.handle, handle);
  assert.equal(table.find(handle), undefined);
  const fresh = new Request();
  for (const name of ['kind', 'status', 'owner', 'handle'] as const) Object.assign(fresh, { [name]: after[name] });
  assert.deepEqual(after, fresh);
});
