// Calls of a thread: results and errors, deadlines, cancellation, what the thread says unasked, and its death.
import assert from 'node:assert/strict';
import test from 'node:test';
import type { WeftlineError } from '#lib/core/errors.js';
import { type Calls, WorkerLink, type WorkerLinkOptions } from '#lib/threads/worker-link.js';

interface TestCalls extends Calls {
  double(value: number): number;
  refuse(code: string): void;
  /** Answers once it was cancelled; `cancelled` counts those. */
  wait(what: string, signal: AbortSignal): Promise<void>;
  cancelled(): number;
  report(words: readonly string[]): void;
  spin(): void;
  die(): void;
  fail(): void;
  failWith(code: string): void;
}

const port = import.meta.resolve('#lib/threads/worker-link.js');
const errors = import.meta.resolve('#lib/core/errors.js');
const program = `
  import { WorkerPort } from ${JSON.stringify(port)};
  import { WeftlineError } from ${JSON.stringify(errors)};
  export function run(data, messages) {
  const port = new WorkerPort(messages);
  let cancelled = 0;
  port.serve({
    double: (value) => value * 2 + data,
    refuse(code) { throw new WeftlineError(code, 'refused', { details: { code } }); },
    wait: (what, signal) => new Promise((resolve) => signal.addEventListener('abort', () => { cancelled += 1; resolve(); })),
    cancelled: () => cancelled,
    report(words) { for (const word of words) port.send(word); },
    spin() { for (;;); },
    die() { process.exit(); },
    fail() { setImmediate(() => { throw new Error('broken'); }); },
    failWith(code) { setImmediate(() => { throw new WeftlineError(code, 'no such name', { details: { name: 5 } }); }); },
    stop() {},
  });
  }`;

interface Opened extends Disposable {
  readonly link: WorkerLink<TestCalls, string>;
  readonly events: readonly string[];
  readonly ends: readonly WeftlineError[];
}

function open(options: Partial<WorkerLinkOptions<string>> = {}): Opened {
  const events: string[] = [];
  const ends: WeftlineError[] = [];
  const link = new WorkerLink<TestCalls, string>({
    entry: new URL(`data:text/javascript,${encodeURIComponent(program)}`),
    name: 'test',
    what: 'thread of this test',
    closedMessage: 'The test was closed',
    data: 1,
    timeoutMs: 60_000,
    onEvent: (event) => events.push(event),
    onEnd: (error) => ends.push(error),
    ...options,
  });
  return { link, events, ends, [Symbol.dispose]: () => void link.stop().catch(() => {}) };
}

test('a call brings its result, or what the thread throws', async () => {
  using opened = open();
  assert.equal(await opened.link.call('double', 4), 9);
  await assert.rejects(opened.link.call('refuse', 'WL_CAPACITY'), { code: 'WL_CAPACITY', message: 'refused' });
  const results = await Promise.all([1, 2, 3].map((value) => opened.link.call('double', value)));
  assert.deepEqual(results, [3, 5, 7]);
});

test('what the thread says unasked comes before the answers behind it', async () => {
  using opened = open();
  await opened.link.call('report', ['a', 'b']);
  assert.deepEqual(opened.events, ['a', 'b']);
});

test('a call whose signal is aborted rejects at once, and the thread is told', async () => {
  using opened = open();
  const controller = new AbortController();
  const waiting = opened.link.callWith({ signal: controller.signal }, 'wait', 'for ever');
  assert.equal(await opened.link.call('cancelled'), 0);
  controller.abort(new Error('enough'));
  await assert.rejects(waiting, { message: 'enough' });
  assert.equal(await opened.link.call('cancelled'), 1);
  await assert.rejects(opened.link.callWith({ signal: controller.signal }, 'double', 1), { message: 'enough' });
});

test('a call that is not answered in time fails with its name, and goes on no longer than it must', async () => {
  using opened = open({ timeoutMs: 50, lateReason: 'it sleeps' });
  const late = { code: 'WL_TIMEOUT', message: 'The thread of this test did not answer within 50 ms (wait): it sleeps' };
  await assert.rejects(opened.link.call('wait', 'for ever'), late);
  assert.equal(opened.link.failure, undefined);
  assert.deepEqual(opened.ends, []);
});

test('what cannot be sent to a thread is refused, and nothing waits for it', async () => {
  using opened = open();
  const call = opened.link.call('double', (() => 0) as never);
  await assert.rejects(call, { code: 'WL_INVALID_ARGUMENT', message: /double of the thread of this test.*cloned/ });
  assert.equal(await opened.link.call('double', 4), 9);
  assert.deepEqual(opened.ends, []);
});

test('a call may have a time of its own', async () => {
  using opened = open({ timeoutMs: 50 });
  const controller = new AbortController();
  const patient = opened.link.callWith({ timeoutMs: 60_000, signal: controller.signal }, 'wait', 'for long');
  const ended = assert.rejects(patient, { message: 'enough' });
  await assert.rejects(opened.link.call('wait', 'for ever'), { code: 'WL_TIMEOUT' });
  controller.abort(new Error('enough'));
  await ended;
  const hasty = opened.link.callWith({ timeoutMs: 1 }, 'wait', 'for ever');
  await assert.rejects(hasty, { code: 'WL_TIMEOUT', message: / 1 ms /, details: { call: 'wait', timeoutMs: 1 } });
});

test('a thread that hangs is ended by a call that says so', async () => {
  using opened = open({ timeoutMs: 50 });
  const behind = opened.link.call('double', 1);
  const late = { code: 'WL_TIMEOUT', message: /thread of this test .*50 ms/ };
  const failed = assert.rejects(opened.link.callWith({ endsThread: true }, 'spin'), late);
  await Promise.allSettled([behind]);
  await failed;
  await assert.rejects(opened.link.call('double', 1), late);
  await opened.link.stop();
});

for (const [how, why] of [
  ['die', 'The thread of this test ended'],
  ['fail', 'The thread of this test ended: broken'],
] as const) {
  test(`a thread that ends by itself fails the calls that wait, and says why (${how})`, async () => {
    using opened = open();
    const expected = { code: 'WL_INTERNAL', message: why };
    const waiting = assert.rejects(opened.link.call('wait', 'for ever'), expected);
    await opened.link.call(how).catch(() => {});
    await waiting;
    assert.equal(opened.ends.length, 1);
    await assert.rejects(opened.link.call('double', 1), expected);
    await opened.link.stop();
  });
}

test('a thread that ends with an error of the library fails the calls that wait with that error', async () => {
  using opened = open();
  const expected = { code: 'WL_INVALID_ARGUMENT', message: 'no such name', details: { name: 5 } };
  const waiting = assert.rejects(opened.link.call('wait', 'for ever'), expected);
  await opened.link.call('failWith', 'WL_INVALID_ARGUMENT').catch(() => {});
  await waiting;
  assert.deepEqual(
    opened.ends.map(({ code }) => code),
    ['WL_INVALID_ARGUMENT'],
  );
  await opened.link.stop();
});

test('a thread that was stopped takes no calls, and its end is no news', async () => {
  using opened = open();
  assert.equal(await opened.link.call('double', 1), 3);
  await Promise.all([opened.link.stop(), opened.link.stop()]);
  await assert.rejects(opened.link.call('double', 1), { code: 'WL_CLOSED', message: 'The test was closed' });
  assert.deepEqual(opened.ends, []);
  await opened.link.stop();
});

test('a thread that could not stop in good order is not used again, though it says at once that its work is over', async () => {
  const unstoppable = `
    import { threadId } from 'node:worker_threads';
    import { WorkerPort } from ${JSON.stringify(port)};
    export function run(flag, messages) {
      new WorkerPort(messages).serve({ thread: () => threadId, stop() { if (flag) throw new Error('it hangs on'); } });
      // Behind the pool's own listener, which says that the work is over.
      if (flag) process.once('beforeExit', () => { Atomics.store(flag, 0, 1); Atomics.notify(flag, 0); });
    }`;
  const entry = new URL(`data:text/javascript,${encodeURIComponent(unstoppable)}`);
  const flag = new Int32Array(new SharedArrayBuffer(4));
  const threads: number[] = [];
  for (const data of [undefined, flag, undefined]) {
    const link = open({ entry, data }).link as unknown as WorkerLink<{ thread(): number; stop(): void }>;
    threads.push(await link.call('thread'));
    const stopped = link.stop();
    if (data === undefined) await stopped;
    else {
      // 'not-equal': the thread was first.
      assert.notEqual(Atomics.wait(flag, 0, 0, 30_000), 'timed-out');
      await assert.rejects(stopped, { message: /it hangs on/ });
    }
  }
  assert.equal(threads[1], threads[0]);
  assert.notEqual(threads[2], threads[1]);
});
