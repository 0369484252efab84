// The device API on the CPU: a put and its signal, a word with its number. node device-api.mjs
import assert from 'node:assert/strict';
import { CpuDevice } from 'weftline';
import { DeviceHost } from 'weftline/device-api';

const device = await CpuDevice.create();
// 1. A host for each side: an agent, and a thread that serves the command queues. Both are in one process here.
const here = await DeviceHost.create({ name: 'here', device });
const there = await DeviceHost.create({ name: 'there', device });
try {
  // 2. Memory that may be read from and written to. registerVram(tensor) takes memory that you have.
  const source = await here.allocate(1024);
  const data = await there.allocate(1024);
  const counter = await there.allocate(32);
  // 3. Metadata travel by any means: a file, a socket, the store of a world.
  const peer = await here.addRemoteAgent(await there.getMetadata());
  // 4. So do the descriptors of what may be written.
  const dataDescs = there.serializeXferDescs({ memory: data });
  const counterDescs = there.serializeXferDescs({ memory: counter });
  // 5. Requests: from a local range to the peer's ranges. `path` says which way they go, and why.
  const write = await here.createWriteReq({ memory: source }, dataDescs, peer);
  const tell = await here.createWriteReq({ memory: source }, counterDescs, peer);
  console.log(`path: ${write.path}`);
  // 6. Handles for kernels.
  const [put, signal] = [await here.createGpuReq(write), await here.createGpuReq(tell)];

  here.view(source).fill(42);
  here.kernelApi.put(put, { target: 0, source: 0, bytes: 1024 });
  here.kernelApi.signal(signal, { target: 0, add: 1 });

  const word = new BigUint64Array(there.view(counter).buffer, there.view(counter).byteOffset, 1);
  await there.kernelApi.wait(word, 1);
  console.log(`the sum of the bytes is ${there.view(data).reduce((sum, byte) => sum + byte, 0)}`);
  assert.ok(there.view(data).every((byte) => byte === 42));

  // Eight bytes that must arrive soon: a word, with its number, in a cell of 16 bytes.
  here.kernelApi.putWord(signal, { target: 16, value: 43n, epoch: 1 });
  const cell = new BigUint64Array(word.buffer, word.byteOffset + 16, 2);
  const value = await there.kernelApi.waitWord(cell, 1);
  console.log(`the word is ${value}`);
  assert.equal(value, 43n);
} finally {
  await here.close();
  await there.close();
  await device.close();
}
