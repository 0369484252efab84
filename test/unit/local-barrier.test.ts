// The barrier of a window over plain shared memory: who is named when a rank stays away, leaves, or gives up first.
import assert from 'node:assert/strict';
import test from 'node:test';
import { WeftlineError } from 'weftline';
import { WINDOW_HEADER_BYTES } from '#lib/abi/window-header.js';
import { LocalBarrier, type LocalBarrierOptions } from '#lib/memory/local-barrier.js';
import { substituteSystemCall } from '#lib/native/system-call.js';

const ENOMEM = 12;
let isShortOfMemory = false;
substituteSystemCall('syscall', (real) => (...parameters) => {
  if (isShortOfMemory) return parameters.length === 7 && (parameters[2] as unknown) === 0 ? -ENOMEM : 0;
  return (real as unknown as (...all: never[]) => unknown)(...parameters);
});

/** Barriers of `ranks` ranks of one process over one header. */
function barriers(ranks: number, options: Partial<LocalBarrierOptions> = {}): LocalBarrier[] {
  const header = new SharedArrayBuffer(WINDOW_HEADER_BYTES);
  return Array.from(
    { length: ranks },
    (_, localRank) =>
      new LocalBarrier({
        header,
        headerOffset: 0,
        ranks: Array.from({ length: ranks }, (_rank, rank) => rank + 10),
        localRank,
        timeoutMs: 20_000,
        spinMicroseconds: 0,
        peerLost: new AbortController().signal,
        isAlive: () => true,
        describeCall: (call) => `call ${call}`,
        ...options,
      }),
  );
}

async function failureOf(promise: Promise<unknown>): Promise<WeftlineError> {
  const error: unknown = await promise.then(
    () => assert.fail('did not fail'),
    (reason: unknown) => reason,
  );
  assert.ok(error instanceof WeftlineError, String(error));
  return error;
}

test('a kernel that is short of memory for waits costs nobody the window', async () => {
  const [one, other] = barriers(2) as [LocalBarrier, LocalBarrier];
  isShortOfMemory = true;
  try {
    const early = one.wait(1);
    await new Promise((resolve) => setTimeout(resolve, 30));
    await Promise.all([early, other.wait(1)]);
    const alone = await failureOf(one.wait(2, { timeoutMs: 20 }));
    assert.equal(alone.code, 'WL_TIMEOUT');
    assert.match(alone.message, /Rank 11 did not arrive within 20 ms/);
  } finally {
    isShortOfMemory = false;
  }
});
