// Memory of tensors that is registered stays its owner's, although nothing else in the program holds the tensor.
import assert from 'node:assert/strict';
import { EventEmitter, once } from 'node:events';
import test from 'node:test';
import { CpuDevice, Tensor, toBf16 } from 'weftline';
import { Agent } from 'weftline/agent';
import { Communicator } from 'weftline/collectives';
import { EPAll2AllLayer, EpBuffer, EpLowLatency } from 'weftline/ep';
import { Transport } from 'weftline/transport';
import { join, type World } from 'weftline/world';
import { createBackend } from '#lib/agent/backends/local/local-backend.js';
import { AbandonedMemory } from '#lib/device/abandoned-memory.js';
import { hostMemory, openBackend } from './support/backend-context.ts';

const BYTES = 1 << 20;

/** Runs a full garbage collection, and the callbacks of what it collected. */
function collect(): Promise<void> {
  return new AbandonedMemory({ release: () => {}, bytesInUse: () => 0 }).reclaim();
}

/** The tensor is nobody's when this returns but what `register` has made of it. */
async function registerOne<T>(
  device: CpuDevice,
  register: (tensor: ReturnType<CpuDevice['empty']>) => Promise<T>,
): Promise<T> {
  return register(device.empty('u8', [BYTES]));
}

test('a tensor that nobody holds is collected', async () => {
  const device = await CpuDevice.create();
  await registerOne(device, async () => undefined);
  await collect();
  assert.equal(device.space.used, 0);
});

test('a transport holds the tensors that are registered with it, until they are released', async () => {
  const device = await CpuDevice.create();
  await using transport = await Transport.create({ settings: { transportThread: false } });
  const region = await registerOne(device, (tensor) => transport.register(tensor));
  await collect();
  assert.ok(device.space.used >= BYTES, `${device.space.used} bytes of tensors are in use`);
  await region.close();
});

test('an agent holds the tensors that are registered with it, until they are deregistered', async () => {
  const device = await CpuDevice.create();
  await using agent = await Agent.create('holder', { backends: ['local'] });
  const registration = await registerOne(device, (tensor) => agent.register(tensor));
  await collect();
  assert.ok(device.space.used >= BYTES, `${device.space.used} bytes of tensors are in use`);
  await registration.close();
});

test('a Communicator holds the tensors of messages until their group has ended', async () => {
  const world = await join({ environment: {} });
  const device = await CpuDevice.create();
  const communicator = await Communicator.create(world, device);
  const { used } = device.space;
  const received = device.empty('u8', [BYTES]);
  communicator.groupStart();
  await registerOne(device, (tensor) => {
    device.hostView('u8', tensor.address, tensor.bytes).fill(7);
    return communicator.send({ input: tensor, peer: 0 });
  });
  await communicator.recv({ output: received, peer: 0 });
  await collect();
  // What is made now would get the memory.
  const others = Array.from({ length: 4 }, () => device.empty('u8', [BYTES]));
  for (const other of others) other.view().fill(1);
  await communicator.groupEnd();
  assert.ok(received.view().every((byte) => byte === 7));
  for (const other of others) other.close();
  received.close();
  await collect();
  assert.ok(device.space.used <= used, `${device.space.used - used} bytes of tensors are in use`);
  await communicator.close();
  await world.close();
});

const [TOKENS, HIDDEN, EXPERTS] = [8, 64, 4];

interface Step {
  /** Every tensor that its calls returned, but the sums. */
  readonly shown: readonly unknown[];
  readonly sums: Tensor<'bf16'>;
}

/** Values of an object's fields and getters. */
function fieldsOf(one: object): unknown[] {
  const names = Object.getOwnPropertyNames(Object.getPrototypeOf(one)).filter((name) => name !== 'constructor');
  return [...Object.values(one), ...names.map((name): unknown => one[name as keyof typeof one])];
}

/** A step of each object of expert parallelism. `using` of what it returns must not take memory from the object. */
async function steppers(world: World, device: CpuDevice): Promise<Record<string, () => Promise<Step>>> {
  const ids = Int32Array.from({ length: TOKENS * 2 }, (_, at) => ((at >> 1) % 2) + (at % 2) * 2);
  const x = await device.tensor('bf16', [TOKENS, HIDDEN], new Uint16Array(TOKENS * HIDDEN).fill(toBf16(3)));
  const topkIdx = await device.tensor('i32', [TOKENS, 2], ids);
  const topkWeights = await device.tensor('f32', [TOKENS, 2], new Float32Array(TOKENS * 2).fill(0.5));
  const config = { maxTokensPerRank: TOKENS, hidden: HIDDEN, numExperts: EXPERTS, maxTopk: 2 };
  const buffer = await EpBuffer.create(world, device, config);
  const layerOptions = { maxTokensPerRank: TOKENS, hidden: HIDDEN, maxTopk: 2, numExperts: EXPERTS };
  const layer = await EPAll2AllLayer.create(world, device, { ...layerOptions, enableLocalCombine: true });
  const bounded = await EPAll2AllLayer.create(world, device, layerOptions);
  const lowLatency = await EpLowLatency.create(world, device, { ...config, combineTravels: 'choices' });
  const rankMajor = await EpLowLatency.create(world, device, { ...config, layout: 'rank-major' });
  const layerStep = async (of: EPAll2AllLayer, more: object): Promise<Step> => {
    const {
      recvX: output,
      recvTopkWeights: weights,
      handle,
    } = await of.dispatch({
      x,
      topkIdx,
      topkWeights,
      ...more,
    });
    const input = of.combineInput(handle);
    input.view().set(output.view());
    const sums = await of.combine({ x: input, handle });
    const shown = fieldsOf(handle).filter((one) => one !== topkIdx);
    return { shown: [output, weights, input, ...shown], sums };
  };
  const lowLatencyStep = async (
    of: EpLowLatency,
    weights: { atDispatch?: object; atCombine?: object },
  ): Promise<Step> => {
    const got = await of.dispatch({ x, topkIdx, dtype: 'bf16', ...weights.atDispatch });
    const y = await of.combineInput(got.handle);
    y.view().set(got.recvX.view());
    const { combinedX } = await of.combine({ x: y, handle: got.handle, ...weights.atCombine });
    return { shown: [y, ...Object.values(got), ...Object.values(got.handle)], sums: combinedX };
  };
  return {
    buffer: async () => {
      const got = await buffer.dispatch({ x, topkIdx, topkWeights });
      const y = buffer.combineInput(got.handle);
      y.view().set(got.recvX.view());
      const { combinedX } = await buffer.combine({ x: y, handle: got.handle });
      const { event: _event, handle, ...tensors } = got;
      return { shown: [y, ...Object.values(tensors), ...Object.values(handle)], sums: combinedX };
    },
    layer: () => layerStep(layer, {}),
    'bounded layer': () => layerStep(bounded, { numWorstTokens: TOKENS * 2 }),
    lowLatency: () => lowLatencyStep(lowLatency, { atCombine: { topkWeights } }),
    rankMajor: () => lowLatencyStep(rankMajor, { atDispatch: { topkWeights } }),
  };
}

test('disposing of what the calls of an object returned frees nothing of the object', async () => {
  const world = await join({ environment: {} });
  const device = await CpuDevice.create();
  for (const [name, step] of Object.entries(await steppers(world, device))) {
    const wanted = await (await step()).sums.toHost();
    const held = await step();
    const { used } = device.space;
    const tensors = held.shown.filter((one) => one instanceof Tensor);
    assert.ok(tensors.length > 2, name);
    for (const tensor of tensors) tensor.close();
    assert.equal(device.space.used, used, `${name}: bytes in use`);
    held.sums.close();
    assert.ok(device.space.used < used, `${name}: the sums are the caller's`);
    assert.deepEqual(await (await step()).sums.toHost(), wanted, name);
  }
  await world.close();
});

test('memory is not given back while a link that is being closed may still touch it', async () => {
  const a = await openBackend(createBackend, 'agent a');
  const b = await openBackend(createBackend, 'agent b');
  const region = await a.backend.register(hostMemory(new Uint8Array(new SharedArrayBuffer(64))));
  const link = await a.backend.connect(b.peer, { timeoutMs: 120_000 });
  const gpu = new EventEmitter();
  // As a channel does whose GPU still works.
  link.openChannel().close = async (): Promise<void> => void (await once(gpu, 'ended'));
  const closing = link.close();
  let isReleased = false;
  const releasing = region.release().then(() => (isReleased = true));
  await new Promise((resolve) => setImmediate(resolve));
  assert.equal(isReleased, false);
  gpu.emit('ended');
  await releasing;
  await closing;
  await a.backend.close();
  await b.backend.close();
});
