// The thread that serves a device's command queues, when it does not answer.
import assert from 'node:assert/strict';
import test from 'node:test';
import { readSettings } from 'weftline';
import { ProxyService } from '#lib/device-api/service/proxy-service.js';

const threads = {
  'waits for something': 'setInterval(() => {}, 1000)',
  'is in a loop': 'for (;;);',
};
const parts = { name: 'a', token: '', onFailure: () => {}, timeoutMs: 100 };

for (const [what, program] of Object.entries(threads)) {
  const script = new URL(`data:text/javascript,${encodeURIComponent(`export function run() { ${program} }`)}`);
  const open = (): ProxyService => new ProxyService({ ...parts, settings: readSettings(), script });

  test(`a thread that ${what} fails each call in time, and its host closes`, { timeout: 240_000 }, async () => {
    const late = { code: 'WL_TIMEOUT', message: /100 ms/ };
    const starting = open();
    await assert.rejects(starting.call('serve', { memory: new SharedArrayBuffer(8), queues: 1, capacity: 1 }), late);
    await starting[Symbol.asyncDispose]();
    const serving = open();
    await assert.rejects(serving.call('metadata'), late);
    await assert.rejects(async () => serving[Symbol.asyncDispose](), late);
    await serving[Symbol.asyncDispose]();
  });
}
