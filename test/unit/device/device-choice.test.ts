// How ranks agree on a device, with drivers that are only pretended.
import assert from 'node:assert/strict';
import test from 'node:test';
import { readSettings, type Settings, WeftlineError } from 'weftline';
import type { CudaCall, CudaDriver } from '#lib/native/cuda-driver.js';
import { chooseDevice, type DeviceChoice, type DeviceGroup } from '#lib/device/device-choice.js';

/** A driver of a process that sees the GPUs with these first bytes of their uuids; a number is the status of cuInit. */
function driverOf(gpus: readonly number[] | number, capability: readonly [number, number] = [9, 0]): CudaDriver {
  const answers: Partial<Record<CudaCall, (...parameters: never[]) => number>> = {
    cuInit: () => (typeof gpus === 'number' ? gpus : 0),
    cuDeviceGetCount: (out: [number]) => set(out, typeof gpus === 'number' ? 0 : gpus.length),
    cuDeviceGet: (out: [number], ordinal: number) => set(out, ordinal),
    cuDeviceGetAttribute: (out: [number], attribute: number) => set(out, capability[attribute - 75] as number),
    cuDeviceGetUuid: (uuid: Uint8Array, device: number) => {
      uuid[0] = typeof gpus === 'number' ? 0 : (gpus[device] as number);
      return 0;
    },
    cuGetErrorName: () => 1,
  };
  return new Proxy({} as CudaDriver, {
    get: (_target, name: CudaCall) => answers[name] ?? assert.fail(`${name} was called`),
  });
}

function set(out: [number], value: number): number {
  out[0] = value;
  return 0;
}

const noDriver = new Proxy({} as CudaDriver, {
  get: () => () => {
    throw new WeftlineError('WL_UNSUPPORTED', 'Cannot open it', { details: { name: 'libcuda.so.1' } });
  },
});

/** What each rank of one host gets or fails with. */
function chooseAll(
  requests: Settings['device'] | readonly Settings['device'][],
  drivers: readonly CudaDriver[],
): Promise<PromiseSettledResult<DeviceChoice>[]> {
  const values: unknown[] = [];
  let everyone: (() => void) | undefined;
  const all = new Promise<void>((resolve) => (everyone = resolve));
  return Promise.allSettled(
    drivers.map((driver, rank) => {
      const group: DeviceGroup = {
        machineRank: rank,
        ranks: [...drivers.keys()],
        settings: readSettings({}, {}),
        async allGather<T>(_name: string, value: T): Promise<T[]> {
          values[rank] = value;
          if (Object.keys(values).length === drivers.length) everyone?.();
          await all;
          return JSON.parse(JSON.stringify(values)) as T[];
        },
      };
      return chooseDevice(typeof requests === 'string' ? requests : (requests[rank] ?? 'auto'), group, driver);
    }),
  );
}

async function choices(request: Settings['device'], drivers: readonly CudaDriver[]): Promise<DeviceChoice[]> {
  return (await chooseAll(request, drivers)).map((result) =>
    result.status === 'fulfilled' ? result.value : assert.fail(String(result.reason)),
  );
}

test('auto is cuda where every rank has a GPU of its own, however many each process sees', async () => {
  const reason = 'every rank has a GPU of its own';
  const seesAll = driverOf([5, 6, 7, 8]);
  assert.deepEqual(
    await choices('auto', [seesAll, seesAll, seesAll]),
    [0, 1, 2].map((ordinal) => ({ kind: 'cuda', reason, ordinal })),
  );
  assert.deepEqual(
    await choices('auto', [driverOf([5]), driverOf([6])]),
    [0, 0].map((ordinal) => ({ kind: 'cuda', reason, ordinal })),
  );
});

test('auto is cpu on all ranks when one finds no usable GPU, and says which and why', async () => {
  const gpu = driverOf([5, 6, 7, 8]);
  const cases: readonly (readonly [CudaDriver, RegExp])[] = [
    [noDriver, /^rank 2 found no GPU: no driver library \(libcuda\.so\.1\)$/],
    [driverOf(100), /^rank 2 found no GPU: cuInit failed .*\(100\): no GPU is visible/],
    [driverOf([]), /^rank 2 found no GPU: no GPU is visible/],
    [driverOf([5, 6, 7], [7, 5]), /^rank 2 found no GPU: GPU 2 is sm_75, needed is sm_80 or newer/],
  ];
  for (const [lacking, reason] of cases) {
    const chosen = await choices('auto', [gpu, gpu, lacking, gpu]);
    assert.equal(new Set(chosen.map((choice) => JSON.stringify(choice))).size, 1);
    assert.equal(chosen[0]?.kind, 'cpu');
    assert.match(chosen[0]?.reason ?? '', reason);
  }
});

test('auto is cpu when ranks would share a GPU; cuda lets them, and says so', async () => {
  const drivers = [driverOf([5, 6]), driverOf([5, 6]), driverOf([5, 6])];
  const [auto] = await choices('auto', drivers);
  assert.equal(auto?.kind, 'cpu');
  assert.match(auto?.reason ?? '', /^fewer GPUs than ranks: ranks 0 and 2 share GPU-05/);
  const cuda = await choices('cuda', drivers);
  assert.deepEqual(
    cuda.map(({ kind, ordinal }) => [kind, ordinal]),
    [
      ['cuda', 0],
      ['cuda', 1],
      ['cuda', 0],
    ],
  );
  assert.match(cuda[1]?.reason ?? '', /^asked for; ranks 0 and 2 share GPU-05/);
  assert.match(cuda[1]?.sharing ?? '', /^ranks 0 and 2 share GPU-05/);
});

test('cuda fails on all ranks alike, naming the rank that has no GPU', async () => {
  const results = await chooseAll('cuda', [driverOf([5, 6]), noDriver]);
  for (const result of results) {
    assert.equal(result.status, 'rejected');
    assert.ok(result.reason instanceof WeftlineError);
    assert.deepEqual([result.reason.code, result.reason.rank], ['WL_UNSUPPORTED', 1]);
    assert.match(result.reason.message, /^Cannot run on GPUs: rank 1 found no GPU: no driver library .*--device cpu/);
  }
});

test('cpu looks for no GPU', async () => {
  const untouched = new Proxy({} as CudaDriver, { get: () => assert.fail('the driver was asked') });
  assert.deepEqual(await choices('cpu', [untouched]), [{ kind: 'cpu', reason: 'asked for', ordinal: 0 }]);
});

test('ranks that ask for different devices fail on all of them', async () => {
  const gpu = driverOf([5, 6]);
  for (const result of await chooseAll(['cuda', 'cpu'], [gpu, gpu])) {
    assert.equal(result.status, 'rejected');
    assert.match(String(result.reason), /different devices: cuda on rank 0, cpu on rank 1/);
  }
});
