// How hosts of kernels meet and part: listeners, stores, and requests, memory and peers that are released again.
import assert from 'node:assert/strict';
import test from 'node:test';
import { CpuDevice, type CudaDevice } from 'weftline';
import { etcdMetadataStore, type MetadataStore } from 'weftline/agent';
import { DeviceHost, type DeviceHostOptions } from 'weftline/device-api';
import { queueCommandKinds, MAX_DEVICE_REQUESTS } from '#lib/abi/device-api.js';
import { ProxyService } from '#lib/device-api/service/proxy-service.js';
import { CommandWriter, emptyQueueCommand, queueBytes, queuesIn } from '#lib/device-api/service/command-queue.js';
import { readSettings } from '#lib/settings/settings.js';
import { viewAt } from '#lib/native/library.js';
import { until } from '../support/until.ts';
import { runEtcd, withoutEtcd } from './support/run-etcd.ts';

const device = await CpuDevice.create({ addressSpaceMiB: 64 });
const open = (name: string, more: Partial<DeviceHostOptions> = {}): Promise<DeviceHost> =>
  DeviceHost.create({ name, device, timeoutMs: 120_000, ...more });

/** Bytes and a signal from one host to another that knows it; checks that they arrive. */
async function writeTo(there: DeviceHost, here: DeviceHost, peer = there.name): Promise<void> {
  const source = await here.allocate(256);
  const data = await there.allocate(256);
  const counter = await there.allocate(8);
  // Memory that was registered after the metadata were exchanged.
  await here.addRemoteAgent(await there.getMetadata());
  const put = await here.createWriteReq({ memory: source }, there.serializeXferDescs({ memory: data }), peer);
  const tell = await here.createWriteReq({ memory: source }, there.serializeXferDescs({ memory: counter }), peer);
  here.view(source).fill(7);
  here.kernelApi.put(await here.createGpuReq(put), { target: 0, source: 0, bytes: 256 });
  here.kernelApi.signal(await here.createGpuReq(tell), { target: 0, add: 1 });
  const { buffer, byteOffset } = there.view(counter);
  await there.kernelApi.wait(new BigUint64Array(buffer, byteOffset, 1), 1);
  assert.ok(there.view(data).every((byte) => byte === 7));
  for (const request of [put, tell]) await here.releaseWriteReq(request);
  for (const memory of [data, counter]) await there.deregisterVram(memory);
  await here.deregisterVram(source);
}

test('a host that listens is met by its port, and both know each other then', async () => {
  await using target = await open('target', { port: 0 });
  await using initiator = await open('initiator');
  assert.equal(initiator.port, undefined);
  assert.ok(target.port !== undefined && target.port > 0);
  const source = await initiator.allocate(64);
  const data = await target.allocate(64);
  const address = { host: '127.0.0.1', port: target.port };
  assert.equal(await initiator.exchangeMetadata(address), 'target');
  // Nobody but the listener told the target of the initiator.
  const back = await target.createWriteReq(
    { memory: data },
    initiator.serializeXferDescs({ memory: source }),
    'initiator',
  );
  target.view(data).fill(9);
  const handle = await target.createGpuReq(back);
  target.kernelApi.put(handle, { target: 0, source: 0, bytes: 64 });
  await target.kernelApi.flush(handle);
  assert.ok(initiator.view(source).every((byte) => byte === 9));
  await writeTo(target, initiator);

  await using third = await open('third');
  assert.equal(await third.fetchMetadata(address), 'target');
  const fromThird = target.createWriteReq(
    { memory: data },
    third.serializeXferDescs({ memory: await third.allocate(64) }),
    'third',
  );
  await assert.rejects(fromThird, { code: 'WL_INVALID_ARGUMENT', message: /third/ });
  await third.sendMetadata(address);
  await third.sendInvalidation(address);
  await assert.rejects(third.exchangeMetadata({ host: '127.0.0.1', port: 9, timeoutMs: 500 }), {
    code: 'WL_PEER_LOST',
  });
});

/** As etcd: what was put goes when it is released. */
function memoryStore(): MetadataStore & { readonly blobs: Map<string, Uint8Array> } {
  const blobs = new Map<string, Uint8Array>();
  return {
    blobs,
    put: (name, blob) => {
      blobs.set(name, blob);
      return Promise.resolve(() => Promise.resolve(void blobs.delete(name)));
    },
    get: async (name, options) => {
      await until(() => blobs.has(name), `metadata of ${name}`, options.timeoutMs);
      return blobs.get(name)!;
    },
    delete: (name) => Promise.resolve(void blobs.delete(name)),
  };
}

test('hosts meet in a store, which forgets those that are closed', async () => {
  const store = memoryStore();
  await using here = await open('here');
  const there = await open('there');
  const loading = here.loadPublished(store, 'there', { timeoutMs: 120_000 });
  await there.publishMetadata(store);
  assert.equal(await loading, 'there');
  await writeTo(there, here);
  assert.deepEqual([...store.blobs.keys()], ['there']);
  await there.close();
  assert.deepEqual([...store.blobs.keys()], []);
});

test('hosts meet in etcd', { skip: withoutEtcd }, async () => {
  await using etcd = await runEtcd();
  await using here = await open('here');
  await using there = await open('there');
  await there.publishMetadata(etcdMetadataStore({ endpoint: etcd.endpoint }));
  assert.equal(await here.loadPublished(etcdMetadataStore({ endpoint: etcd.endpoint }), 'there'), 'there');
  await writeTo(there, here);
});

test('requests, memory and peers are released, and not before what uses them', async () => {
  await using here = await open('here');
  await using there = await open('there');
  const source = await here.allocate(64);
  const data = await there.allocate(64);
  await here.addRemoteAgent(await there.getMetadata());
  const descs = there.serializeXferDescs({ memory: data });
  const request = await here.createWriteReq({ memory: source }, descs, 'there');
  const handle = await here.createGpuReq(request);
  const refused = { code: 'WL_INVALID_ARGUMENT', message: /used by request 0 to there/ };
  await assert.rejects(here.deregisterVram(source), refused);
  await assert.rejects(here.removeRemoteAgent('there'), refused);
  await here.releaseWriteReq(request);
  const gone = { code: 'WL_INVALID_ARGUMENT' };
  assert.throws(() => here.kernelApi.put(handle, { target: 0, source: 0, bytes: 8 }), gone);
  await assert.rejects(here.releaseWriteReq(request), gone);
  await assert.rejects(here.createGpuReq(request), gone);
  await assert.rejects(here.createGpuReq({ ...request }), gone);
  assert.equal(await here.removeRemoteAgent('there'), true);
  assert.equal(await here.removeRemoteAgent('there'), false);
  await assert.rejects(here.createWriteReq({ memory: source }, descs, 'there'), gone);
  await here.deregisterVram(source);
  await assert.rejects(here.read(source), gone);
  await assert.rejects(here.deregisterVram(source), gone);
  await writeTo(there, here, await here.addRemoteAgent(await there.getMetadata()));
});

test('more requests than a host can have at once follow each other', { timeout: 600_000 }, async () => {
  await using here = await open('here');
  await using there = await open('there');
  const source = await here.allocate(64);
  const data = await there.allocate(64);
  await here.addRemoteAgent(await there.getMetadata());
  const descs = there.serializeXferDescs({ memory: data });
  const create = () => here.createWriteReq({ memory: source }, descs, 'there');
  const open4096 = await Promise.all(Array.from({ length: MAX_DEVICE_REQUESTS }, create));
  await assert.rejects(create(), { code: 'WL_CAPACITY', message: /4096 requests, which is the most: release some/ });
  await Promise.all(open4096.map((request) => here.releaseWriteReq(request)));
  const last = await create();
  here.view(source).fill(3);
  const handle = await here.createGpuReq(last);
  here.kernelApi.put(handle, { target: 0, source: 0, bytes: 64 });
  await here.kernelApi.flush(handle);
  assert.ok(there.view(data).every((byte) => byte === 3));
});

test('options that are unknown or contradict each other are refused', async () => {
  const wrong = { code: 'WL_INVALID_ARGUMENT' };
  await assert.rejects(open('a', { queueCapcity: 4 } as object), { ...wrong, message: /did you mean queueCapacity/ });
  await assert.rejects(DeviceHost.create({ name: 'a' }), { ...wrong, message: /one device, or several/ });
  await assert.rejects(DeviceHost.create({ name: 'a', devices: [] }), { ...wrong, message: /at least one GPU/ });
  const notGpus = [device, device] as readonly object[] as readonly CudaDevice[];
  await assert.rejects(DeviceHost.create({ name: 'a', devices: notGpus }), { ...wrong, message: /GPUs only/ });
  await using host = await open('a');
  await assert.rejects(host.allocate(8, 3), { ...wrong, message: /Invalid deviceId: .*one of 0/ });
});

test('the service works without a host: its own queue, its own memory', async () => {
  const failures: unknown[] = [];
  const start = (name: string): ProxyService =>
    new ProxyService({ name, settings: readSettings(), token: '', onFailure: (error) => failures.push(error) });
  await using one = start('one');
  await using two = start('two');
  const capacity = 8;
  const memory = new SharedArrayBuffer(queueBytes(capacity));
  await one.call('serve', { memory, queues: 1, capacity });
  const source = await one.call('allocate', 4096);
  const target = await two.call('allocate', 4096);
  const peer = await one.call('addRemote', { metadata: await two.call('metadata') });
  const number = one.takeNumber();
  const remotes = [{ region: target.id, offset: 0, bytes: 4096 }];
  const path = await one.call('request', {
    number,
    region: source.id,
    offset: 0,
    bytes: 4096,
    peer,
    remotes,
    isSoleWriter: false,
  });
  assert.equal(path, 'local');
  new Uint8Array(viewAt(source.address, 4096)).fill(5);
  const writer = new CommandWriter(queuesIn(memory, 1, capacity)[0]!);
  writer.push({ ...emptyQueueCommand(), kind: queueCommandKinds.put, request: number, bytes: 4088 });
  writer.push({ ...emptyQueueCommand(), kind: queueCommandKinds.signal, request: number, target: 4088, low: 2 });
  one.wake();
  await until(() => writer.isDelivered(2));
  const bytes = new Uint8Array(viewAt(target.address, 4096));
  assert.ok(bytes.subarray(0, 4088).every((byte) => byte === 5));
  assert.equal(bytes[4088], 2);
  await one.releaseRequest(number);
  writer.push({ ...emptyQueueCommand(), kind: queueCommandKinds.signal, request: number, target: 4088, low: 2 });
  one.wake();
  await until(() => failures.length > 0);
  assert.match(String(failures[0]), /invalid command: request 0/);
});
