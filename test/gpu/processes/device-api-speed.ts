// What the device API reaches between two GPUs: `weftline run -n 2 device-api-speed.js RESULT.json [queue]`.
//
// Rank 0 writes and begins, rank 1 answers and checks what came. With "queue" also the way through the command queue from
// memory of one GPU to the other's, with "sole" the same as the only writer, with "host" to memory of the host.
import assert from 'node:assert/strict';
import { writeFileSync } from 'node:fs';
import { hostname } from 'node:os';
import { CudaDevice } from 'weftline';
import { DeviceHost, type RegisteredVram } from 'weftline/device-api';
import { join, type World } from 'weftline/world';
import { benchPingKinds } from '#lib/abi/device-api.js';
import { measureQueue } from './device-api-queue.js';
import { kernelFiles } from '#lib/device/cuda/kernel-files.js';

const REGION = 64 << 20;
const [resultFile, ...modes] = process.argv.slice(2);

type Way = 'direct' | 'queue' | 'sole' | 'host';

interface Pair {
  readonly host: DeviceHost;
  readonly data: RegisteredVram;
  readonly counter: RegisteredVram;
  readonly dataRequest: number;
  readonly counterRequest: number;
  readonly path: string;
}

const encode = (bytes: Uint8Array): string => Buffer.from(bytes).toString('base64');
const decode = (text: string): Uint8Array => Buffer.from(text, 'base64');

async function pair(world: World, device: CudaDevice, way: Way): Promise<Pair> {
  const host = await DeviceHost.create({
    name: `${way}-${world.rank}`,
    device,
    direct: way === 'direct',
    token: world.secret,
  });
  const data = way === 'host' ? await host.allocateHost(4096) : await host.allocate(REGION);
  const counter = way === 'host' ? await host.allocateHost(4096) : await host.allocate(4096);
  const all = await world.allGather(`pair ${way}`, {
    metadata: encode(await host.getMetadata()),
    data: encode(host.serializeXferDescs({ memory: data })),
    counter: encode(host.serializeXferDescs({ memory: counter })),
  });
  const other = all[1 - world.rank] as (typeof all)[number];
  const peer = await host.addRemoteAgent(decode(other.metadata));
  const options = { soleWriter: way === 'sole' };
  const dataRequest = await host.createWriteReq({ memory: data }, decode(other.data), peer, options);
  const counterRequest = await host.createWriteReq({ memory: counter }, decode(other.counter), peer, options);
  return {
    host,
    data,
    counter,
    dataRequest: await host.createGpuReq(dataRequest),
    counterRequest: await host.createGpuReq(counterRequest),
    path: dataRequest.path,
  };
}

const middle = (values: readonly number[]): number =>
  values.toSorted((a, b) => a - b)[Math.floor(values.length / 2)] as number;

async function measurePut(
  world: World,
  device: CudaDevice,
  { data, counter, dataRequest, counterRequest, host }: Pair,
) {
  const { benchDevicePut } = await device.loadKernels(kernelFiles.benchDeviceApi);
  const results: { sms: number; bytes: number; gbPerSecond: number[] }[] = [];
  const pattern = new Uint8Array(REGION).map((_, index) => (index * 31 + (index >> 8) * 7 + (index >> 16) * 13) & 255);
  if (world.rank === 0) await host.write(data, pattern);
  else await host.write(data, new Uint8Array(REGION));
  await world.barrier('put begin');
  const start = device.createEvent({ timing: true });
  const end = device.createEvent({ timing: true });
  for (const sms of [1, 4, 8, 12, 16, 20, 24, 32]) {
    for (const bytes of [1 << 16, 1 << 20, 4 << 20, 64 << 20]) {
      if (world.rank !== 0) continue;
      const messages = Math.max(8, Math.floor((sms < 8 ? 2 ** 29 : 2 ** 31) / bytes / (bytes < 1 << 20 ? 8 : 1)));
      const plan = benchDevicePut.plan({ grid: sms, block: 512 });
      plan.arguments.set('request', dataRequest);
      plan.arguments.set('signalRequest', counterRequest);
      plan.arguments.set('bytes', bytes);
      plan.arguments.set('stride', bytes);
      plan.arguments.set('messages', messages);
      plan.arguments.set('places', Math.floor(REGION / bytes));
      const gbPerSecond: number[] = [];
      for (let round = 0; round < 4; round += 1) {
        start.record(device.stream);
        plan.launch();
        end.record(device.stream);
        await end.wait();
        if (round > 0) gbPerSecond.push((bytes * messages) / end.millisecondsSince(start) / 1e6);
      }
      results.push({ sms, bytes, gbPerSecond });
      console.log(`put ${sms} SMs ${bytes} B: ${middle(gbPerSecond).toFixed(1)} GB/s`);
    }
  }
  await world.barrier('put end', { timeoutMs: 60_000 });
  if (world.rank === 1) {
    assert.ok(Buffer.from(await host.read(data)).equals(pattern), 'the bytes that came differ');
    const signals = Number(new BigUint64Array((await host.read(counter, 8)).slice().buffer)[0]);
    console.log(`bytes equal; ${signals} signals`);
  }
  await host.write(counter, new Uint8Array(8));
  await world.barrier('put checked');
  return results;
}

async function measurePing(world: World, device: CudaDevice, pairOf: Pair, rounds: number) {
  const { benchDevicePing } = await device.loadKernels(kernelFiles.benchDeviceApi);
  const { host, data, counter, dataRequest, counterRequest, path } = pairOf;
  using result = device.empty('u8', [16]);
  const plan = benchDevicePing.plan({ grid: 1, block: 32 });
  let first = 0;
  const measured: { path: string; what: string; order: string; rounds: number; oneWayUs: number[] }[] = [];
  // Behind a relaxed signal the bytes of a direct put may come later.
  const ways = (['signal', 'putWithSignal', 'word'] as const).flatMap((what) => [
    { what, isRelaxed: false },
    ...(what === 'word' || (what === 'putWithSignal' && path.startsWith('direct')) ? [] : [{ what, isRelaxed: true }]),
  ]);
  for (const { what, isRelaxed } of ways) {
    const oneWayUs: number[] = [];
    for (let turn = 0; turn < 5; turn += 1) {
      plan.arguments.set('request', dataRequest);
      plan.arguments.set('signalRequest', counterRequest);
      plan.arguments.set('waits', host.waits);
      plan.arguments.set('counter', counter.address);
      plan.arguments.set('inbox', data.address);
      plan.arguments.set('outbox', data.address);
      plan.arguments.set('result', result.address);
      plan.arguments.set('rounds', rounds);
      plan.arguments.set('first', first);
      plan.arguments.set('begins', world.rank === 0 ? 1 : 0);
      plan.arguments.set('what', benchPingKinds[what]);
      plan.arguments.set('isRelaxed', isRelaxed ? 1 : 0);
      await world.barrier('ping');
      plan.launch();
      await device.stream.idle({ timeoutMs: 30_000 });
      // The counter counts signals only; the epochs of words grow by themselves.
      first += rounds;
      const [nanoseconds, wrong] = new BigUint64Array((await result.toHost()).slice().buffer);
      assert.equal(Number(wrong), 0, `${wrong} of ${rounds} rounds brought other bytes`);
      oneWayUs.push(Number(nanoseconds) / rounds / 2 / 1000);
    }
    const order = isRelaxed ? 'relaxed' : 'release';
    measured.push({ path, what, order, rounds, oneWayUs: oneWayUs.slice(1) });
    if (world.rank === 0) {
      console.log(`one way, ${what}, ${order} (${path}): ${middle(oneWayUs.slice(1)).toFixed(2)} us`);
    }
  }
  return measured;
}

const world = await join();
try {
  await using device = await CudaDevice.create({ ordinal: world.localRank, timeoutMs: 20_000 });
  const report: Record<string, unknown> = { machine: hostname(), gpu: device.properties.name };
  if (modes.includes('commands') && world.rank === 0) report['queue'] = await measureQueue(device);
  await world.barrier('queue', { timeoutMs: 60_000 });
  {
    const direct = await pair(world, device, 'direct');
    await using host = direct.host;
    console.log(`${host.name}: ${direct.path}`);
    if (modes.includes('put')) report['put'] = await measurePut(world, device, direct);
    if (modes.includes('ping')) report['ping'] = await measurePing(world, device, direct, 2000);
    await world.barrier('direct end');
  }
  for (const way of ['queue', 'sole', 'host'] as const) {
    if (!modes.includes(way)) continue;
    const queued = await pair(world, device, way);
    await using host = queued.host;
    console.log(`${host.name}: ${queued.path}`);
    report[`${way}Ping`] = await measurePing(world, device, queued, 5000);
    await world.barrier(`${way} end`);
  }
  if (world.rank === 0 && resultFile !== undefined)
    writeFileSync(resultFile, `${JSON.stringify(report, undefined, 2)}\n`);
  await world.close();
} catch (error) {
  console.error(error);
  await world.close(error);
  process.exitCode = 1;
}
