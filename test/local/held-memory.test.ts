// Memory of tensors that is registered stays its owner's, although nothing else in the program holds the tensor.
import assert from 'node:assert/strict';
import { EventEmitter, once } from 'node:events';
import test from 'node:test';
import { CpuDevice } from 'weftline';
import { Agent } from 'weftline/agent';
import { Communicator } from 'weftline/collectives';
import { Transport } from 'weftline/transport';
import { join } from 'weftline/world';
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
  await transport.release(region);
});

test('an agent holds the tensors that are registered with it, until they are deregistered', async () => {
  const device = await CpuDevice.create();
  await using agent = await Agent.create('holder', { backends: ['local'] });
  const registration = await registerOne(device, (tensor) => agent.register(tensor));
  await collect();
  assert.ok(device.space.used >= BYTES, `${device.space.used} bytes of tensors are in use`);
  await agent.deregister(registration);
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
  for (const other of others) other.dispose();
  received.dispose();
  await collect();
  assert.ok(device.space.used <= used, `${device.space.used - used} bytes of tensors are in use`);
  await communicator.close();
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
