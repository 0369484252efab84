// The thread of the store, from its owner's side.
import assert from 'node:assert/strict';
import test from 'node:test';
import { credentialsOf } from '#lib/meeting/credentials.js';
import { StoreHost } from '#lib/world/store-host.js';

test('stop() of a store whose thread has ended resolves', { timeout: 600_000 }, async () => {
  const host = await StoreHost.start({
    listen: { host: '127.0.0.1', port: 0 },
    size: 1,
    credential: credentialsOf('token').read(),
    jobId: 'job',
    maxValueBytes: 1024,
    settings: { maxStrangers: 4, greetingMs: 60_000, timeoutMs: 60_000 },
  });
  assert.ok(host.port > 0);
  await host.stop(0);
  await host.stop(0);
});
