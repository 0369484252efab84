// Arguments of a DeviceHost that cannot be, as a program without types would pass them: a coded error, and the host goes on.
import assert from 'node:assert/strict';
import test from 'node:test';
import { CpuDevice, WeftlineError } from 'weftline';
import { DeviceHost } from 'weftline/device-api';
import { withCode } from '../support/with-code.ts';

const device = await CpuDevice.create({ addressSpaceMiB: 64 });
const invalid = withCode('WL_INVALID_ARGUMENT', 'Invalid ');
const noNumbers: readonly unknown[] = ['0', null, undefined, -1, 0, 1.5, Number.NaN, 2 ** 53, 1n, {}];

/** As a program without types would pass it. */
function as(value: unknown): never {
  return value as never;
}

function create(more: object): Promise<DeviceHost> {
  return DeviceHost.create({ name: 'a', device, ...more });
}

test('invalid addresses and lengths of memory are refused before any thread touches them', async () => {
  await using host = await DeviceHost.create({ name: 'a', device });
  for (const value of noNumbers) {
    await assert.rejects(host.registerVram(as(value), 5), invalid);
    await assert.rejects(host.registerVram(4096, as(value)), invalid);
    await assert.rejects(host.allocate(as(value)), invalid);
    await assert.rejects(host.allocateHost(as(value)), invalid);
  }
  assert.equal((await host.allocate(64)).bytes, 64);
});

test('options that cannot be fail as documented, whichever thread looks at them', async () => {
  for (const more of [
    ...[5, '', 'a\nb', Symbol('name'), () => {}].map((name) => ({ name })),
    ...[5, '', 'nonsense', () => {}].map((host) => ({ host })),
    ...['local', 5, [() => {}], [5]].map((backends) => ({ backends })),
  ]) {
    await assert.rejects(create(more), withCode('WL_INVALID_ARGUMENT', 'Invalid '));
  }
  await assert.rejects(create({ backends: ['x'] }), withCode('WL_UNSUPPORTED', 'There is no backend "x"'));
  await assert.rejects(create({ host: '0.0.0.0', token: '' }), withCode('WL_CONFIG', 'token'));
});

test('invalid records are refused, and the host goes on', async () => {
  await using host = await DeviceHost.create({ name: 'a', device });
  const memory = await host.allocate(64);
  const descs = host.serializeXferDescs({ memory });
  for (const value of [null, 5, 'x', {}]) {
    const wrong = as(value);
    for (const more of [{ device: wrong }, { devices: [wrong] }, { devices: wrong }]) {
      await assert.rejects(DeviceHost.create({ name: 'b', ...more }), withCode('WL_INVALID_ARGUMENT'));
    }
    for (const list of [wrong, as([value]), as({ memory: value })])
      assert.throws(() => host.serializeXferDescs(list), invalid);
    await assert.rejects(host.createWriteReq(wrong, descs, 'a'), invalid);
    await assert.rejects(host.createWriteReq({ memory }, wrong, 'a'), invalid);
    await assert.rejects(host.createWriteReq({ memory }, descs, wrong), withCode('WL_INVALID_ARGUMENT'));
    if (typeof value !== 'object' || value === null) {
      await assert.rejects(host.createWriteReq({ memory }, descs, 'a', wrong), invalid);
    }
    await assert.rejects(host.createGpuReq(wrong), invalid);
    await assert.rejects(host.releaseWriteReq(wrong), invalid);
    await assert.rejects(host.deregisterVram(wrong), invalid);
    assert.throws(() => host.view(wrong), invalid);
    await assert.rejects(host.read(wrong), invalid);
    await assert.rejects(host.write(wrong, new Uint8Array(1)), invalid);
    await assert.rejects(host.write(memory, wrong), invalid);
    await assert.rejects(host.exchangeMetadata(wrong), withCode('WL_INVALID_ARGUMENT'));
    await assert.rejects(host.addRemoteAgent(wrong), (error) => error instanceof WeftlineError);
  }
  assert.equal((await host.read(memory)).length, 64);
});

test('a request that was never made, and ranges of other numbers, are refused by name', async () => {
  await using host = await DeviceHost.create({ name: 'a', device });
  for (const request of [undefined, null, {}, 1, 1n]) await assert.rejects(host.createGpuReq(as(request)), invalid);
  const memory = await host.allocate(64);
  for (const value of [1n, '8', -1, 1.5, {}]) {
    assert.throws(() => host.serializeXferDescs({ memory, offset: as(value) }), invalid);
    assert.throws(() => host.serializeXferDescs({ memory, bytes: as(value) }), invalid);
  }
  await assert.rejects(create({ queueCapacity: 64n }), invalid);
  for (const reason of [undefined, null, {}, 'stop']) assert.throws(() => host.abort(as(reason)), invalid);
});

test('memory that was deregistered is refused by the number of its region', async () => {
  await using host = await DeviceHost.create({ name: 'a', device });
  const memory = await host.allocate(64);
  await host.deregisterVram(memory);
  const refused = withCode(
    'WL_INVALID_ARGUMENT',
    `what registerVram() of this host returned, until it is deregistered, got region ${memory.id}, which this host has not registered, or has deregistered already`,
  );
  await assert.rejects(host.deregisterVram(memory), refused);
  await assert.rejects(host.read(memory), refused);
  await assert.rejects(
    host.read(as({ id: 'x' })),
    withCode('WL_INVALID_ARGUMENT', 'until it is deregistered, got Object'),
  );
});

test('a tensor of the CPU is registered as itself and held; its address is none of this process', async () => {
  await using host = await DeviceHost.create({ name: 'a', device });
  await using peer = await DeviceHost.create({ name: 'b', device });
  const { used } = device.space;
  const tensor = await device.tensor('u8', [4096], new Uint8Array(4096).fill(42));
  await assert.rejects(
    host.registerVram(tensor.address, 4096),
    withCode('WL_INVALID_ARGUMENT', 'is no address of 4096 readable and writable bytes of this process; a CPU tensor'),
  );
  await assert.rejects(host.registerVram(tensor, 4097), withCode('WL_INVALID_ARGUMENT', 'at most 4096'));
  const memory = await host.registerVram(tensor);
  assert.deepEqual([memory.bytes, host.view(memory)[4095]], [4096, 42]);
  const target = await peer.allocate(4096);
  const name = await host.addRemoteAgent(await peer.getMetadata());
  const request = await host.createWriteReq({ memory }, peer.serializeXferDescs({ memory: target }), name);
  const handle = await host.createGpuReq(request);
  host.kernelApi.put(handle, { target: 0, source: 0, bytes: 4096 });
  await host.kernelApi.flush(handle);
  assert.ok(peer.view(target).every((byte) => byte === 42));
  await host.releaseWriteReq(request);
  await host.deregisterVram(memory);
  tensor.close();
  assert.equal(device.space.used, used);
  await assert.rejects(host.registerVram(tensor), withCode('WL_INVALID_ARGUMENT', 'a closed tensor'));
});
