// A device that is closed before its DeviceHost: the host ends first, and closing it again does no harm.
import assert from 'node:assert/strict';
import test from 'node:test';
import { CpuDevice, type CudaDevice } from 'weftline';
import { DeviceHost } from 'weftline/device-api';
import { endBeforeDevices } from '#lib/device-api/host/device-host.js';

test('a GPU that is closed has the host end first, until that has ended by itself', async () => {
  const threads = new Set<() => Promise<void>>();
  const gpu = { kind: 'cuda', context: { threads } } as unknown as CudaDevice;
  const cpu = await CpuDevice.create({ addressSpaceMiB: 16 });
  let ends = 0;
  const forget = endBeforeDevices([cpu, gpu], () => {
    ends += 1;
    return Promise.resolve();
  });
  // As CudaDevice.close() does it.
  await Promise.allSettled([...threads].map((end) => end()));
  assert.equal(ends, 1);
  forget();
  assert.equal(threads.size, 0);
});

test('a CPU device that is closed first leaves its host usable, which then closes', async () => {
  const device = await CpuDevice.create({ addressSpaceMiB: 16 });
  const host = await DeviceHost.create({ name: 'order', device, timeoutMs: 60_000 });
  const memory = await host.allocate(64);
  await device.close();
  host.view(memory).fill(3);
  assert.equal((await host.read(memory))[63], 3);
  await host.close();
  await host.close();
});
