// Agents, endpoints and transports take bytes as callers may hold them: from a pool, at an odd offset, in shared memory.
import assert from 'node:assert/strict';
import test from 'node:test';
import { CpuDevice } from 'weftline';
import { DeviceHost } from 'weftline/device-api';
import { Agent, DescriptorList, Endpoint } from 'weftline/agent';
import { Transport } from 'weftline/transport';
import { backendNames } from '#lib/agent/backends/backend-table.js';
import { emptyShapes, shapesOf } from '../unit/support/byte-shapes.ts';
import { whyMissing } from './support/missing-backend.ts';

const COUNT = 1000;
const values = Uint8Array.from({ length: COUNT }, (_, index) => index * 7 + 1);

for (const backend of backendNames) {
  const skip = (await whyMissing(backend)) ?? false;

  test(`${backend}: metadata, messages and registered memory of any shape`, { skip }, async () => {
    const options = { backends: [backend], token: 'secret' };
    await using b = await Agent.create('b', options);
    const target = await b.allocate(COUNT);
    const blob = b.localMetadata();
    for (const [index, { shape, bytes }] of shapesOf(blob).entries()) {
      await using a = await Agent.create(`a${index}`, options);
      await a.loadRemoteMetadata(bytes);
      bytes.fill(0xee);
      assert.equal(await a.connect('b'), backend, shape);
      const [remote] = a.remoteMemory('b');
      assert.ok(remote);
      for (const [number, source] of shapesOf(values).entries()) {
        target.bytes.fill(0);
        const out = await a.register(source.bytes);
        const into = emptyShapes(COUNT)[number]?.bytes as Uint8Array;
        const back = await a.register(into);
        const common = { peer: 'b', remote: DescriptorList.of(remote) } as const;
        await using write = await a.prepare({ ...common, operation: 'write', local: DescriptorList.of(out) });
        const message = shapesOf(Buffer.from(`written from ${source.shape}`))[number]?.bytes as Uint8Array;
        write.post(message);
        message.fill(0);
        await write.wait();
        const news = await b.nextNotification();
        assert.equal(Buffer.from(news.message).toString(), `written from ${source.shape}`);
        assert.deepEqual(new Uint8Array(target.bytes), values, source.shape);
        await using read = await a.prepare({ ...common, operation: 'read', local: DescriptorList.of(back) });
        read.post();
        await read.wait();
        assert.deepEqual(new Uint8Array(into), values, source.shape);
        await a.notify('b', shapesOf(values.subarray(0, 30))[number]?.bytes as Uint8Array);
        assert.deepEqual(new Uint8Array((await b.nextNotification()).message), values.subarray(0, 30), source.shape);
      }
    }
  });

  test(`${backend}: memory of the peer that is of any shape`, { skip }, async () => {
    const options = { backends: [backend], token: 'secret' };
    await using a = await Agent.create('a', options);
    await using b = await Agent.create('b', options);
    const out = await a.allocate(COUNT);
    out.bytes.set(values);
    for (const { shape, bytes } of emptyShapes(COUNT)) {
      const registered = await b.register(bytes, { name: shape });
      await a.loadRemoteMetadata(b.localMetadata());
      const remote = a.remoteMemory('b').find(({ name }) => name === shape);
      assert.ok(remote);
      const lists = { local: DescriptorList.of(out), remote: DescriptorList.of(remote) };
      await using write = await a.prepare({ operation: 'write', peer: 'b', ...lists });
      write.post();
      await write.wait();
      assert.deepEqual(new Uint8Array(bytes), values, shape);
      await registered.close();
    }
  });
}

test('memory of endpoints', async () => {
  const server = await Endpoint.create({ backends: ['local'] });
  const client = await Endpoint.create({ backends: ['local'] });
  const accepted = server.accept();
  const there = await client.connect('127.0.0.1', server.port);
  const here = await accepted;
  const targets = emptyShapes(COUNT);
  for (const [index, { shape, bytes }] of shapesOf(values).entries()) {
    const into = targets[index]?.bytes as Uint8Array;
    const received = here.recv({ region: await server.register(into) });
    await there.send({ region: await client.register(bytes) }).wait();
    assert.equal(await received.wait(), COUNT);
    assert.deepEqual(new Uint8Array(into), values, shape);
  }
  await client.close();
  await server.close();
});

test('memory of transports', async () => {
  const a = await Transport.create({ name: 'a' });
  const b = await Transport.create({ name: 'b' });
  const listener = await b.listen({ host: '127.0.0.1', port: 0 });
  const accepted = listener.accept();
  const there = await a.connect({ host: '127.0.0.1', port: listener.port });
  const here = await accepted;
  const targets = emptyShapes(COUNT);
  for (const [index, { shape, bytes }] of shapesOf(values).entries()) {
    const into = targets[index]?.bytes as Uint8Array;
    const received = here.receive({ region: await b.register(into) });
    await a.wait(there.send({ region: await a.register(bytes) }));
    assert.equal(await b.wait(received), COUNT);
    assert.deepEqual(new Uint8Array(into), values, shape);
  }
  listener.close();
  await a.close();
  await b.close();
});

test('metadata and memory of device hosts', async () => {
  const device = await CpuDevice.create();
  const create = (name: string): Promise<DeviceHost> => DeviceHost.create({ name, device, timeoutMs: 120_000 });
  await using one = await create('one');
  await using two = await create('two');
  const memory = await one.allocate(COUNT);
  for (const { shape, bytes } of shapesOf(values)) {
    await one.write(memory, bytes);
    bytes.fill(0);
    assert.deepEqual(new Uint8Array(await one.read(memory)), values, shape);
  }
  for (const { bytes } of shapesOf(await two.getMetadata())) {
    assert.equal(await one.addRemoteAgent(bytes), 'two');
    bytes.fill(0xee);
  }
});
