// Memory that only some of an agent's backends could register.
import assert from 'node:assert/strict';
import test from 'node:test';
import { WeftlineError } from '#lib/core/errors.js';
import { describeMemory, Registrations } from '#lib/agent/registration.js';
import type { BackendSet } from '#lib/agent/backends/backend-table.js';
import { withCode } from '../../support/with-code.ts';

const failure = new WeftlineError('WL_CAPACITY', 'no memory left to pin');

/** Backends that register, or fail to. */
function open(
  backends: readonly { readonly name: string; readonly fails: boolean; readonly isOptionalFor: boolean }[],
) {
  const released: string[] = [];
  const set = {
    missing: new Map(),
    backends: backends.map(({ name, fails, isOptionalFor }) => ({
      name,
      whyNotMemory: () => undefined,
      isOptionalFor: () => isOptionalFor,
      register: async () => {
        if (fails) throw failure;
        return { info: new Uint8Array(), release: async () => void released.push(name) };
      },
    })),
  } as unknown as BackendSet;
  return { registrations: new Registrations('here', set, 1000), released };
}

test('memory stays usable by other backends where one that may lack it fails, and that one says why', async () => {
  const { registrations } = open([
    { name: 'local', fails: false, isOptionalFor: false },
    { name: 'multipath', fails: true, isOptionalFor: true },
  ]);
  const registration = await registrations.add(new Uint8Array(64), { name: 'weights' });
  assert.deepEqual([...registration.regions.keys()], ['local']);
  assert.match(registration.failures.get('multipath') ?? '', /no memory left to pin/);
  assert.equal(describeMemory(registration.bytes).bytes, 64);
});

test('where no other backend takes the memory, or the one that fails must have it, it is not registered at all', async () => {
  for (const isOptionalFor of [true, false]) {
    const alone = open([{ name: 'multipath', fails: true, isOptionalFor }]);
    await assert.rejects(alone.registrations.add(new Uint8Array(64), {}), withCode('WL_CAPACITY', /to pin/));
  }
  const { registrations, released } = open([
    { name: 'local', fails: false, isOptionalFor: false },
    { name: 'multipath', fails: true, isOptionalFor: false },
  ]);
  await assert.rejects(registrations.add(new Uint8Array(64), {}), withCode('WL_CAPACITY'));
  assert.deepEqual(released, ['local']);
});
