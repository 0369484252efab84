// Tests which waits for the end of a request are for one answer, and may poll.
import assert from 'node:assert/strict';
import test from 'node:test';
import type { EngineGroup } from '#lib/transport/host/engine-group.js';
import { RequestSlots } from '#lib/transport/host/request-slots.js';
import { SharedRequests } from '#lib/transport/host/shared-requests.js';

test('a wait is for one answer also where a few receives were posted ahead, and not where many requests are under way', () => {
  const requests = new SharedRequests();
  const group = { requests, failure: undefined, haveRoom: () => true, put: () => {} };
  const slots = new RequestSlots(group as unknown as EngineGroup, 1000);
  const seen = Array.from({ length: 6 }, () => {
    slots.post('peer', 0);
    return slots.areFew;
  });
  assert.deepEqual(seen, [true, true, true, true, false, false]);
});
