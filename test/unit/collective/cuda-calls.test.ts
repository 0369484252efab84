// What becomes of a call on a GPU that fails: who hears of it, when, and that nothing waits any longer; a pretended driver.
import assert from 'node:assert/strict';
import test from 'node:test';
import { type CudaDevice, readSettings, WeftlineError } from 'weftline';
import { Deadline } from '#lib/core/deadline.js';
import { trapRecord } from '#lib/abi/trap-record.js';
import { CudaContext } from '#lib/device/cuda/cuda-context.js';
import { CudaStream } from '#lib/device/cuda/cuda-stream.js';
import { CudaCalls } from '#lib/collective/cuda-calls.js';
import { addressOf } from '#lib/native/library.js';
import { pretendDriver } from '../support/pretended-driver.ts';

const failure = new WeftlineError('WL_CAPACITY', 'too many rows');

interface Pretended {
  readonly calls: CudaCalls;
  readonly stream: CudaStream;
  /** Of the trap record, where kernels look whether to go on waiting. */
  readonly isAborted: () => boolean;
  /** As a kernel that tells the host. */
  readonly fail: () => void;
}

function pretend(): Pretended {
  const { driver, status } = pretendDriver();
  const memory = new Uint8Array(new SharedArrayBuffer(4096));
  status.cuMemHostAlloc = (out) => (((out as [number])[0] = Number(addressOf(memory))), 0);
  status.cuStreamQuery = 600;
  const context = CudaContext.retain(0, driver);
  const stream = new CudaStream(context, { priority: 'normal', timeoutMs: 5000 }, () => {});
  const settings = readSettings({ timeoutMs: 5000 }, {});
  const group = { ranks: [0], peerLost: new AbortController().signal, settings };
  let found: WeftlineError | undefined;
  const findFailure = (): WeftlineError | undefined => found;
  const calls = new CudaCalls(group, { context } as unknown as CudaDevice, { findFailure });
  const isAborted = (): boolean => new DataView(memory.buffer).getUint32(trapRecord.offset.abort, true) === 1;
  return { calls, stream, isAborted, fail: () => (found = failure) };
}

test('a failure that nobody waited for ends the wait of a later call at once, and of its kernel', async () => {
  const { calls, isAborted, fail } = pretend();
  setTimeout(fail, 5);
  // Not with WL_TIMEOUT.
  await assert.rejects(
    calls.waitFor('The next call', () => false, { timeoutMs: 20_000 }),
    failure,
  );
  assert.ok(isAborted());
  assert.throws(() => calls.throwIfUnusable(), failure);
});

test('a wait for the device reports a failure while the device still works, once', async () => {
  const { stream, isAborted, fail } = pretend();
  setTimeout(fail, 5);
  await assert.rejects(stream.idle({ timeoutMs: 20_000 }), failure);
  assert.ok(isAborted());
  await assert.rejects(stream.idle({ timeoutMs: 10 }), { code: 'WL_TIMEOUT' });
});

test('a wait that is given up leaves no kernel waiting', async () => {
  const { calls, isAborted } = pretend();
  const reason = new Error('enough');
  const never = calls.waitFor('A call', () => false, { signal: AbortSignal.abort(reason) });
  await assert.rejects(never, reason);
  assert.ok(isAborted());
  assert.throws(() => calls.throwIfUnusable(), { code: 'WL_CLOSED', cause: reason });
});

test('a kernel may wait for what is left of the time of its call', () => {
  const { calls } = pretend();
  assert.equal(calls.timeoutNs({ timeoutMs: 7 }), 7e6);
  assert.equal(calls.timeoutNs({ deadline: new Deadline(0), timeoutMs: 7 }), 0);
  assert.ok(calls.timeoutNs({ deadline: new Deadline(1000) }) <= 1e9);
});

test('an object that is given up fails every later call with the reason, and its kernels leave', () => {
  const { calls, isAborted } = pretend();
  const late = new WeftlineError('WL_TIMEOUT', 'rank 1 did not come');
  assert.equal(calls.giveUp(late), late);
  assert.ok(isAborted());
  assert.throws(() => calls.throwIfUnusable(), late);
  calls.giveUp(new WeftlineError('WL_TIMEOUT', 'another one'));
  assert.throws(() => calls.throwIfUnusable(), late);
});
