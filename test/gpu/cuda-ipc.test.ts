import assert from 'node:assert/strict';
import { fork } from 'node:child_process';
import { once } from 'node:events';
import { fileURLToPath } from 'node:url';
import { Tensor } from 'weftline';
import { gpuTest, noise } from './support/gpu.js';

const BYTES = 1 << 20;

gpuTest('another process reads and writes memory that was shared with it', async (device) => {
  using storage = device.allocateShared(BYTES);
  const tensor = new Tensor(storage, 'u8', [BYTES]);
  assert.ok((await tensor.toHost()).every((byte) => byte === 0));
  const values = noise(BYTES);
  await tensor.fromHost(values);
  const child = fork(fileURLToPath(new URL('processes/invert-peer-memory.js', import.meta.url)));
  child.send({ handle: device.exportMemory(storage), bytes: BYTES });
  const [reply] = (await once(child, 'message')) as [{ readonly ok: boolean }];
  assert.deepEqual(reply, { ok: true });
  const [code] = (await once(child, 'exit')) as [number];
  assert.equal(code, 0);
  assert.ok(Buffer.from(await tensor.toHost()).equals(values.map((byte) => byte ^ 0xff)));
});

gpuTest('a handle that is none is refused', async (device) => {
  assert.throws(() => device.openPeerMemory('AAAA', 16), { code: 'WL_PROTOCOL' });
  assert.throws(() => device.openPeerMemory(Buffer.alloc(64).toString('base64'), 16), {
    code: 'WL_CUDA',
    message: /^cuIpcOpenMemHandle \(mapping the memory of another process\) failed/,
  });
});
