// How long calls of a ProxyService may take.
import assert from 'node:assert/strict';
import { createServer } from 'node:net';
import test from 'node:test';
import { readSettings } from 'weftline';
import { ProxyService } from '#lib/device-api/service/proxy-service.js';

process.env['WEFTLINE_TIMEOUT_MS'] = '100';

test('an exchange of metadata may take longer than other calls of the service', async () => {
  const silent = createServer().listen(0, '127.0.0.1');
  await new Promise((resolve) => silent.once('listening', resolve));
  const { port } = silent.address() as { readonly port: number };
  const address = { host: '127.0.0.1', port };
  const service = new ProxyService({
    name: 'patient',
    settings: readSettings(),
    token: 'token',
    backends: ['local'],
    onFailure: () => {},
  });
  try {
    const controller = new AbortController();
    const { signal } = controller;
    const ended = assert.rejects(service.exchange('fetch', { ...address, timeoutMs: 60_000, signal }), /enough/);
    await assert.rejects(service.exchange('fetch', address), { code: 'WL_TIMEOUT' });
    controller.abort(new Error('enough'));
    await ended;
    for (const timeoutMs of [Number.NaN, -1, 2 ** 31]) {
      await assert.rejects(service.exchange('fetch', { ...address, timeoutMs }), { code: 'WL_INVALID_ARGUMENT' });
    }
  } finally {
    await service.close().catch(() => {});
    silent.close();
  }
});
