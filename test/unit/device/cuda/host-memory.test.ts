// Host memory for kernels, and what waits of theirs leave in it, with a driver that is only pretended.
import assert from 'node:assert/strict';
import test from 'node:test';
import { trapReasons, trapRecord, trapStates } from '#lib/abi/trap-record.js';
import { Block } from '#lib/abi/layout.js';
import { CudaContext } from '#lib/device/cuda/cuda-context.js';
import { HostMemory } from '#lib/device/cuda/host-memory.js';
import { TrapBox } from '#lib/device/cuda/trap-box.js';
import { addressOf } from '#lib/native/library.js';
import { pretendDriver } from '../../support/pretended-driver.ts';
import { withCode } from '../../../support/with-code.ts';

test('more than a view can show is refused before it is taken', () => {
  const { driver, calls } = pretendDriver();
  using context = CudaContext.retain(0, driver);
  assert.throws(() => new HostMemory(context, 2 ** 32 + 1), withCode('WL_INVALID_ARGUMENT', /at most 4 GiB/));
  assert.ok(!calls.includes('cuMemHostAlloc'));
});

test('a peer that gave up and has closed its side since is one that gave up', () => {
  const { driver, status } = pretendDriver();
  const memory = new SharedArrayBuffer(trapRecord.size);
  status.cuMemHostAlloc = (...parameters) => {
    (parameters[0] as number[])[0] = Number(addressOf(new Uint8Array(memory)));
    return 0;
  };
  using context = CudaContext.retain(0, driver);
  using traps = new TrapBox(context);
  const record = new Block(trapRecord, memory, 0);
  const leave = (seen: number): void => {
    record.set('reason', trapReasons.peerGaveUp);
    record.set('seen', seen);
    record.set('state', trapStates.readable);
  };
  leave(1);
  assert.throws(() => traps.throwIfExpired(), withCode('WL_PEER_FAILED', /gave up a call/));
  leave(2 ** 32);
  assert.throws(() => traps.throwIfExpired(), withCode('WL_PEER_LOST', /closed its side/));
  leave(2 ** 32 + 1);
  assert.throws(() => traps.throwIfExpired(), withCode('WL_PEER_FAILED', /gave up a call/));
});
