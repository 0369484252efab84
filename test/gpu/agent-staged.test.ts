// Memory of GPUs over the backends that carry host memory: staged on one side or both, to GPUs and to hosts.
import assert from 'node:assert/strict';
import { fork } from 'node:child_process';
import { once } from 'node:events';
import test from 'node:test';
import { fileURLToPath } from 'node:url';
import type { CudaDevice } from 'weftline';
import { Agent, DescriptorList, Endpoint, type BackendName, type RemoteMemory } from 'weftline/agent';
import { seededRandom } from '#lib/core/seeded-random.js';
import { runRanks } from '../local/support/run-ranks.ts';
import { whyMissing } from '../local/support/missing-backend.ts';
import { testSeed } from '../support/seed.ts';
import { cacheFolder, gpuTest, noGpu, noise } from './support/gpu.ts';
import { settingsTable } from '#lib/settings/settings.js';

const MiB = 1 << 20;
const BYTES = 5 * MiB + 77;
const property = new URL('../local/ranks/device-api-property.js', import.meta.url);
const peerModule = fileURLToPath(new URL('processes/agent-peer.js', import.meta.url));
const kinds = ['cuda', 'host'] as const;

/** Memory of one agent: of the GPU and of the host, of the same size. */
async function openSide(name: string, backend: BackendName, device: CudaDevice) {
  const agent = await Agent.create(name, { backends: [backend], token: 'secret', settings: { timeoutMs: 20_000 } });
  const tensor = await device.tensor('u8', [BYTES], new Uint8Array(BYTES));
  const cuda = await agent.register(tensor, { name: 'cuda' });
  const host = await agent.allocate(BYTES, { name: 'host' });
  const write = async (kind: (typeof kinds)[number], bytes: Uint8Array): Promise<void> => {
    if (kind === 'cuda') await tensor.fromHost(bytes);
    else host.bytes.set(bytes);
  };
  const read = async (kind: (typeof kinds)[number]): Promise<Uint8Array> =>
    kind === 'cuda' ? tensor.toHost() : host.bytes.slice();
  return {
    agent,
    tensor,
    regions: { cuda, host },
    write,
    read,
    [Symbol.asyncDispose]: async () => {
      await agent.close();
      tensor[Symbol.dispose]();
    },
  };
}

function memoryOf(agent: Agent, peer: string, name: string): RemoteMemory {
  const found = agent.remoteMemory(peer).find((memory) => memory.name === name);
  assert.ok(found);
  return found;
}

/** Ranges that do not overlap, of every size and place, in any order; small ones, and some of more than a piece. */
function randomRanges(random: () => number, total: number): (readonly [offset: number, bytes: number])[] {
  const ranges: (readonly [number, number])[] = [];
  for (let at = Math.floor(random() * 64); at < total;) {
    const most = random() < 0.1 ? 1_500_000 : 4096;
    const bytes = Math.min(total - at, 1 + Math.floor(random() * most));
    ranges.push([at, bytes]);
    at += bytes + Math.floor(random() * 100);
  }
  return ranges.toSorted(() => random() - 0.5);
}

for (const backend of ['multipath'] as const) {
  const missing = noGpu === false ? ((await whyMissing(backend)) ?? false) : noGpu;
  const pairTest = (name: string, run: (device: CudaDevice) => Promise<void>): void => {
    if (missing === false) gpuTest(`${backend}: ${name}`, run);
    else test(`${backend}: ${name}`, { skip: missing });
  };

  pairTest('writes and reads between GPUs and hosts are intact, whole and scattered', async (device) => {
    await using here = await openSide('here', backend, device);
    await using there = await openSide('there', backend, device);
    await here.agent.loadRemoteMetadata(there.agent.localMetadata());
    const random = seededRandom(testSeed());
    for (const from of kinds) {
      for (const to of kinds) {
        if (from === 'host' && to === 'host') continue;
        for (const ranges of [[[0, BYTES]] as const, randomRanges(random, BYTES), [[13, 1]] as const]) {
          const local = here.regions[from];
          const remote = memoryOf(here.agent, 'there', to);
          const lists = {
            local: DescriptorList.join(ranges.map(([offset, bytes]) => DescriptorList.of(local, offset, bytes))),
            remote: DescriptorList.join(ranges.map(([offset, bytes]) => DescriptorList.of(remote, offset, bytes))),
          };
          const source = noise(BYTES);
          const expected = new Uint8Array(BYTES);
          for (const [offset, bytes] of ranges) expected.set(source.subarray(offset, offset + bytes), offset);
          await here.write(from, source);
          await there.write(to, new Uint8Array(BYTES));
          const what = `${from} to ${to}, ${ranges.length} ranges`;
          await using write = await here.agent.prepare({ operation: 'write', peer: 'there', ...lists });
          write.post(`written: ${what}`);
          const { message } = await there.agent.nextNotification({ from: 'here', timeoutMs: 20_000 });
          assert.equal(Buffer.from(message).toString(), `written: ${what}`);
          assert.ok(Buffer.from(expected).equals(await there.read(to)), `write, ${what}`);
          await write.wait();
          await here.write(from, new Uint8Array(BYTES));
          await using read = await here.agent.prepare({ operation: 'read', peer: 'there', ...lists });
          read.post();
          await read.wait();
          assert.ok(Buffer.from(expected).equals(await here.read(from)), `read, ${what}`);
        }
      }
    }
    assert.match(JSON.stringify(here.agent.explain('there')), /"isUsable":true/);
  });

  pairTest("a channel's signals come behind its puts, whichever memory they go between", async (device) => {
    await using here = await openSide('here', backend, device);
    await using there = await openSide('there', backend, device);
    await here.agent.loadRemoteMetadata(there.agent.localMetadata());
    for (const from of kinds) {
      for (const to of kinds) {
        await here.write(from, noise(BYTES));
        await there.write(to, new Uint8Array(BYTES));
        const { number } = memoryOf(here.agent, 'there', to);
        const parts = await here.agent.channelParts('there', here.regions[from], number);
        const channel = parts.link.openChannel();
        await channel.prepare?.(parts.local, parts.remote);
        const { local, remote } = parts;
        const place = { local, localOffset: 8, remote, remoteOffset: 16, bytes: MiB };
        for (let round = 0; round < 4; round += 1) {
          place.localOffset = 8 + round * MiB;
          place.remoteOffset = 16 + round * MiB;
          assert.ok(channel.put(place));
          assert.ok(channel.signal(remote, 0, 3));
        }
        const end = performance.now() + 20_000;
        while (channel.delivered < channel.posted && performance.now() < end) {
          here.agent.poll();
          await new Promise((resolve) => setImmediate(resolve));
        }
        assert.deepEqual([channel.posted, channel.delivered, channel.error], [8, 8, undefined], `${from} to ${to}`);
        const came = await there.read(to);
        assert.equal(new DataView(came.buffer, came.byteOffset).getBigUint64(0, true), 12n);
        const sent = noise(BYTES).subarray(8, 8 + 4 * MiB);
        assert.ok(Buffer.from(sent).equals(came.subarray(16, 16 + 4 * MiB)), `${from} to ${to}`);
        await channel.close();
      }
    }
  });

  pairTest('after deregister() a peer changes nothing of the memory of a GPU', async (device) => {
    await using here = await openSide('here', backend, device);
    const random = seededRandom(testSeed() + 1);
    for (let round = 0; round < 10; round += 1) {
      await using there = await openSide(`there ${round}`, backend, device);
      await here.agent.loadRemoteMetadata(there.agent.localMetadata());
      const peer = `there ${round}`;
      const lists = {
        local: DescriptorList.of(here.regions.cuda),
        remote: DescriptorList.of(memoryOf(here.agent, peer, 'cuda')),
      };
      const transfer = await here.agent.prepare({ operation: 'write', peer, ...lists });
      await here.write('cuda', noise(BYTES));
      transfer.post();
      for (let turn = Math.floor(random() * 50); turn > 0; turn -= 1) await new Promise((next) => setImmediate(next));
      await there.regions.cuda.close();
      const secret = new Uint8Array(BYTES).fill(0x53);
      await there.write('cuda', secret);
      await transfer.wait().catch(() => {});
      assert.ok(Buffer.from(secret).equals(await there.read('cuda')), `round ${round}`);
      await assert.rejects(
        async () => {
          transfer.post();
          await transfer.wait();
        },
        { code: 'WL_UNAUTHORIZED' },
      );
      await transfer.close();
    }
  });

  pairTest('a killed peer fails what is staged, and others go on', async (device) => {
    await using here = await openSide('here', backend, device);
    await using other = await openSide('other', backend, device);
    await here.agent.loadRemoteMetadata(other.agent.localMetadata());
    const bytes = 256 * MiB;
    const child = fork(peerModule, [String(bytes), backend]);
    const [{ metadata }] = (await once(child, 'message')) as [{ readonly metadata: string }];
    const peer = await here.agent.loadRemoteMetadata(new Uint8Array(Buffer.from(metadata, 'base64')));
    using large = device.empty('u8', [bytes]);
    const region = await here.agent.register(large);
    const lists = { local: DescriptorList.of(region), remote: DescriptorList.of(memoryOf(here.agent, peer, 'gpu')) };
    const transfers = await Promise.all(
      Array.from({ length: 4 }, () => here.agent.prepare({ operation: 'write', peer, ...lists })),
    );
    for (const transfer of transfers) transfer.post();
    child.kill('SIGKILL');
    const ends = await Promise.allSettled(transfers.map((transfer) => transfer.wait({ timeoutMs: 20_000 })));
    for (const end of ends) assert.equal(end.status === 'rejected' && end.reason.code, 'WL_PEER_LOST');
    await region.close();
    const source = noise(BYTES);
    await here.write('cuda', source);
    await using transfer = await here.agent.prepare({
      operation: 'write',
      peer: 'other',
      local: DescriptorList.of(here.regions.cuda),
      remote: DescriptorList.of(memoryOf(here.agent, 'other', 'cuda')),
    });
    transfer.post();
    await transfer.wait();
    assert.ok(Buffer.from(source).equals(await other.read('cuda')));
  });

  pairTest('endpoints send tensors to each other', async (device) => {
    const options = { backends: [backend], localGpuIndex: 0, token: 'secret' } as const;
    await using a = await Endpoint.create(options);
    await using b = await Endpoint.create(options);
    const [to, from] = await Promise.all([a.connect('127.0.0.1', b.port), b.accept()]);
    using source = await device.tensor('u8', [BYTES], noise(BYTES));
    using target = await device.tensor('u8', [BYTES], new Uint8Array(BYTES));
    const [out, into] = [await a.register(source), await b.register(target)];
    const received = from.recv({ region: into });
    await to.send({ region: out }).wait();
    await received.wait();
    assert.ok(Buffer.from(noise(BYTES)).equals(await target.toHost()));
    await a.close();
    await b.close();
  });

  test(
    `${backend}: puts, signals and words of kernels arrive as they are, staged between GPUs`,
    { skip: missing },
    async () => {
      const env = { WEFTLINE_TEST_DEVICE: 'cuda', [settingsTable.cacheFolder.env]: cacheFolder };
      const args = [backend, String(testSeed()), '4'];
      const { exitCode, transcript } = await runRanks(2, property, { args, env, timeoutMs: 180_000 });
      assert.equal(exitCode, 0, transcript);
    },
  );
}
