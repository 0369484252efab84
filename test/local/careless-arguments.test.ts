// Arguments that cannot be: an error that names them at once, instead of a wait in vain or other bytes than were meant.
import assert from 'node:assert/strict';
import test from 'node:test';
import { CpuDevice, openDevice } from 'weftline';
import { Communicator, SparseAllReduce } from 'weftline/collectives';
import { DispatchCombineContext, EPAll2AllLayer, EpBuffer, EPConfig, EpLowLatency } from 'weftline/ep';
import { ExpertMover, rebalanceExpertsAsync } from 'weftline/ep/placement';
import { join } from 'weftline/world';
import {
  Agent,
  DescriptorList,
  Endpoint,
  exchangeMetadata,
  fetchMetadata,
  loadPublished,
  MetadataListener,
  publishMetadata,
  sendInvalidation,
  sendMetadata,
  withdrawMetadata,
  worldMetadataStore,
} from 'weftline/agent';
import { bridgeOpenTelemetry } from 'weftline/metrics';
import { Transport } from 'weftline/transport';
import { SharedMemory } from '#lib/windows/shared-memory.js';

const host = '127.0.0.1';
const settings = { timeoutMs: 60_000 };
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

test('what is no request, no options and no region of a transport is named, and posts go on', async () => {
  await using transport = await Transport.create({ settings });
  using listener = await transport.listen({ host, port: 0 });
  const accepted = listener.accept();
  await using connection = await transport.connect({ host, port: listener.port });
  await accepted;
  await assert.rejects(listener.accept(as(255)), invalid);
  for (const value of [Object.create(null), 1n, Symbol('request'), '0', undefined, Number.NaN]) {
    const request = as(value);
    assert.throws(() => transport.state(request), invalid);
    assert.throws(() => transport.take(request), invalid);
    await assert.rejects(transport.wait(request), invalid);
    assert.throws(() => transport.waitBlocking(request), invalid);
    assert.throws(() => connection.cancel(request), invalid);
  }
  const region = await transport.register(new Uint8Array(64));
  for (const number of [BigInt(region.number), {}, Symbol('number'), region.number + 0.5, -1, 2 ** 32]) {
    assert.throws(() => connection.send({ region: as({ ...region, number }) }), invalid);
  }
  // Memory of the right number that claims to be longer is found by the engine, which knows how long it is.
  const longer = { ...region, bytes: new Uint8Array(128) };
  await assert.rejects(transport.wait(connection.send({ region: longer })), invalid);
  assert.equal(await transport.wait(connection.flush()), 0);
  assert.throws(() => SharedMemory.create('test', as(Object.create(null)), false), invalid);
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

test('an agent takes names, flags and signals of the kind that it says', async () => {
  for (const name of ['\u001b[31mred', Symbol('name'), Object.create(null)]) {
    await assert.rejects(Agent.create('a', { backends: as([name]) }), {
      code: 'WL_UNSUPPORTED',
      message: /^There is no backend ("\\u001b\[31mred"|Symbol\(name\)|\{\}|\[object Symbol\]): known are/,
    });
  }
  await assert.rejects(Agent.create('a', { ownThread: as('yes'), backends: ['local'] }), invalid);
  await using a = await Agent.create('a', { settings, backends: ['local'] });
  await using b = await Agent.create('b', { settings, backends: ['local'] });
  const memory = await b.allocate(64);
  await a.loadRemoteMetadata(b.localMetadata());
  const lists = { local: DescriptorList.of(await a.allocate(64)), remote: DescriptorList.of(a.remoteMemory('b')[0]!) };
  await assert.rejects(a.prepare({ operation: 'read', peer: 'b', ...lists, merge: as(1) }), invalid);
  await assert.rejects(a.prepare({ operation: 'read', peer: 'b', ...lists, bySelection: as(1) }), invalid);
  await using selected = await a.prepare({ operation: 'read', peer: 'b', ...lists, bySelection: true });
  for (const wrong of [
    null,
    1,
    [0],
    'x',
    {},
    { local: 7 },
    { local: ['0'] },
    { local: [0], remote: null },
    { local: [0], more: 1 },
  ]) {
    assert.throws(() => selected.post(undefined, as(wrong)), invalid);
  }
  assert.throws(() => b.localMetadata({ regions: [memory], connections: as('no') }), invalid);
  await assert.rejects(a.connect('b', { backend: as('\u001b[31mred') }), {
    code: 'WL_UNSUPPORTED',
    message: /no backend "\\u001b\[31mred"$/,
  });
  for (const from of [null, 7, {}, Symbol('b')]) {
    await assert.rejects(a.nextNotification({ from: as(from) }), invalid);
    assert.throws(() => a.nextNotificationBlocking({ from: as(from) }), invalid);
  }
  await assert.rejects(a.nextNotification({ from: '\u001b[31mred', timeoutMs: 0 }), {
    code: 'WL_TIMEOUT',
    message: 'No notification came to agent a from agent \\u001b[31mred within 0 ms',
  });
  for (const signal of [null, {}, 'abort']) {
    await assert.rejects(a.nextNotification({ signal: as(signal) }), invalid);
    assert.throws(() => a.nextNotificationBlocking(as({ signal })), invalid);
  }
});

test('a transport takes names, flags, offsets and options of the kind that it says', async () => {
  for (const name of [null, 7, Symbol('name'), '\u001b[31mred']) {
    await assert.rejects(Transport.create({ name: as(name) }), { ...invalid, message: /^Invalid name: / });
  }
  await using transport = await Transport.create({ settings });
  await assert.rejects(transport.listen(as({ host, port: 0, fd: 0 })), { ...invalid, message: /got "fd"/ });
  await assert.rejects(transport.listen({ host, port: 0 }, { receive: as('all') }), invalid);
  using listener = await transport.listen({ host, port: 0 });
  const { port } = listener;
  await assert.rejects(transport.connect(as({ host, port, timeoutMs: 5 })), { ...invalid, message: /got "timeoutMs"/ });
  await assert.rejects(transport.connect({ host, port }, { retry: as('no') }), invalid);
  await assert.rejects(transport.connect({ host: '\u001b[31mred', port }), {
    ...invalid,
    message: /"\\u001b\[31mred"$/,
  });
  await using connection = await transport.connect({ host, port });
  const region = await transport.register(new Uint8Array(64), { write: true });
  for (const offset of [1n, Symbol('offset'), Object.create(null)]) {
    assert.throws(() => connection.send({ region, offset: as(offset) }), { ...invalid, message: /^Invalid offset: / });
    assert.throws(() => connection.write({ region, ...region.remote, offset: as(offset) }), invalid);
  }
  for (const options of [null, 7, { timeout: 5 }, { signal: {} }]) {
    await assert.rejects(transport.wait(connection.flush(), as(options)), invalid);
  }
  for (const signal of [null, {}]) await assert.rejects(listener.accept({ signal: as(signal) }), invalid);
  for (const milliseconds of [Number.POSITIVE_INFINITY, Number.NaN, -1, 1n]) {
    assert.throws(() => transport.progress(as(milliseconds)), invalid);
  }
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
  const options = { maxTokensPerRank: 8, hidden: 8, maxTopk: 1, numExperts: 1 };
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

test('what an agent or a transport made ends with it, and can be closed after it', async () => {
  for (const backend of ['local', 'multipath'] as const) {
    const agent = await Agent.create('a', { settings, backends: [backend] });
    const [one, other] = [await agent.allocate(8), await agent.register(new Uint8Array(8))];
    await Promise.all([one.close(), agent.close(), agent.close()]);
    for (const memory of [one, other, other]) await memory.close();
    const closed = { code: 'WL_CLOSED', message: 'Agent a was closed' };
    for (const call of ['connect', 'explain', 'forget', 'notify', 'remoteMemory'] as const) {
      await assert.rejects(async () => agent[call]('b', as(call === 'notify' ? 'text' : undefined)), closed);
    }
  }
  // The close meets each stage of a connect: before its engine has answered, and while it tries again and again.
  for (const pause of [0, 1, 20]) {
    const transport = await Transport.create({ settings });
    const [one, other] = [await transport.register(new Uint8Array(8)), await transport.register(new Uint8Array(8))];
    // Nobody listens there, so that it would try until its deadline.
    const { port } = await (async () => {
      using closed = await transport.listen({ host, port: 0 });
      return { port: closed.port };
    })();
    const connecting = assert.rejects(transport.connect({ host, port }), { code: 'WL_CLOSED' });
    if (pause > 0) await new Promise((resolve) => setTimeout(resolve, pause));
    await Promise.all([one.close(), transport.close()]);
    for (const memory of [one, other, other]) await memory.close();
    await connecting;
  }
});

test('an endpoint that closes ends calls of accept()', async () => {
  const endpoint = await Endpoint.create({ settings, backends: ['local'] });
  const accepted = [endpoint.accept(), endpoint.accept({ signal: new AbortController().signal })];
  const outcomes = accepted.map((one) => assert.rejects(one, { code: 'WL_CLOSED' }));
  await endpoint.close();
  await Promise.all(outcomes);
});

test('closing a registration again harms nothing, also once its endpoint is closed', async () => {
  const endpoint = await Endpoint.create({ settings, backends: ['multipath'] });
  const [one, other] = [await endpoint.allocate(8), await endpoint.agent.allocate(8)];
  for (const memory of [one, one, other, other]) await memory.close();
  await endpoint.close();
  for (const memory of [one, other]) await memory.close();
});

test('waits of a world and of its store take their options by name, and nothing else', async () => {
  const world = await join({ environment: {} });
  const { store } = world;
  await store.set('key', Uint8Array.of(1));
  for (const value of [null, 7, 'soon', [], { timeoutMS: 5 }, { from: [0], form: [0] }]) {
    const options = as(value);
    await assert.rejects(world.barrier('b', options), invalid);
    await assert.rejects(world.allGather('g', 1, options), invalid);
    await assert.rejects(store.barrier('b', options), invalid);
    await assert.rejects(store.allGather('g', Uint8Array.of(1), options), invalid);
    await assert.rejects(store.get('key', options), invalid);
    await assert.rejects(store.getJson('key', options), invalid);
    await assert.rejects(store.wait(['key'], options), invalid);
  }
  for (const value of [null, 0, '0', {}]) await assert.rejects(store.get('key', { from: as(value) }), invalid);
  for (const value of [undefined, null, 0, 'key', {}]) await assert.rejects(store.wait(as(value)), invalid);
  const circle: { self?: unknown } = {};
  circle.self = circle;
  for (const [value, message] of [
    [1n, /value: expected a number: JSON cannot express a bigint, got 1n/],
    [{ list: [{ one: 1n }] }, /Invalid one: expected a number: JSON cannot express a bigint, got 1n/],
    [circle, /value: expected a value that JSON can/],
    [undefined, /value: expected a value that JSON can/],
    [() => {}, /value: expected a value that JSON can/],
  ] as const) {
    await assert.rejects(store.setJson('json', value), { ...invalid, message });
    await assert.rejects(world.allGather('g', value), { ...invalid, message });
  }
  await world.close();
});

test('what an EpBuffer, an EpLowLatency and a Communicator take beside tensors is checked', async () => {
  const [world, device] = [await join({ environment: {} }), await CpuDevice.create({ addressSpaceMiB: 64 })];
  const config = { maxTokensPerRank: 8, hidden: 128, numExperts: 1, maxTopk: 1 };
  const x = device.empty('bf16', [1, 128]);
  const topkIdx = await device.tensor('i32', [1, 1], Int32Array.of(0));
  await assert.rejects(EpBuffer.create(world, device, { ...config, hidden: as(128n) }), {
    ...invalid,
    message: /hidden: expected a number/,
  });
  const buffer = await EpBuffer.create(world, device, config);
  for (const value of [undefined, null, {}, { topkidx: topkIdx }]) {
    assert.throws(() => buffer.getDispatchLayout(as(value)), invalid);
  }
  for (const value of [null, 0, '', Number.NaN, false]) {
    await assert.rejects(buffer.dispatch({ x, topkIdx, topkWeights: as(value) }), invalid);
    await assert.rejects(buffer.dispatch({ x, topkIdx, layout: as(value) }), invalid);
  }
  const { handle } = await buffer.dispatch({ x, topkIdx });
  const y = buffer.combineInput(handle);
  for (const value of [null, 0, '', Number.NaN, false]) {
    await assert.rejects(buffer.combine({ x: y, handle, topkWeights: as(value) }), invalid);
    await assert.rejects(buffer.combine({ x: y, handle, out: as(value) }), invalid);
  }
  await assert.rejects(buffer.combine({ x: y, handle, asyncFinish: as('yes') }), {
    ...invalid,
    message: /asyncFinish: expected true or false, got "yes"/,
  });
  await buffer.combine({ x: y, handle });
  for (const value of [null, 7, { timeoutMS: 1 }]) await assert.rejects(buffer.barrier(as(value)), invalid);
  await buffer.barrier();
  await buffer.close();

  for (const value of [undefined, null, {}, 7]) {
    await assert.rejects(EpLowLatency.create(as(value), device, config), { ...invalid, message: /group: expected a/ });
  }
  const communicator = await Communicator.create(world, device);
  const tensor = device.empty('f32', [4]);
  for (const value of [null, 7, { timeoutMS: 1 }])
    await assert.rejects(communicator.register(tensor, as(value)), invalid);
  await communicator.allReduce({ output: tensor });
  await communicator.close();
  await device.close();
  await world.close();
});

test('names of memory are texts, and a wrong one leaves nothing behind', async () => {
  const server = await Endpoint.create({ settings, backends: ['multipath'] });
  const client = await Endpoint.create({ settings, backends: ['multipath'] });
  for (const name of [null, 7, {}, Symbol('name')]) {
    await assert.rejects(client.register(new Uint8Array(8), as(name)), {
      ...invalid,
      message: /name: expected a string/,
    });
    await assert.rejects(client.allocate(8, as(name)), invalid);
  }
  const into = await server.allocate(64, 'into');
  const [there] = await Promise.all([client.connect(host, server.port), server.accept()]);
  for (const name of [undefined, null, 7, {}]) await assert.rejects(there.memory(as(name)), invalid);
  const out = await client.allocate(64);
  for (const remote of [undefined, null, {}, into, []]) {
    assert.throws(() => there.write({ region: out }, as(remote)), {
      ...invalid,
      message: /remote: expected a Descriptor/,
    });
    assert.throws(() => there.read({ region: out }, as(remote)), invalid);
  }
  for (const regions of [null, {}, [undefined], [null], ['out']]) {
    assert.throws(() => client.agent.localMetadata({ regions: as(regions) }), invalid);
    assert.throws(() => client.agent.localMetadata({ withdrawn: as(regions) }), invalid);
  }
  await client.close();
  await server.close();
});

test('memory of a transport is what register() returned, and peers may do with it what it names', async () => {
  await using transport = await Transport.create({ settings });
  const memory = new Uint8Array(64);
  for (const remote of [null, 7, { reads: true }, { read: 'yes' }, { write: 1 }, { read: () => {} }]) {
    await assert.rejects(transport.register(memory, as(remote)), invalid);
  }
  const region = await transport.register(memory);
  for (let again = 0; again < 2; again++) await region.close();
  for (const address of [undefined, null, 80, 'localhost'])
    await assert.rejects(transport.listen(as(address)), invalid);
  using listener = await transport.listen({ host, port: 0 });
  const [connection] = await Promise.all([transport.connect({ host, port: listener.port }), listener.accept()]);
  for (const part of [undefined, null, {}, { region: {} }, { region: memory }, { region: null }]) {
    const message = /region: expected what transport\.register\(\) returned/;
    assert.throws(() => connection.send(as(part)), { ...invalid, message });
    assert.throws(() => connection.receive(as(part)), { ...invalid, message });
    assert.throws(() => connection.write(as(part)), invalid);
    assert.throws(() => connection.read(as(part)), invalid);
  }
  await transport.wait(connection.flush());
});

test('lists of descriptors are made of registered memory and of each other', async () => {
  await using agent = await Agent.create('a', { settings, backends: ['multipath'] });
  const memory = await agent.allocate(64);
  const list = DescriptorList.of(memory);
  for (const offset of [1n, Symbol('offset'), Object.create(null)]) {
    assert.throws(() => DescriptorList.of(memory, as(offset)), { ...invalid, message: /^Invalid range: / });
  }
  for (const value of [undefined, null, {}, 7, [], new Uint8Array(8)]) {
    const wrong = as(value);
    const named = { ...invalid, message: /memory: expected what register\(\) or allocate\(\) returned/ };
    assert.throws(() => DescriptorList.of(wrong), named);
    assert.throws(() => DescriptorList.of(wrong, 0, 8), named);
    assert.throws(() => DescriptorList.blocks(wrong, { blockBytes: 8 }), named);
    assert.throws(() => DescriptorList.join(wrong), invalid);
    assert.throws(() => DescriptorList.join([list, wrong]), invalid);
    assert.throws(() => list.concat(wrong), { ...invalid, message: /other: expected a DescriptorList/ });
    assert.throws(() => new DescriptorList('host', wrong, Float64Array.of(8)), invalid);
    assert.throws(() => agent.explain('nobody', wrong), { code: 'WL_INVALID_ARGUMENT' });
    if (!Array.isArray(value) && !ArrayBuffer.isView(value)) assert.throws(() => list.select(wrong), invalid);
    if (!ArrayBuffer.isView(value)) assert.throws(() => DescriptorList.decode(wrong), invalid);
  }
  assert.throws(() => new DescriptorList(as('gpu'), Float64Array.of(8), Float64Array.of(8)), invalid);
  for (const name of ['blockBytes', 'stride', 'offset', 'count']) {
    for (const value of [1n, '8', null, Number.NaN, {}]) {
      const options = as({ blockBytes: 8, [name]: value });
      assert.throws(() => DescriptorList.blocks(memory, options), {
        ...invalid,
        message: /blocks: expected whole numbers/,
      });
    }
  }
  await using peer = await Agent.create('b', { settings, backends: ['multipath'] });
  await peer.allocate(64);
  await agent.loadRemoteMetadata(peer.localMetadata());
  const remote = DescriptorList.of(agent.remoteMemory('b')[0]!);
  const lists = { operation: 'write', peer: 'b', local: list, remote } as const;
  for (const value of [undefined, null, {}, memory, [list]]) {
    await assert.rejects(agent.prepare({ ...lists, local: as(value) }), {
      ...invalid,
      message: /local: expected a Desc/,
    });
    await assert.rejects(agent.prepare({ ...lists, remote: as(value) }), {
      ...invalid,
      message: /remote: expected a Desc/,
    });
    assert.throws(() => agent.explain('b', { local: as(value), remote }), invalid);
  }
});

test('calls for metadata take an agent, and a store of metadata', async () => {
  await using agent = await Agent.create('a', { settings, backends: [] });
  const store = {
    put: () => Promise.resolve(),
    get: () => Promise.resolve(new Uint8Array(1)),
    delete: () => Promise.resolve(),
  };
  const address = { host, port: 1 };
  for (const value of [undefined, null, {}, 'a', store]) {
    const wrong = as(value);
    const named = { ...invalid, message: /agent: expected an agent of Agent\.create\(\)/ };
    await assert.rejects(sendMetadata(wrong, address), named);
    await assert.rejects(fetchMetadata(wrong, address), named);
    await assert.rejects(exchangeMetadata(wrong, address), named);
    await assert.rejects(sendInvalidation(wrong, address), named);
    await assert.rejects(MetadataListener.open(wrong), named);
    await assert.rejects(publishMetadata(wrong, store), named);
    await assert.rejects(loadPublished(wrong, store, 'b'), named);
    await assert.rejects(withdrawMetadata(wrong, store), named);
    if (value === store) continue;
    await assert.rejects(publishMetadata(agent, wrong), { ...invalid, message: /store: expected a store of metadata/ });
    await assert.rejects(loadPublished(agent, wrong, 'b'), invalid);
    await assert.rejects(withdrawMetadata(agent, wrong), invalid);
    assert.throws(() => worldMetadataStore(wrong), { ...invalid, message: /store: expected world\.store/ });
  }
  for (const name of [undefined, null, 7]) await assert.rejects(loadPublished(agent, store, as(name)), invalid);
  await assert.rejects(MetadataListener.open(agent, {}, as('loaded')), invalid);
  await using transport = await Transport.create({ settings });
  for (const value of [undefined, null, 80]) await assert.rejects(transport.connect(as(value)), invalid);
  for (const meter of [null, 7, {}]) assert.throws(() => bridgeOpenTelemetry({ meter: as(meter) }), invalid);
  for (const tracer of [null, 7, {}]) assert.throws(() => bridgeOpenTelemetry({ tracer: as(tracer) }), invalid);
});

test('waits of an endpoint and for a plan refuse what is no AbortSignal', async () => {
  await using one = await Endpoint.create({ settings, backends: ['local'] });
  await using other = await Endpoint.create({ settings, backends: ['local'] });
  const [there, here] = await Promise.all([one.connect(host, other.port), other.accept()]);
  const received = here.recv({ region: await other.allocate(8) });
  for (const value of [null, 'soon', {}, new AbortController()]) {
    const wait = { timeoutMs: 0, signal: as(value) };
    await assert.rejects(one.accept(wait), { ...invalid, message: /^Invalid signal: / });
    await assert.rejects(there.memory('none', wait), { ...invalid, message: /^Invalid signal: / });
    await assert.rejects(received.wait(wait), { ...invalid, message: /^Invalid signal: / });
    const plan = rebalanceExpertsAsync([[1, 1]], { replicas: 2, ranks: 1 }, wait);
    await assert.rejects(plan, { ...invalid, message: /^Invalid signal: / });
  }
});

test('what is no AbortSignal ends no wait, and is refused before the wait begins', async () => {
  const [world, device] = [await join({ environment: {} }), await CpuDevice.create({ addressSpaceMiB: 64 })];
  const config = { maxTokensPerRank: 8, hidden: 128, numExperts: 1, maxTopk: 1 };
  const buffer = await EpBuffer.create(world, device, config);
  const communicator = await Communicator.create(world, device);
  const sparse = await SparseAllReduce.create(world, device);
  const output = device.empty('f32', [4]);
  const refused = { ...invalid, message: /Invalid signal: expected an AbortSignal, got / };
  for (const value of [null, 'soon', {}, new AbortController()]) {
    const wait = { signal: as(value) };
    await assert.rejects(world.barrier('b', wait), refused);
    await assert.rejects(world.store.get('key', wait), refused);
    await assert.rejects(EpBuffer.create(world, device, config, wait), refused);
    await assert.rejects(EpLowLatency.create(world, device, config, wait), refused);
    await assert.rejects(EPAll2AllLayer.create(world, device, { ...config, ...wait }), refused);
    await assert.rejects(Communicator.create(world, device, wait), refused);
    await assert.rejects(SparseAllReduce.create(world, device, wait), refused);
    await assert.rejects(buffer.barrier(wait), refused);
    await assert.rejects(communicator.allReduce({ output, ...wait }), refused);
    await assert.rejects(communicator.register(output, wait), refused);
    await assert.rejects(sparse.allReduce({ output, ...wait }), refused);
  }
  await communicator.allReduce({ output });
  for (const one of [buffer, communicator, sparse, world]) await one.close();
});

test('an option of an EpBuffer that is undefined is one that is left out', async () => {
  const [world, device] = [await join({ environment: {} }), await CpuDevice.create({ addressSpaceMiB: 64 })];
  const config = { maxTokensPerRank: 8, hidden: 128, numExperts: 1, maxTopk: 1 };
  const none = as(undefined);
  const left = { combineRows: none, combinePrecision: none, numRdmaBytes: none, numSms: none };
  await using buffer = await EpBuffer.create(world, device, config);
  await using other = await EpBuffer.create(world, device, { ...config, ...left });
  assert.deepEqual(other.config, buffer.config);
  assert.equal(other.config.combineRows, 'separate');
  await world.close();
});

test('a bias is out itself or apart from it: rows that were written would be added', async () => {
  const [world, device] = [await join({ environment: {} }), await CpuDevice.create({ addressSpaceMiB: 64 })];
  await using buffer = await EpBuffer.create(world, device, {
    maxTokensPerRank: 8,
    hidden: 128,
    numExperts: 1,
    maxTopk: 1,
  });
  const topkIdx = await device.tensor('i32', [2, 1], Int32Array.of(0, 0));
  const { recvX: x, handle } = await buffer.dispatch({ x: device.empty('bf16', [2, 128]), topkIdx });
  const three = device.empty('bf16', [3, 128]);
  const [first, last, elsewhere] = [three.slice(0, 2), three.slice(1, 3), device.empty('bf16', [2, 128])];
  const refused = {
    ...invalid,
    message: /bias\[\d\]: expected the same tensor as out, .* got "a tensor that overlaps/,
  };
  await assert.rejects(buffer.combine({ x, handle, bias: first, out: last }), refused);
  await assert.rejects(buffer.combine({ x, handle, bias: [elsewhere, last], out: first }), refused);
  const { combinedX } = await buffer.combine({ x, handle, bias: [first, elsewhere], out: three.slice(0, 2) });
  assert.equal(combinedX.address, first.address);
  await world.close();
});

test('a combine of a layer that is given an out which is no tensor fails, and returns no such thing', async () => {
  const [world, device] = [await join({ environment: {} }), await CpuDevice.create({ addressSpaceMiB: 64 })];
  const options = { maxTokensPerRank: 8, hidden: 8, maxTopk: 1, numExperts: 1 };
  await using layer = await EPAll2AllLayer.create(world, device, options);
  const topkIdx = await device.tensor('i32', [1, 1], Int32Array.of(0));
  const { recvX: x, handle } = await layer.dispatch({ x: device.empty('bf16', [1, 8]), topkIdx });
  for (const out of [null, 0, '', Number.NaN, false]) {
    await assert.rejects(layer.combine({ x, handle, out: as(out) }), { ...invalid, message: /out: expected a bf16/ });
  }
  await world.close();
});

test('a layer, its context and its stages take their options by name, and flags that are flags', async () => {
  const [world, device] = [await join({ environment: {} }), await CpuDevice.create({ addressSpaceMiB: 64 })];
  const options = { maxTokensPerRank: 8, hidden: 8, maxTopk: 1, numExperts: 1 };
  const ofConfig = { ...options, rank: 0, worldSize: 1, localWorldSize: 1 };
  for (const wrong of [{ enableLocalCombine: 'no' }, { keepDispatchOutput: 0 }, { useAot: null }, { capacity: '3' }]) {
    const message = new RegExp(`${Object.keys(wrong)[0]}: expected`);
    await assert.rejects(EPAll2AllLayer.create(world, device, { ...options, ...(wrong as object) }), {
      ...invalid,
      message,
    });
  }
  for (const wrong of [{ tokenDtpye: 'f32' }, { dtype: 'f32' }, { keepDispatchOutput: 'no' }]) {
    assert.throws(() => new EPConfig({ ...ofConfig, ...(wrong as object) }), invalid);
  }
  const epConfig = new EPConfig(ofConfig);
  await using layer = await EPAll2AllLayer.create(world, device, options);
  const topkIdx = await device.tensor('i32', [1, 1], Int32Array.of(0));
  const staged = await layer.preprocess({ x: device.empty('bf16', [1, 8]), topkIdx });
  const wrongWaits = [null, 7, { timeoutMS: 1 }, { timeoutMs: -1 }, { signal: 'soon' }];
  for (const wait of wrongWaits) {
    await assert.rejects(DispatchCombineContext.create(world, device, epConfig, as(wait)), invalid);
    await assert.rejects(layer.initOutputBuffer(staged, as(wait)), invalid);
  }
  await layer.initOutputBuffer(staged);
  for (const wait of wrongWaits) await assert.rejects(layer.dispatchToken(staged, as(wait)), invalid);
  await layer.dispatchToken(staged);
  await layer.dispatchPostprocess(staged);
  for (const wait of wrongWaits.slice(0, 3)) {
    await assert.rejects(layer.context.reallocateDispatchOutputBuf(1, as(wait)), invalid);
  }
  await assert.rejects(layer.barrier({ intraNodeOnly: as('no') }), { ...invalid, message: /intraNodeOnly/ });
  await layer.barrier();
  await world.close();
});

function gone(name: string): object {
  const message = new RegExp(`${name}: expected one that lives .* ended, got "a closed tensor"`);
  return { ...invalid, message };
}

test('what a later part of a call would write to or send lives until then, or the part fails', async () => {
  const [world, device] = [await join({ environment: {} }), await CpuDevice.create({ addressSpaceMiB: 64 })];
  const config = { maxTokensPerRank: 8, hidden: 128, numExperts: 1, maxTopk: 1 };
  const [x, topkIdx] = [device.empty('bf16', [1, 128]), await device.tensor('i32', [1, 1], Int32Array.of(0))];
  const byHook = async (lasting: 'out' | 'cumulativeLocalExpertRecvStats' | 'waitStats'): Promise<void> => {
    await using object = await EpLowLatency.create(world, device, { ...config, combineTravels: 'choices' });
    const given = {
      out: device.empty('bf16', [1, 8, 128]),
      cumulativeLocalExpertRecvStats: device.empty('i32', [1]),
      waitStats: device.empty('i64', [1]),
    };
    const { hook } = await object.dispatch({ x, topkIdx, dtype: 'bf16', returnRecvHook: true, ...given });
    given[lasting].close();
    await assert.rejects(hook(), gone(lasting));
  };
  for (const lasting of ['out', 'cumulativeLocalExpertRecvStats', 'waitStats'] as const) await byHook(lasting);
  for (const lasting of ['out', 'topkWeights', 'waitStats'] as const) {
    await using object = await EpLowLatency.create(world, device, { ...config, combineTravels: 'choices' });
    const { recvX, handle } = await object.dispatch({ x, topkIdx, dtype: 'bf16' });
    const given = {
      out: device.empty('bf16', [1, 128]),
      topkWeights: device.empty('f32', [1, 1]),
      waitStats: device.empty('i64', [1]),
    };
    const { hook } = await object.combine({ x: recvX, handle, returnRecvHook: true, ...given });
    given[lasting].close();
    await assert.rejects(hook(), gone(lasting));
  }
  await using layer = await EPAll2AllLayer.create(world, device, config);
  for (const lasting of ['x', 'topkIdx', 'topkWeights'] as const) {
    const given = {
      x: device.empty('bf16', [1, 128]),
      topkIdx: await device.tensor('i32', [1, 1], Int32Array.of(0)),
      topkWeights: device.empty('f32', [1, 1]),
    };
    const staged = await layer.preprocess(given);
    await layer.initOutputBuffer(staged);
    given[lasting].close();
    await assert.rejects(layer.dispatchToken(staged), gone(lasting));
  }
  await layer.dispatch({ x, topkIdx });
  await world.close();
});

test('workers of a SparseAllReduce are refused by their name, and so is what serve() does not take', async () => {
  const [world, device] = [await join({ environment: {} }), await CpuDevice.create({ addressSpaceMiB: 64 })];
  for (const workers of [[0, 0], [], [1], 0, null]) {
    await assert.rejects(SparseAllReduce.create(world, device, { workers: as(workers) }), {
      ...invalid,
      message: /Invalid workers: expected one or more ranks of the group/,
    });
  }
  const sparse = await SparseAllReduce.create(world, device);
  for (const options of [null, 7, { timeoutMs: 5 }, { sginal: undefined }, { signal: 'soon' }]) {
    await assert.rejects(async () => sparse.serve(as(options)), { ...invalid, message: /options of serve|signal/ });
  }
  await sparse.close();
  await world.close();
});
