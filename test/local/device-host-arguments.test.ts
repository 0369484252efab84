// Arguments of a DeviceHost that cannot be, as a program without types would pass them: a coded error, and the host goes on.
import assert from 'node:assert/strict';
import test from 'node:test';
import { CpuDevice } from 'weftline';
import { DeviceHost } from 'weftline/device-api';
import { withCode } from '../support/with-code.ts';

const device = await CpuDevice.create({ addressSpaceMiB: 64 });
const invalid = withCode('WL_INVALID_ARGUMENT', 'Invalid ');
const noNumbers: readonly unknown[] = ['0', null, undefined, -1, 0, 1.5, Number.NaN, 2 ** 53, 1n, {}];

/** As a program without types would pass it. */
function as(value: unknown): never {
  return value as never;
}

test('what is no address or no length of memory is refused before any thread touches it', async () => {
  await using host = await DeviceHost.create({ name: 'a', device });
  for (const value of noNumbers) {
    await assert.rejects(host.registerVram(as(value), 5), invalid);
    await assert.rejects(host.registerVram(4096, as(value)), invalid);
    await assert.rejects(host.allocate(as(value)), invalid);
    await assert.rejects(host.allocateHost(as(value)), invalid);
  }
  assert.equal((await host.allocate(64)).bytes, 64);
});
