import assert from 'node:assert/strict';
import { fork } from 'node:child_process';
import { once } from 'node:events';
import { fileURLToPath } from 'node:url';
import { Agent, DescriptorList } from 'weftline/agent';
import { gpuTest, noise } from './support/gpu.js';

const BYTES = 3 << 20;

function sum(values: Uint8Array): number {
  return values.reduce((total, value) => total + value, 0);
}

gpuTest(
  'an agent writes and reads GPU memory of another process, from GPU and to shared host memory',
  async (device) => {
    const child = fork(fileURLToPath(new URL('processes/agent-peer.js', import.meta.url)), [String(BYTES)]);
    const exited = once(child, 'exit');
    const [{ metadata }] = (await once(child, 'message')) as [{ readonly metadata: string }];
    await using agent = await Agent.create('here', { backends: ['local'] });
    const peer = await agent.loadRemoteMetadata(new Uint8Array(Buffer.from(metadata, 'base64')));
    const values = noise(BYTES);
    // Inside a block of the pool, so that the offset in the allocation counts.
    using before = device.empty('u8', [1000]);
    using tensor = await device.tensor('u8', [BYTES], values);
    assert.equal(before.bytes, 1000);
    const mine = await agent.register(tensor);
    const memory = (name: string): DescriptorList => {
      const found = agent.remoteMemory(peer).find((region) => region.name === name);
      assert.ok(found);
      return DescriptorList.of(found);
    };
    const local = DescriptorList.of(mine);
    for (const name of ['gpu', 'host'] as const) {
      await using write = await agent.prepare({ operation: 'write', peer, local, remote: memory(name) });
      const told = once(child, 'message');
      write.post(Buffer.from('written'));
      await write.wait();
      const [sums] = (await told) as [{ readonly gpu: number; readonly host: number }];
      assert.equal(sums[name], sum(values));
    }
    await tensor.fromHost(new Uint8Array(BYTES));
    await using read = await agent.prepare({ operation: 'read', peer, local, remote: memory('gpu') });
    read.post();
    read.waitBlocking();
    assert.ok(Buffer.from(await tensor.toHost()).equals(values));
    await agent.notify(peer, Buffer.from('end'));
    const [code] = (await exited) as [number];
    assert.equal(code, 0);
  },
);
