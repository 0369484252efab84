// The barrier of a window over plain shared memory: who is named when a rank stays away, leaves, or gives up first.
import assert from 'node:assert/strict';
import { once } from 'node:events';
import test from 'node:test';
import { Worker } from 'node:worker_threads';
import { WeftlineError } from 'weftline';
import { AbortRecord, WINDOW_HEADER_BYTES, windowHeader } from '#lib/windows/abort-record.js';
import { Deadline } from '#lib/core/deadline.js';
import { LocalBarrier, type LocalBarrierOptions } from '#lib/windows/local-barrier.js';
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
    (_, index) =>
      new LocalBarrier({
        header,
        headerOffset: 0,
        ranks: Array.from({ length: ranks }, (_rank, rank) => rank + 10),
        index,
        timeoutMs: 60_000,
        spinUs: 0,
        firstCause: (error) => Promise.resolve(error),
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
    // So long that the early one sleeps, without the kernel's help.
    await new Promise((resolve) => setTimeout(resolve, 30));
    await Promise.all([early, other.wait(1)]);
    const alone = await failureOf(one.wait(2, { timeoutMs: 20 }));
    assert.equal(alone.code, 'WL_TIMEOUT');
    assert.match(alone.message, /Rank 11 did not arrive within 20 ms/);
  } finally {
    isShortOfMemory = false;
  }
});

test('the time of a call is shared by its barriers, and its whole is what the error tells', async () => {
  const [one, other] = barriers(2) as [LocalBarrier, LocalBarrier];
  const wholeMs = 2 ** 31 - 1;
  await Promise.all([one.wait(1, { deadline: new Deadline(wholeMs) }), other.wait(1)]);
  // An earlier stage of the call has left 20 ms. With the whole time, the barrier would not end while this test runs.
  const deadline = new Deadline(wholeMs, performance.now() + 20);
  const { code, message } = await failureOf(one.wait(2, { deadline }));
  assert.equal(code, 'WL_TIMEOUT');
  assert.match(message, /Rank 11 did not arrive within 2147483647 ms/);
  assert.equal(deadline.isOver, true);
});

test('a rank that was killed while it wrote why it gave up is lost, and nobody waits for its reason', async () => {
  const header = new SharedArrayBuffer(WINDOW_HEADER_BYTES);
  const [one] = barriers(2, { header, isAlive: (index) => index !== 1 });
  const WRITING = 1;
  new Int32Array(header, windowHeader.offset.abortState, 1)[0] = WRITING;
  const reason = await failureOf(one!.wait(1));
  assert.equal(reason.code, 'WL_PEER_LOST');
  assert.deepEqual(reason.details['ranks'], [11]);
});

test('a rank that gives up while another writes why goes on when all can read it', async () => {
  const header = new SharedArrayBuffer(WINDOW_HEADER_BYTES);
  const state = new Int32Array(header, windowHeader.offset.abortState, 1);
  const [WRITING, READABLE] = [1, 2] as const;
  state[0] = WRITING;
  // The rank that writes is late: it goes on only some time after the other has begun to give up.
  const writer = new Worker(
    `const { header, offset } = require('node:worker_threads').workerData;
     const state = new Int32Array(header, offset, 1);
     Atomics.store(state, 0, ${WRITING});
     require('node:worker_threads').parentPort.postMessage('ready');
     setTimeout(() => Atomics.store(state, 0, ${READABLE}), 50);`,
    { eval: true, workerData: { header, offset: windowHeader.offset.abortState } },
  );
  await once(writer, 'message');
  const begin = performance.now();
  new AbortRecord({ header, headerOffset: 0, ranks: [10, 11, 12], index: 0 }).raise(new Error('late'));
  const wasPatient = performance.now() - begin >= 1000;
  assert.ok(Atomics.load(state, 0) === READABLE || wasPatient, 'the reason is still being written');
  await once(writer, 'exit');
});

test('the first cause is named: those who hear that a rank gave up hear for whom it had waited', async () => {
  const [one, two] = barriers(3) as [LocalBarrier, LocalBarrier, LocalBarrier];
  const waiting = failureOf(two.wait(1));
  const first = await failureOf(one.wait(1, { timeoutMs: 20 }));
  assert.equal(first.code, 'WL_TIMEOUT');
  const second = await waiting;
  assert.equal(second.code, 'WL_PEER_FAILED');
  assert.match(second.message, /^Rank 10 gave up: WL_TIMEOUT: Rank 12 did not arrive/);
  assert.deepEqual([second.rank, second.details], [12, { rank: 10, blamed: [12] }]);
});

test('a rank that says why and leaves, just as another looks for it, is not named as the cause', async () => {
  const header = new SharedArrayBuffer(WINDOW_HEADER_BYTES);
  const record = new AbortRecord({ header, headerOffset: 0, ranks: [10, 11, 12], index: 1 });
  const lost = new WeftlineError('WL_PEER_LOST', 'Rank 12 ended', { details: { ranks: [12] } });
  const [one] = barriers(3, {
    header,
    isAlive: (index) => {
      if (index !== 1) return true;
      // Between the look at the reasons and this look at who lives.
      record.raise(lost);
      return false;
    },
  }) as [LocalBarrier];
  const failure = await failureOf(one.wait(1));
  assert.equal(failure.code, 'WL_PEER_FAILED', failure.message);
  assert.match(failure.message, /^Rank 11 gave up: WL_PEER_LOST: Rank 12 ended/);
  assert.equal(failure.rank, 12);
});

test('a rank that waits goes on with what only its thread does, as long as another one needs that', async () => {
  const [one, other] = barriers(2) as [LocalBarrier, LocalBarrier];
  let turns = 0;
  let waiting: Promise<void> | undefined;
  await new Promise<void>((resolve) => {
    one.workWhileWaiting(() => {
      // The first waits block this thread, the later ones sleep beside it.
      if (++turns === 50) resolve();
    });
    waiting = one.wait(1);
  });
  await other.wait(1);
  await waiting;
  const done = turns;
  assert.ok(done >= 50);
  await new Promise((resolve) => setImmediate(resolve));
  assert.equal(turns, done);
});
