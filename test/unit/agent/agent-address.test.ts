// The address of an agent that was given none, in a job of several hosts.
import assert from 'node:assert/strict';
import test, { type TestContext } from 'node:test';
import { addressOfAgent } from '#lib/agent/agent-address.js';
import { withCode } from '../../support/with-code.ts';

function inJob(context: TestContext, host: string): void {
  const job = {
    RANK: '0',
    WORLD_SIZE: '2',
    LOCAL_RANK: '0',
    LOCAL_WORLD_SIZE: '1',
    MASTER_ADDR: host,
    MASTER_PORT: '29500',
  };
  const before = { ...process.env };
  Object.assign(process.env, job);
  context.after(() => {
    for (const name of Object.keys(job)) {
      if (before[name] === undefined) Reflect.deleteProperty(process.env, name);
      else process.env[name] = before[name];
    }
  });
}

test('a master whose name no host has is an error, and not 127.0.0.1', async (context) => {
  inJob(context, 'no-such-host.invalid');
  await assert.rejects(addressOfAgent(undefined, 'token'), withCode('WL_CONFIG', /no-such-host\.invalid.*option host/));
});

test('with a master on this host alone an agent listens at 127.0.0.1', async (context) => {
  inJob(context, '127.0.0.1');
  assert.equal(await addressOfAgent(undefined, 'token'), '127.0.0.1');
});
