// Random puts, signals and words from rank 0 to rank 1, compared with what they are to leave: argv = way seed rounds.
//
// The way is the name of a backend, "staged" (multipath with memory that is staged as that of GPUs is), or on GPUs also "direct", "queue", "sole" (the only writer) and "host".
import assert from 'node:assert/strict';
import { CpuDevice, CudaDevice } from 'weftline';
import { DeviceHost, type RegisteredVram } from 'weftline/device-api';
import { join } from 'weftline/world';
import { seededRandom } from '#lib/core/seeded-random.js';
import { backendNames } from '#lib/agent/backends/backend-table.js';
import { makePutCase, REGION_BYTES, wordOf } from '../support/put-case.ts';
import { loadPutKernels, putTable, waitForCounter } from '../support/put-kernels.ts';
import { openTestDevice } from '../support/test-device.ts';

const [way = 'local', seedText = '1', roundsText = '5'] = process.argv.slice(2);
const [seed, rounds] = [Number(seedText), Number(roundsText)];
const encode = (bytes: Uint8Array): string => Buffer.from(bytes).toString('base64');
const decode = (text: string): Uint8Array => Buffer.from(text, 'base64');
const TURNS = 5;

await using world = await join();
await using device = await openTestDevice(world);
assert.ok(device instanceof CpuDevice || device instanceof CudaDevice);
const stagesHostMemory = way === 'staged';
const backend = stagesHostMemory ? 'multipath' : backendNames.find((name) => name === way);
await using host = await DeviceHost.create({
  name: `rank ${world.rank}`,
  device,
  direct: way === 'direct',
  token: world.secret,
  timeoutMs: 120_000,
  queueCapacity: 32,
  queues: 2,
  stagesHostMemory,
  ...(backend === undefined ? {} : { backends: [backend] }),
});
const allocate = (bytes: number): Promise<RegisteredVram> =>
  way === 'host' ? host.allocateHost(bytes) : host.allocate(bytes);
const data = await allocate(REGION_BYTES + 64);
const counter = await allocate(64);
// Ranges that begin anywhere; counters and cells at multiples of 16.
const skip = Math.floor(seededRandom(seed)() * 64) & (way === 'sole' ? ~7 : ~0);
const all = await world.allGather('descriptors', {
  metadata: encode(await host.getMetadata()),
  data: encode(host.serializeXferDescs({ memory: data, offset: skip, bytes: REGION_BYTES })),
  counter: encode(host.serializeXferDescs({ memory: counter })),
});
const other = all[1 - world.rank] as (typeof all)[number];
const peer = await host.addRemoteAgent(decode(other.metadata));
const options = { soleWriter: way === 'sole' };
const write = await host.createWriteReq(
  { memory: data, offset: skip, bytes: REGION_BYTES },
  decode(other.data),
  peer,
  options,
);
const tell = await host.createWriteReq({ memory: counter }, decode(other.counter), peer, options);
const [dataRequest, counterRequest] = [await host.createGpuReq(write), await host.createGpuReq(tell)];
if (world.rank === 0) console.log(write.path);
const begins = world.rank === 0;
/** Each takes two turns of the event loop where kernels are functions of TypeScript. */
const words = device instanceof CudaDevice ? 2000 : 50;
const expected = new Uint8Array(REGION_BYTES);
const seen = { signals: 0 };
const kernels = device instanceof CudaDevice ? await loadPutKernels(device) : undefined;
const counterWords = async (): Promise<BigUint64Array> =>
  new BigUint64Array((await host.read(counter, 16)).slice().buffer);

async function send(round: number): Promise<void> {
  const { source, puts } = makePutCase(seed, round);
  const filled = new Uint8Array(skip + REGION_BYTES);
  filled.set(source, skip);
  await host.write(data, filled);
  if (kernels === undefined || !(device instanceof CudaDevice)) {
    for (const put of puts) host.kernelApi.put(dataRequest, put, { channel: 1 });
    host.kernelApi.signal(counterRequest, { target: 0, add: 1 }, { channel: 1 });
    return host.kernelApi.flush(dataRequest, { channel: 1 });
  }
  using table = await putTable(device, puts);
  const launch = [kernels.putsThread, kernels.putsWarp, kernels.putsBlock][round % 3];
  const isRelaxed = way !== 'direct' && round % 2 === 1 ? 1 : 0;
  launch?.launch(
    { grid: blocksOf(round), block: blocksOf(round) === 12 ? 512 : 96 },
    { data: dataRequest, counter: counterRequest, puts: table, count: puts.length, isRelaxed },
  );
  return device.stream.idle();
}

function blocksOf(round: number): number {
  return device instanceof CudaDevice ? ([1, 2, 12, 5][round % 4] as number) : 1;
}

async function receive(round: number): Promise<void> {
  makePutCase(seed, round).apply(expected);
  seen.signals += blocksOf(round);
  if (kernels === undefined || !(device instanceof CudaDevice)) {
    const { buffer, byteOffset } = host.view(counter);
    await host.kernelApi.wait(new BigUint64Array(buffer, byteOffset, 1), seen.signals);
  } else {
    await waitForCounter({ device, kernels, host }, counter.address, seen.signals);
  }
  const came = (await host.read(data)).subarray(skip, skip + REGION_BYTES);
  const wrong = came.findIndex((byte, index) => byte !== expected[index]);
  assert.equal(wrong, -1, `seed ${seed}, round ${round}: byte ${wrong} is ${came[wrong]}, not ${expected[wrong]}`);
}

/** Words there and back; each side checks all values. */
async function talk(level: number): Promise<void> {
  await host.write(counter, new Uint8Array(64));
  await world.barrier(`words ${level}`);
  if (kernels === undefined || !(device instanceof CudaDevice)) {
    const { buffer, byteOffset } = host.view(counter);
    const cell = new BigUint64Array(buffer, byteOffset + 16, 2);
    const say = (epoch: number): void =>
      host.kernelApi.putWord(counterRequest, { target: 16, value: wordOf(epoch), epoch });
    for (let epoch = 1; epoch <= words; epoch += 1) {
      if (begins) say(epoch);
      assert.equal(await host.kernelApi.waitWord(cell, epoch), wordOf(epoch));
      if (!begins) say(epoch);
    }
    return host.kernelApi.flush(counterRequest);
  }
  using wrong = await device.tensor('i32', [2], new Int32Array(2));
  const cell = counter.address + 16;
  const launch = [kernels.talkThread, kernels.talkWarp, kernels.talkBlock][level];
  const values = { counter: counterRequest, cell, waits: host.waits, rounds: words, begins: begins ? 1 : 0, wrong };
  launch?.launch({ grid: 1, block: 96 }, values);
  await device.stream.idle();
  assert.deepEqual([...(await wrong.toHost())], [0, 1], 'words differ');
}

/** All lanes of three warps push for themselves, over many laps of the ring. */
async function pushByLanes(): Promise<void> {
  if (kernels === undefined || !(device instanceof CudaDevice)) return;
  const before = Number((await counterWords())[1]);
  await world.barrier('lanes');
  if (begins) {
    kernels.lanes.launch({ grid: 3, block: 32 }, { data: dataRequest, counter: counterRequest, turns: TURNS });
    await device.stream.idle();
  } else {
    await waitForCounter({ device, kernels, host }, counter.address + 8, before + 96 * TURNS);
    const came = (await host.read(data)).subarray(skip, skip + 768);
    assert.ok(Buffer.from(came).equals(makePutCase(seed, rounds - 1).source.subarray(0, 768)), 'bytes of lanes differ');
  }
}

for (let round = 0; round < rounds; round += 1) {
  await (begins ? send(round) : receive(round));
  await world.barrier(`round ${round}`);
}
await pushByLanes();
await world.barrier('pushed');
// A backend that only adds cannot begin an epoch again.
for (let level = 0; level < (kernels === undefined ? 1 : 3); level += 1) {
  if (level > 0 && (way === 'ucx' || way === 'multipath' || way === 'staged')) break;
  await talk(level);
}
await world.barrier('end');
console.log('equal');
