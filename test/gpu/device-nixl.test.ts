// The device API by NIXL's names, signals at warp level by some lanes, and posts that are deferred.
import assert from 'node:assert/strict';
import type { CudaDevice, Tensor } from 'weftline';
import { CudaRequests } from '#lib/device-api/service/cuda-requests.js';
import { DeviceTraps } from '#lib/device-api/host/cuda-side.js';
import { CommandReader, queuesIn } from '#lib/device-api/service/command-queue.js';
import { CommandServer } from '#lib/device-api/service/command-server.js';
import {
  nixlHeaderKernels,
  nixlHeaderParameters,
  nixlKernels,
  nixlParameters,
  warpKernels,
  warpParameters,
} from '../local/support/nixl-kernels.ts';
import { gpuTest, noise } from './support/gpu.ts';

const BYTES = 4000;
const CAPACITY = 64;

/** One request to a range of bytes and one to a counter, mapped or through a queue that this thread serves. */
async function openRequests(device: CudaDevice, isDirect: boolean, timeoutMs = 5000) {
  const traps = new DeviceTraps({ device, agent: 'here', peerName: () => 'there' });
  const layout = { queues: 1, capacity: CAPACITY };
  const requests = await CudaRequests.create({ device, trap: traps.address, timeoutMs, ...layout });
  const source = await device.tensor('u8', [BYTES], noise(BYTES));
  const target = await device.tensor('u8', [BYTES], new Uint8Array(BYTES));
  const counter = await device.tensor('i32', [2], new Int32Array(2));
  const local = { address: source.address, bytes: BYTES };
  const add = (number: number, { address }: Tensor, bytes: number): Promise<number> =>
    requests.add({ number, peer: 0, inlines: false, local, remotes: [{ direct: isDirect ? address : 0, bytes }] });
  const [data, tell] = [await add(0, target, BYTES), await add(1, counter, 8)];
  const log: string[] = [];
  const channel = { posted: 0, delivered: 0, error: undefined };
  const note = (what: string): boolean => {
    channel.posted += 1;
    channel.delivered += 1;
    return log.push(what) > 0;
  };
  const route = {
    channel,
    put: (from: number, to: number, bytes: number) => note(`put ${from} ${to} ${bytes}`),
    signal: (to: number, sum: number) => note(`signal ${to} ${sum}`),
    store: () => false,
    set: () => false,
  };
  const [memory] = queuesIn(requests.buffer, 1, CAPACITY);
  assert.ok(memory !== undefined);
  const served = [0, 1].map(() => ({ peer: 'there', remotes: [route] }));
  const server = new CommandServer(new CommandReader(memory), served, { onFailure: (error) => assert.fail(error) });
  const fence = (): (() => boolean) => {
    const passed = device.workFence();
    return () => passed.isPassed();
  };
  /** Until the kernels that were launched have ended. */
  const serve = async (): Promise<void> => {
    const isOver = fence();
    const end = performance.now() + 10_000;
    while (!isOver() && performance.now() < end) server.step();
    await device.stream.idle();
    while (server.step());
  };
  const close = (): void => {
    for (const tensor of [source, target, counter]) tensor.close();
    requests[Symbol.dispose]();
    traps[Symbol.dispose]();
  };
  return { traps, data, tell, target, counter, log, server, serve, [Symbol.dispose]: close };
}

for (const isDirect of [true, false]) {
  const way = isDirect ? 'direct' : 'through a queue';
  gpuTest(`the kernels of NIXL's guide write and signal once, ${way}`, async (device) => {
    const kernels = await device.compile({ source: nixlKernels, kernels: nixlParameters });
    using both = await openRequests(device, isDirect);
    const { data, tell, target, counter, log, traps, serve } = both;
    using handles = await device.tensor('u8', [8], new Uint8Array(BigUint64Array.of(BigInt(data)).buffer));
    const launches: (() => void)[] = [
      () =>
        kernels.threadWriteAndSignal.launch({ grid: 2, block: 64 }, { data_req: data, signal_req: tell, size: BYTES }),
      () =>
        kernels.warpWriteAndSignal.launch({ grid: 2, block: 64 }, { data_req: data, signal_req: tell, size: BYTES }),
      () =>
        kernels.postWriteAndSignal.launch(
          { grid: 1, block: 32 },
          {
            data_req_handles_ptr: handles,
            data_req_count: 1,
            signal_req_handle: tell,
            signal_ptr: counter,
            size: BYTES,
            signal_inc: 1,
            pipeline: 1,
          },
        ),
    ];
    for (const [index, launch] of launches.entries()) {
      await target.fromHost(new Uint8Array(BYTES));
      launch();
      await serve();
      assert.equal(traps.take(true), undefined);
      if (isDirect) {
        kernels.waitForSignal.launch({ grid: 1, block: 32 }, { signal_ptr: counter, expected_value: index + 1 });
        await device.stream.idle();
        assert.deepEqual([...(await counter.toHost())], [index + 1, 0]);
        assert.deepEqual(await target.toHost(), noise(BYTES));
      } else {
        assert.deepEqual(log.splice(0), [`put 0 0 ${BYTES}`, 'signal 0 1']);
      }
    }
  });

  gpuTest(`a signal at warp level counts once, by all lanes or by lane 0, ${way}`, async (device) => {
    const kernels = await device.compile({ source: warpKernels, kernels: warpParameters });
    using both = await openRequests(device, isDirect);
    const { data, tell, counter, log, traps, serve } = both;
    using waste = await device.tensor('i32', [1], Int32Array.of(0));
    const seen = async (): Promise<number> =>
      isDirect ? (await counter.toHost())[0]! : log.filter((line) => line === 'signal 0 1').length;
    kernels.signalByAll.launch({ grid: 1, block: 48 }, { counter: tell, turns: 1000, waste });
    await serve();
    assert.equal(traps.take(true), undefined);
    assert.equal(await seen(), 1000);
    kernels.signalByFirst.launch({ grid: 1, block: 32 }, { data, counter: tell, bytes: BYTES, turns: 500 });
    await serve();
    assert.equal(traps.take(true), undefined);
    assert.equal(await seen(), 1500);
    for (const [index, lanes] of [1, 0xffff, 0x8000_0001, 0xffff_ffff].entries()) {
      kernels.signalByLanes.launch({ grid: 1, block: 32 }, { counter: tell, lanes });
      await serve();
      assert.equal(traps.take(true), undefined, `lanes ${lanes}`);
      assert.equal(await seen(), 1501 + index);
    }
  });

  gpuTest(`calls at warp level without the lanes they need say so, and write nothing, ${way}`, async (device) => {
    const kernels = await device.compile({ source: warpKernels, kernels: warpParameters });
    using both = await openRequests(device, isDirect);
    const { data, tell, target, counter, log, traps, serve } = both;
    for (const lanes of [1 << 5, 0xffff_fffe]) {
      kernels.signalByLanes.launch({ grid: 1, block: 32 }, { counter: tell, lanes });
      await serve();
      const error = traps.take(true);
      assert.equal(error?.code, 'WL_INVALID_ARGUMENT');
      assert.match(error.message, new RegExp(`there by the lanes 0x${lanes.toString(16).padStart(8, '0')} without`));
    }
    kernels.postOutside.launch({ grid: 1, block: 64 }, { data, counter: tell, offset: BYTES - 63 });
    await serve();
    assert.match(traps.take(true)?.message ?? '', /outside of/);
    kernels.postWithFlags.launch({ grid: 1, block: 32 }, { data, count: 1, flags: 4, ends: 0 });
    await serve();
    assert.match(traps.take(true)?.message ?? '', /Invalid flags .* expected 0 or 1 \(defer\), got 4/);
    assert.deepEqual(log, []);
    assert.deepEqual([...(await counter.toHost())], [0, 0]);
    assert.ok((await target.toHost()).every((byte) => byte === 0));
  });
}

for (const isDirect of [true, false]) {
  gpuTest(`kernels in the order of NIXL's header, ${isDirect ? 'direct' : 'through a queue'}`, async (device) => {
    const kernels = await device.compile({ source: nixlHeaderKernels, kernels: nixlHeaderParameters });
    using both = await openRequests(device, isDirect);
    const { data, tell, target, counter, log, traps, serve } = both;
    using results = await device.tensor('i32', [6], new Int32Array(6).fill(-9));
    kernels.headerWriteAndSignal.launch(
      { grid: 1, block: 32 },
      { data_req: data, signal_req: tell, size: 100, results },
    );
    await serve();
    assert.deepEqual([...(await results.toHost())].slice(0, 3), [1, 1, 0]);
    kernels.viewPutAndAdd.launch({ grid: 1, block: 32 }, { data, counter: tell, size: 1000, results });
    await serve();
    assert.deepEqual([...(await results.toHost())], [1, 1, 0, isDirect ? 1 : 0, 0, -2]);
    assert.equal(traps.take(true), undefined);
    if (!isDirect) {
      // A question for the status posts what was deferred by a command of no bytes.
      const posted = log.filter((line) => line !== 'put 0 0 0');
      assert.deepEqual(posted, ['put 16 32 100', 'signal 0 5', 'put 0 64 1000', 'signal 0 7']);
      return;
    }
    assert.deepEqual([...(await counter.toHost())], [12, 0]);
    const want = new Uint8Array(BYTES);
    want.set(noise(BYTES).subarray(16, 116), 32);
    want.set(noise(BYTES).subarray(0, 1000), 64);
    assert.deepEqual(await target.toHost(), want);
  });
}

gpuTest('512 threads that poll a counter leave the loop in the same turn', async (device) => {
  const kernels = await device.compile({ source: warpKernels, kernels: warpParameters });
  const rounds = 200;
  using counters = await device.tensor('i64', [1], BigInt64Array.of(0n));
  using parted = await device.tensor('i32', [1], Int32Array.of(0));
  const other = device.createStream();
  kernels.pollByBlock.launch({ grid: 1, block: 512 }, { counters, rounds, parted });
  kernels.countUp.launch({ grid: 1, block: 1 }, { counter: counters, rounds }, other);
  await device.stream.idle();
  await other.idle();
  assert.deepEqual([...(await parted.toHost())], [0]);
});

for (const isDirect of [true, false]) {
  const way = isDirect ? 'direct' : 'through a queue';
  const limit = { timeout: 60_000 };
  gpuTest(
    `a put at warp level that lanes do not come to ends at its deadline, ${way}`,
    async (device) => {
      const kernels = await device.compile({ source: warpKernels, kernels: warpParameters });
      using both = await openRequests(device, isDirect, 200);
      const { data, target, log, traps, serve } = both;
      for (const lanes of [1, 0xffff, 0xffff_fffe]) {
        kernels.putByLanes.launch({ grid: 2, block: 32 }, { data, lanes, bytes: BYTES });
        await serve();
        const error = traps.take(true);
        assert.equal(error?.code, 'WL_INVALID_ARGUMENT');
        assert.match(error.message, new RegExp(`by the lanes 0x${lanes.toString(16).padStart(8, '0')} without`));
        assert.match(error.message, /Puts need all 32 lanes/);
      }
      assert.deepEqual(log, []);
      assert.ok((await target.toHost()).every((byte) => byte === 0));
      // What such a kernel left in shared memory is nothing to the next one.
      kernels.putByLanes.launch({ grid: 1, block: 32 }, { data, lanes: 0xffff_ffff, bytes: BYTES });
      await serve();
      assert.equal(traps.take(true), undefined);
      if (isDirect) assert.deepEqual(await target.toHost(), noise(BYTES));
      else assert.deepEqual(log, [`put 0 0 ${BYTES}`]);
    },
    limit,
  );

  gpuTest(
    `lanes of a warp that come to a put at different times make it once, ${way}`,
    async (device) => {
      const kernels = await device.compile({ source: warpKernels, kernels: warpParameters });
      using both = await openRequests(device, isDirect);
      const { data, tell, target, counter, log, traps, serve } = both;
      using waste = await device.tensor('i32', [1], Int32Array.of(0));
      const turns = 500;
      kernels.putApart.launch({ grid: 1, block: 32 }, { data, counter: tell, bytes: BYTES, turns, waste });
      await serve();
      assert.equal(traps.take(true), undefined);
      if (isDirect) {
        assert.equal((await counter.toHost())[0], turns);
        assert.deepEqual(await target.toHost(), noise(BYTES));
      } else {
        const each = [`put 0 0 ${BYTES}`, 'signal 0 1'];
        assert.deepEqual(log, Array.from({ length: turns }, () => each).flat());
      }
    },
    limit,
  );
}

gpuTest('a put with its signal finds room behind deferred posts that fill the ring', async (device) => {
  const { deferThenTell } = await device.compile({ source: warpKernels, kernels: warpParameters });
  using both = await openRequests(device, false);
  const { data, tell, log, serve, traps } = both;
  for (const count of [CAPACITY - 2, CAPACITY - 1, CAPACITY, CAPACITY + 1, 3 * CAPACITY - 1]) {
    deferThenTell.launch({ grid: 1, block: 32 }, { data, counter: tell, count });
    await serve();
    assert.equal(traps.take(true), undefined, `${count} deferred`);
    assert.deepEqual(log.splice(0), [...Array.from({ length: count }, () => 'put 0 0 8'), 'put 8 8 8', 'signal 0 1']);
  }
});

gpuTest('a flush ends while another warp defers posts, which the last flush takes along', async (device) => {
  const { deferDuringFlush } = await device.compile({ source: warpKernels, kernels: warpParameters });
  using both = await openRequests(device, false);
  const { data, log, serve, traps } = both;
  const turns = 2000;
  deferDuringFlush.launch({ grid: 1, block: 64 }, { data, turns });
  await serve();
  assert.equal(traps.take(true), undefined);
  for (const put of ['put 0 0 8', 'put 8 8 8']) assert.equal(log.filter((line) => line === put).length, turns);
});

gpuTest('what is deferred stays in the queue until something follows, a flush or a question', async (device) => {
  const { postWithFlags } = await device.compile({ source: warpKernels, kernels: warpParameters });
  using both = await openRequests(device, false);
  const { data, log, server, serve, traps } = both;
  const put = 'put 0 0 8';
  const ends = [[], ['put 8 8 8'], ['put 0 0 0'], ['put 0 0 0']];
  for (const how of [1, 2, 3]) {
    postWithFlags.launch({ grid: 1, block: 32 }, { data, count: 3, flags: 1, ends: 0 });
    await device.stream.idle();
    assert.equal(server.step(), false);
    assert.deepEqual(log, []);
    postWithFlags.launch({ grid: 1, block: 32 }, { data, count: 0, flags: 0, ends: how });
    await serve();
    assert.deepEqual(log.splice(0), [put, put, put, ...ends[how]!]);
  }
  // More than the ring holds: the host takes a ring that is full.
  postWithFlags.launch({ grid: 1, block: 32 }, { data, count: 10 * CAPACITY, flags: 1, ends: 2 });
  await serve();
  assert.deepEqual(log.splice(0), [...Array.from({ length: 10 * CAPACITY }, () => put), 'put 0 0 0']);
  assert.equal(traps.take(true), undefined);
});
