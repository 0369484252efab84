// Arguments that cannot be: an error that names them at once, instead of a wait in vain or other bytes than were meant.
import assert from 'node:assert/strict';
import test from 'node:test';
import { CpuDevice, openDevice } from 'weftline';
import { Communicator } from 'weftline/collectives';
import { DispatchCombineContext, EPAll2AllLayer, EpBuffer, EPConfig } from 'weftline/ep';
import { ExpertMover } from 'weftline/ep/placement';
import { join } from 'weftline/world';
import { Agent, Endpoint, fetchMetadata, MetadataListener } from 'weftline/agent';
import { Transport } from 'weftline/transport';

const host = '127.0.0.1';
const settings = { timeoutMs: 2000 };
const invalid = { code: 'WL_INVALID_ARGUMENT' };
/** What no timer can hold, or no clock can add. */
const noTimes: readonly unknown[] = [Number.NaN, -1, Number.POSITIVE_INFINITY, 2 ** 31, 2 ** 53, 'soon', {}, 1n];
const noPorts: readonly unknown[] = [Number.NaN, -1, 65_536, 1.5, '80', null, {}];
const noHosts: readonly unknown[] = [7, '', {}, true];

/** As a program without types would pass it. */
function as(value: unknown): never {
  return value as never;
}

test('a wait with an impossible timeout ends at once', async () => {
  await using transport = await Transport.create({ settings });
  using listener = await transport.listen({ host, port: 0 });
  await using endpoint = await Endpoint.create({ settings, backends: ['multipath'] });
  const { agent } = endpoint;
  // A listener that is closed: nobody answers there.
  const { port } = await (async () => {
    using closed = await transport.listen({ host, port: 0 });
    return { port: closed.port };
  })();
  for (const value of noTimes) {
    const timeoutMs = as(value);
    await assert.rejects(listener.accept({ timeoutMs }), invalid);
    await assert.rejects(transport.connect({ host, port }, { timeoutMs }), invalid);
    await assert.rejects(endpoint.accept({ timeoutMs }), invalid);
    await assert.rejects(endpoint.connect(host, port, { timeoutMs }), invalid);
    await assert.rejects(fetchMetadata(agent, { host, port, timeoutMs }), invalid);
  }
});

test('an invalid address fails at once, not at the deadline', async () => {
  await using transport = await Transport.create({ settings });
  await using endpoint = await Endpoint.create({ settings, backends: ['multipath'] });
  for (const value of noPorts) {
    const port = as(value);
    await assert.rejects(transport.connect({ host, port }), invalid);
    await assert.rejects(transport.listen({ host, port }), invalid);
    await assert.rejects(endpoint.connect(host, port), invalid);
    if (value !== null) await assert.rejects(MetadataListener.open(endpoint.agent, { port }), invalid);
  }
  await assert.rejects(transport.connect({ host, port: 0 }), invalid);
  for (const value of noHosts) {
    const wrong = as(value);
    await assert.rejects(transport.connect({ host: wrong, port: 1 }), invalid);
    await assert.rejects(transport.listen({ host: wrong, port: 0 }), invalid);
    await assert.rejects(endpoint.connect(wrong, 1), invalid);
    await assert.rejects(MetadataListener.open(endpoint.agent, { host: wrong }), invalid);
    await assert.rejects(Agent.create('a', { host: wrong, backends: [] }), invalid);
  }
});

test('a hello that JSON cannot express is told at once', async () => {
  await using transport = await Transport.create({ settings });
  using listener = await transport.listen({ host, port: 0 });
  const circle: { self?: unknown } = {};
  circle.self = circle;
  for (const hello of [1n, circle]) {
    await assert.rejects(transport.connect({ host, port: listener.port }, { hello }), invalid);
  }
});

test('an agent takes a text as its name, and bytes or a text as a message', async () => {
  for (const name of [undefined, null, 7, {}, Symbol('name'), 1n]) {
    await assert.rejects(Agent.create(as(name)), invalid);
  }
  await using a = await Agent.create('a', { settings, backends: ['multipath'] });
  await using b = await Agent.create('b', { settings, backends: ['multipath'] });
  await a.loadRemoteMetadata(b.localMetadata());
  for (const message of [[1, 2], undefined, null, 7, new ArrayBuffer(4)]) {
    await assert.rejects(a.notify('b', as(message)), invalid);
  }
  await a.notify('b', Uint8Array.of(7));
  assert.deepEqual([...(await b.nextNotification()).message], [7]);
  await a.notify('b', '7');
  assert.deepEqual([...(await b.nextNotification()).message], [0x37]);
});

test('a transport that was closed listens no more', async () => {
  const transport = await Transport.create({ settings });
  const begun = assert.rejects(transport.listen({ host, port: 0 }), { code: 'WL_CLOSED' });
  await transport.close();
  await begun;
  await assert.rejects(transport.listen({ host, port: 0 }), { code: 'WL_CLOSED' });
});

test('collective objects are made over ranks and a device, and nothing else', async () => {
  const [world, device] = [await join({ environment: {} }), await CpuDevice.create({ addressSpaceMiB: 16 })];
  const config = { maxTokensPerRank: 8, hidden: 8, numExperts: 1, maxTopk: 1 };
  const options = { maxTokens: 8, hidden: 8, topk: 1, numTotExperts: 1 };
  const epConfig = new EPConfig({ ...options, numExperts: 1, rank: 0, worldSize: 1, localWorldSize: 1 });
  for (const value of [undefined, null, {}, 7, 'ranks', []]) {
    const wrong = as(value);
    await assert.rejects(Communicator.create(wrong, device), invalid);
    await assert.rejects(Communicator.create(world, wrong), invalid);
    await assert.rejects(EpBuffer.create(wrong, device, config), invalid);
    await assert.rejects(EPAll2AllLayer.create(wrong, device, options), invalid);
    await assert.rejects(EPAll2AllLayer.create(world, device, wrong), invalid);
    await assert.rejects(DispatchCombineContext.create(wrong, device, epConfig), invalid);
    await assert.rejects(DispatchCombineContext.create(world, device, wrong), invalid);
    await assert.rejects(ExpertMover.create(wrong, device, wrong), invalid);
    await assert.rejects(openDevice('cpu', wrong), invalid);
    assert.throws(() => new EPConfig(wrong), invalid);
  }
  await using buffer = await EpBuffer.create(world, device, config);
  const x = device.empty('bf16', [1, 8]);
  const topkIdx = await device.tensor('i32', [1, 1], Int32Array.of(0));
  for (const previousEvent of [null, {}, 7, { wait: () => Promise.resolve() }]) {
    await assert.rejects(buffer.dispatch({ x, topkIdx, previousEvent: as(previousEvent) }), {
      ...invalid,
      message: /previousEvent/,
    });
  }
  await world.close();
});

test('deregistering something that is not registered harms nothing, and the agent still closes', async () => {
  const endpoint = await Endpoint.create({ settings, backends: ['multipath'] });
  for (const value of [undefined, null, 7, {}, new Uint8Array(8)]) {
    await assert.rejects(endpoint.agent.deregister(as(value)), invalid);
    await assert.rejects(endpoint.dereg(as(value)), invalid);
  }
  await endpoint.dereg(await endpoint.allocate(8));
  await endpoint.close();
});
