// What becomes of a call on a GPU that fails: who hears of it, when, and that nothing waits any longer; a pretended driver.
import assert from 'node:assert/strict';
import test from 'node:test';
import { type CudaDevice, readSettings, WeftlineError } from 'weftline';
import { Deadline } from '#lib/core/deadline.js';
import { networkPhases } from '#lib/abi/network.js';
import { Block } from '#lib/abi/layout.js';
import { trapKernels, trapReasons, trapRecord, trapStates } from '#lib/abi/trap-record.js';
import { callWord } from '#lib/group/calls.js';
import { CudaContext } from '#lib/device/cuda/cuda-context.js';
import { CudaStream } from '#lib/device/cuda/cuda-stream.js';
import { CudaCalls } from '#lib/group/cuda-calls.js';
import { addressOf } from '#lib/native/library.js';
import { withCode } from '../../support/with-code.ts';
import { pretendDriver } from '../support/pretended-driver.ts';

const failure = new WeftlineError('WL_CAPACITY', 'too many rows');

interface Pretended {
  readonly calls: CudaCalls;
  readonly stream: CudaStream;
  /** Reads the trap record, where kernels look whether to go on waiting. */
  readonly isAborted: () => boolean;
  /** As a kernel that tells the host. */
  readonly fail: () => void;
  /** As a kernel of rank 0 that leaves while it waits for rank 1. */
  readonly leave: (reason: keyof typeof trapReasons, expected: number, seen: number) => void;
  /** How often the object's peers were told. */
  readonly told: () => number;
}

function pretend(): Pretended {
  const { driver, status } = pretendDriver();
  const memory = new Uint8Array(new SharedArrayBuffer(4096));
  status.cuMemHostAlloc = (out) => (((out as [number])[0] = Number(addressOf(memory))), 0);
  status.cuStreamQuery = 600;
  const context = CudaContext.retain(0, driver);
  const stream = new CudaStream(context, { priority: 'normal', timeoutMs: 30_000 }, () => {});
  const settings = readSettings({ timeoutMs: 30_000 }, {});
  const group = { ranks: [4, 7], peerLost: new AbortController().signal, settings };
  let found: WeftlineError | undefined;
  const findFailure = (): WeftlineError | undefined => found;
  let told = 0;
  const options = { findFailure, onGiveUp: () => void (told += 1) };
  const calls = new CudaCalls(group, { context } as unknown as CudaDevice, options);
  const isAborted = (): boolean => new DataView(memory.buffer).getUint32(trapRecord.offset.abort, true) === 1;
  const leave: Pretended['leave'] = (reason, expected, seen) => {
    const record = new Block(trapRecord, memory.buffer, 0);
    const channel = callWord({ kind: 'combine', handle: 3 }, 'opening') | (networkPhases.sums << 4);
    const fields = { kernel: trapKernels.epCombine, rank: 0, peer: 1, channel, reason: trapReasons[reason] };
    const numbers = { ...fields, expected, seen, timeoutNs: 5e9, state: trapStates.readable };
    for (const [name, value] of Object.entries(numbers)) record.set(name as keyof typeof numbers, value);
  };
  return { calls, stream, isAborted, fail: () => (found = failure), leave, told: () => told };
}

test('a failure that nobody waited for ends the wait of a later call at once, and of its kernel', async () => {
  const { calls, isAborted, fail } = pretend();
  setTimeout(fail, 5);
  // Not with WL_TIMEOUT.
  await assert.rejects(
    calls.waitFor('The next call', () => false, { timeoutMs: 60_000 }),
    failure,
  );
  assert.ok(isAborted());
  assert.throws(() => calls.throwIfUnusable(), failure);
});

test('a wait for the device reports a failure while the device still works, once', async () => {
  const { stream, isAborted, fail } = pretend();
  setTimeout(fail, 5);
  await assert.rejects(stream.idle({ timeoutMs: 60_000 }), failure);
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
  assert.equal(calls.timeoutNs({}), 30e9);
  assert.throws(() => calls.timeoutNs({ timeoutMs: -1 }), { code: 'WL_INVALID_ARGUMENT' });
  assert.equal(calls.timeoutNs({ deadline: new Deadline(0), timeoutMs: 7 }), 0);
  // Earlier stages have left one second, of which some passes until the look.
  const deadline = new Deadline(60_000, performance.now() + 1000);
  assert.ok(calls.timeoutNs({ deadline }) <= 1001e6);
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

for (const [what, reason, seen, code, message] of [
  [
    'that is late',
    'timeout',
    12,
    'WL_TIMEOUT',
    /rank 4 waited 5000 ms for rank 7 \(combine .*\(sums from another host\): expected 30, seen 12\)/,
  ],
  [
    'that gave up',
    'peerGaveUp',
    1,
    'WL_PEER_FAILED',
    /^Rank 7, on another host, gave up a call that kernel epCombine of rank 4 is in/,
  ],
  ['that closed its side', 'peerGaveUp', 2 ** 32, 'WL_PEER_LOST', /rank 4 waited for rank 7 .*which closed its side/],
  ['to which nothing could be sent', 'commandFailed', 2, 'WL_PEER_FAILED', /had for rank 7, on another host/],
] as const) {
  test(`a kernel that leaves because of a rank of another host ${what} names it, and the peers are told`, () => {
    const { calls, isAborted, leave, told } = pretend();
    leave(reason, 30, seen);
    assert.throws(() => calls.throwIfUnusable(), withCode(code, message));
    assert.ok(isAborted());
    assert.equal(told(), 1);
  });
}
