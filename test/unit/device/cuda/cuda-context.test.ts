// Errors of the driver and the life of a context, with a driver that is only pretended.
import assert from 'node:assert/strict';
import test from 'node:test';
import { cudaDeviceCount, WeftlineError } from 'weftline';
import { CudaContext } from '#lib/device/cuda/cuda-context.js';
import { CudaEvent } from '#lib/device/cuda/cuda-event.js';
import { CudaStream, WorkFences } from '#lib/device/cuda/cuda-stream.js';
import { formatUuid } from '#lib/device/cuda/device-properties.js';
import { MemoryPool } from '#lib/device/cuda/memory-pool.js';
import { pretendDriver } from '../../support/pretended-driver.ts';

function codeOf(act: () => unknown): { readonly code: string; readonly message: string; readonly details: unknown } {
  try {
    act();
  } catch (error) {
    assert.ok(error instanceof WeftlineError);
    return { code: error.code, message: error.message, details: error.details };
  }
  return assert.fail('nothing was thrown');
}

test('an error names the call, the status and the likely mistake', () => {
  const { driver, status } = pretendDriver();
  using context = CudaContext.retain(2, driver);
  status.cuMemFree = 1;
  const error = codeOf(() => context.call('cuMemFree', 4096));
  assert.equal(error.code, 'WL_CUDA');
  assert.match(error.message, /^cuMemFree failed on GPU 2 with CUDA_ERROR_1 \(1\): an argument is out of range/);
  assert.deepEqual(error.details, { call: 'cuMemFree', status: 1, device: 2, name: 'CUDA_ERROR_1', sticky: false });
  assert.equal(context.lost, undefined);
});

test('a sticky error loses the device: every later call says who did it, and nothing is called any more', () => {
  const { driver, calls, status } = pretendDriver();
  const context = CudaContext.retain(0, driver);
  const stream = new CudaStream(context, { priority: 'normal', timeoutMs: 30_000 }, () => undefined);
  context.lastLaunch = 'dispatch.cu:dispatchRows';
  status.cuStreamQuery = 700;
  const first = codeOf(() => stream.isIdle());
  assert.match(
    first.message,
    /with CUDA_ERROR_700 \(700\): a kernel read or wrote .*; the last kernel launched was dispatch\.cu:dispatchRows; the device is lost/,
  );
  const count = calls.length;
  for (const act of [
    () => stream.isIdle(),
    () => context.call('cuMemFree', 1),
    () => new CudaEvent(context, { timing: false, timeoutMs: 1 }),
  ]) {
    const later = codeOf(act);
    assert.equal(later.code, 'WL_CUDA');
    assert.ok(later.message.startsWith('GPU 0 is lost to this process since: cuStreamQuery failed'), later.message);
  }
  stream[Symbol.dispose]();
  context[Symbol.dispose]();
  assert.equal(calls.length, count);
});

test('what belongs to a context goes before it, the newest first, and each once', () => {
  const { driver, calls } = pretendDriver();
  const context = CudaContext.retain(0, driver);
  const event = new CudaEvent(context, { timing: true, timeoutMs: 30_000 });
  const stream = new CudaStream(context, { priority: 'high', timeoutMs: 30_000 }, () => undefined);
  event.close();
  event[Symbol.dispose]();
  const later = new CudaEvent(context, { timing: true, timeoutMs: 30_000 });
  calls.length = 0;
  context[Symbol.dispose]();
  context[Symbol.dispose]();
  assert.deepEqual(calls, ['cuEventDestroy', 'cuStreamDestroy', 'cuDevicePrimaryCtxRelease']);
  assert.deepEqual([stream.disposed, later.disposed], [true, true]);
  assert.equal(codeOf(() => context.call('cuMemFree', 1)).code, 'WL_CLOSED');
});

test('the context is made current once, and again after another one was', () => {
  const { driver, calls } = pretendDriver();
  using first = CudaContext.retain(0, driver);
  using second = CudaContext.retain(1, driver);
  calls.length = 0;
  for (const context of [first, first, second, second, first]) context.call('cuMemFree', 1);
  assert.equal(calls.filter((call) => call === 'cuCtxSetCurrent').length, 3);
});

test('a wait for the device polls, and ends with its deadline, its signal or an error', async () => {
  const { driver, status } = pretendDriver();
  using context = CudaContext.retain(0, driver);
  const event = new CudaEvent(context, { timing: false, timeoutMs: 30 });
  status.cuEventQuery = 600;
  await assert.rejects(event.wait(), { code: 'WL_TIMEOUT', message: /within 30 ms/ });
  const reason = new Error('enough');
  await assert.rejects(event.wait({ signal: AbortSignal.abort(reason) }), reason);
  setTimeout(() => (status.cuEventQuery = 0), 10);
  await event.wait({ timeoutMs: 30_000 });
  status.cuEventQuery = 719;
  await assert.rejects(event.wait(), { code: 'WL_CUDA' });
});

test('memory that was given back waits for the work before it, and then serves again', () => {
  const { driver, calls, status } = pretendDriver();
  using context = CudaContext.retain(0, driver);
  const stream = new CudaStream(context, { priority: 'normal', timeoutMs: 30_000 }, () => undefined);
  const pool = new MemoryPool(context, new WorkFences(context, new Set([stream])));
  const first = pool.take(1000);
  status.cuEventQuery = 600;
  pool.give(first);
  const second = pool.take(1000);
  assert.notEqual(second, first);
  status.cuEventQuery = 0;
  assert.equal(pool.take(600), first);
  assert.equal(pool.used, 2048);
  pool.give(first);
  pool.give(second);
  pool.give(second);
  assert.equal(calls.filter((call) => call === 'cuMemFree').length, 0);
  // Larger blocks are not wasted on small wishes.
  assert.ok(![first, second].includes(pool.take(100)));
  status.cuMemAlloc = 2;
  const error = codeOf(() => pool.take(3 << 20));
  assert.equal(error.code, 'WL_MEMORY');
  assert.equal(calls.filter((call) => call === 'cuMemFree').length, 2);
});

test('memory outside of the pool takes the place of free blocks too, and is WL_MEMORY when there is none', () => {
  const { driver, calls, status } = pretendDriver();
  using context = CudaContext.retain(0, driver);
  const stream = new CudaStream(context, { priority: 'normal', timeoutMs: 30_000 }, () => undefined);
  const pool = new MemoryPool(context, new WorkFences(context, new Set([stream])));
  pool.give(pool.take(1000));
  status.cuMemAlloc = () => (calls.includes('cuMemFree') ? 0 : 2);
  assert.ok(pool.allocate(2 << 20) > 0);
  assert.equal(pool.used, 0);
  status.cuMemAlloc = 2;
  assert.match(codeOf(() => pool.allocate(2 << 20)).message, /^Cannot take 2 MiB on GPU 0/);
  assert.equal(codeOf(() => pool.allocate(2 << 20)).code, 'WL_MEMORY');
});

test('a machine without driver has no GPU, and other failures are none either', () => {
  const { driver, status } = pretendDriver();
  status.cuInit = 100;
  assert.equal(cudaDeviceCount(driver), 0);
});

test('formatUuid() groups as nvidia-smi does', () => {
  assert.equal(formatUuid(Uint8Array.from({ length: 16 }, (_, i) => i)), 'GPU-00010203-0405-0607-0809-0a0b0c0d0e0f');
});

test('who judges a wait is told of which stream it is: its own, or that on which the event was recorded', async () => {
  const { driver } = pretendDriver();
  using context = CudaContext.retain(0, driver);
  const options = { priority: 'normal', timeoutMs: 30_000 } as const;
  const streams = [1, 2].map(() => new CudaStream(context, options, () => undefined));
  const heard: (number | undefined)[] = [];
  const end = context.judgeWaits((_isDone, stream) => heard.push(stream));
  await streams[0]!.idle();
  await new CudaEvent(context, { timing: false, timeoutMs: 30_000 }).record(streams[1]!).wait();
  context.isGood(true);
  end();
  context.isGood(true);
  assert.deepEqual(heard, [streams[0]!.handle, streams[1]!.handle, undefined]);
});
