// Calls to all engines of a transport: none is left out because another one failed.
import assert from 'node:assert/strict';
import test from 'node:test';
import { WeftlineError } from 'weftline';
import { EngineGroup, type EngineLink } from '#lib/transport/host/engine-group.js';
import type { SharedRequests } from '#lib/transport/host/shared-requests.js';

/** Engines that note calls when they answer; those with an error fail at once. */
function openGroup(errors: readonly (WeftlineError | undefined)[]) {
  const released: number[] = [];
  const links = errors.map((error, engine) => ({
    call: async () => {
      if (error !== undefined) throw error;
      // An engine that answers does so in a later turn of the loop than one that fails.
      await new Promise((resolve) => setImmediate(resolve));
      released.push(engine);
    },
  }));
  return { released, group: new EngineGroup({} as SharedRequests, links as unknown as EngineLink[]) };
}

const late = new WeftlineError('WL_TIMEOUT', 'no answer within 30000 ms');
const gone = new WeftlineError('WL_CLOSED', 'the thread has ended');

test('a call to all engines reaches those behind one that fails, and waits for them', async () => {
  const { released, group } = openGroup([undefined, late, undefined]);
  await assert.rejects(group.callAll('release', 7), late);
  assert.deepEqual(released, [0, 2]);
});

test('a call that several engines fail names all of them and what each said', async () => {
  const { released, group } = openGroup([late, undefined, gone]);
  await assert.rejects(group.callAll('release', 7), (error) => {
    assert.ok(error instanceof WeftlineError);
    assert.equal(error.code, 'WL_TIMEOUT');
    assert.equal(
      error.message,
      '2 of 3 engines failed: engine 0: no answer within 30000 ms; engine 2: the thread has ended',
    );
    assert.deepEqual(error.details, { engines: [0, 2] });
    return true;
  });
  assert.deepEqual(released, [1]);
});

test('a call that all engines answer succeeds', async () => {
  const { released, group } = openGroup([undefined, undefined]);
  await group.callAll('release', 7);
  assert.deepEqual(released, [0, 1]);
});
