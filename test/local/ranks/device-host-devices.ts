// Rank 0 has one host for all its GPUs, each of which writes to rank 1, which listens: again and again, releasing everything.
import assert from 'node:assert/strict';
import { CudaDevice, cudaDeviceCount } from 'weftline';
import { DeviceHost } from 'weftline/device-api';
import { join } from 'weftline/world';
import { loadPutKernels, putTable, waitForCounter } from '../support/put-kernels.ts';

const direct = process.argv[2] === 'direct';
const BYTES = 1 << 20;
const ROUNDS = 3;

await using world = await join();
const isWriter = world.rank === 0;
const count = Math.min(2, cudaDeviceCount());
const devices: CudaDevice[] = [];
for (let ordinal = 0; ordinal < (isWriter ? count : 1); ordinal += 1)
  devices.push(await CudaDevice.create({ ordinal }));
const options = { token: world.secret, timeoutMs: 120_000, direct, devices };
const host = await DeviceHost.create({ name: `rank ${world.rank}`, ...options, ...(isWriter ? {} : { port: 0 }) });
assert.equal(host.port !== undefined, !isWriter);
const encode = (bytes: Uint8Array): string => Buffer.from(bytes).toString('base64');
const decode = (text: string): Uint8Array => Buffer.from(text, 'base64');

interface Told {
  readonly port: number;
  readonly data: string;
  readonly counter: string;
}

for (let round = 0; round < ROUNDS; round += 1) {
  if (isWriter) {
    const told = await world.store.getJson<Told>(`round ${round}`, { from: [1] });
    assert.equal(await host.exchangeMetadata({ host: '127.0.0.1', port: told.port }), 'rank 1');
    for (const [index, device] of devices.entries()) {
      const { ordinal } = device.context;
      const source = await host.allocate(BYTES, ordinal);
      assert.equal(source.deviceId, ordinal);
      await host.write(source, new Uint8Array(BYTES).fill(1 + round + index));
      const put = await host.createWriteReq({ memory: source }, decode(told.data), 'rank 1');
      const tell = await host.createWriteReq({ memory: source }, decode(told.counter), 'rank 1');
      if (round === 0) console.log(`GPU ${ordinal}: ${put.path}`);
      const [data, counter] = [await host.createGpuReq(put), await host.createGpuReq(tell)];
      const kernels = await loadPutKernels(device);
      const half = BYTES / count;
      using table = await putTable(device, [{ target: index * half, source: 0, bytes: half }]);
      kernels.putsBlock.launch({ grid: 1, block: 256 }, { data, counter, puts: table, count: 1, isRelaxed: 0 });
      await device.stream.idle();
      if (!direct) host.throwIfFailed();
      for (const request of [put, tell]) await host.releaseWriteReq(request);
      await host.deregisterVram(source);
    }
    await world.barrier(`round ${round}`);
    assert.equal(await host.removeRemoteAgent('rank 1'), true);
  } else {
    const [device] = devices;
    assert.ok(device !== undefined && host.port !== undefined);
    const data = await host.allocate(BYTES);
    const counter = await host.allocate(64);
    const told: Told = {
      port: host.port,
      data: encode(host.serializeXferDescs({ memory: data })),
      counter: encode(host.serializeXferDescs({ memory: counter })),
    };
    await world.store.setJson(`round ${round}`, told);
    await waitForCounter({ device, kernels: await loadPutKernels(device), host }, counter.address, count);
    const came = await host.read(data);
    for (let index = 0; index < count; index += 1) {
      const part = came.subarray((index * BYTES) / count, ((index + 1) * BYTES) / count);
      assert.ok(
        part.every((byte) => byte === 1 + round + index),
        `round ${round}, GPU ${index}`,
      );
    }
    await world.barrier(`round ${round}`);
    await host.deregisterVram(data);
    await host.deregisterVram(counter);
  }
}
await world.barrier('end');
await host.close();
for (const device of devices) await device.close();
console.log('equal');
