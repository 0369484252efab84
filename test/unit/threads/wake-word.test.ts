import assert from 'node:assert/strict';
import test from 'node:test';
import { Worker } from 'node:worker_threads';
import { Futex } from '#lib/native/libc.js';
import { WakeWord } from '#lib/threads/wake-word.js';

test('a ring after `seen` was read ends a sleep at once, blocking or not', async () => {
  const wake = new WakeWord();
  const { seen } = wake;
  new WakeWord(wake.buffer).ring();
  wake.sleepBlocking(seen, 2 ** 30);
  await wake.sleep(seen, 2 ** 30);
  assert.notEqual(wake.seen, seen);
});

test('without a ring a sleep ends with its time', async () => {
  const wake = new WakeWord();
  wake.sleepBlocking(wake.seen, 1);
  const alive = setInterval(() => {}, 1000);
  await wake.sleep(wake.seen, 1);
  clearInterval(alive);
});

/** A thread that rings once. */
function ringElsewhere(wake: WakeWord): Worker {
  return new Worker(
    `const { workerData } = require('node:worker_threads');
     import(workerData.module).then(({ WakeWord }) => new WakeWord(workerData.buffer).ring());`,
    { eval: true, workerData: { buffer: wake.buffer, module: import.meta.resolve('#lib/threads/wake-word.js') } },
  );
}

test('another thread wakes a blocked one', async () => {
  const wake = new WakeWord();
  const { seen } = wake;
  const worker = ringElsewhere(wake);
  wake.sleepBlocking(seen, 2 ** 30);
  assert.notEqual(wake.seen, seen);
  await worker.terminate();
});

function makeBell() {
  const words = new Int32Array(new SharedArrayBuffer(8));
  return { value: words.subarray(0, 1), waiters: words.subarray(1) };
}

test('a ring rings the bells on which somebody sleeps, until that is ended', () => {
  const wake = new WakeWord();
  const [bell, other] = [makeBell(), makeBell()];
  const ends = [wake.alsoRing(bell), wake.alsoRing(other)];
  const ringer = new WakeWord(wake.buffer);
  ringer.ring();
  assert.deepEqual([bell.value[0], other.value[0]], [0, 0], 'nobody sleeps');
  bell.waiters[0] = 1;
  ringer.ring();
  assert.deepEqual([bell.value[0], other.value[0]], [1, 0]);
  ends[0]!();
  ringer.ring();
  assert.equal(bell.value[0], 1);

  // The place that became free.
  const third = makeBell();
  third.waiters[0] = 1;
  assert.notEqual(wake.alsoRing(third), undefined);
  ringer.ring();
  assert.deepEqual([bell.value[0], other.value[0], third.value[0]], [1, 0, 1]);
});

test('more bells than there are places for are refused', () => {
  const wake = new WakeWord();
  const ends = Array.from({ length: 9 }, () => wake.alsoRing(makeBell()));
  assert.equal(ends.at(-1), undefined);
  assert.ok(ends.slice(0, -1).every((end) => end !== undefined));
});

test('another thread wakes one that the kernel lets sleep on a bell', async () => {
  const wake = new WakeWord();
  const bell = makeBell();
  wake.alsoRing(bell);
  bell.waiters[0] = 1;
  const worker = ringElsewhere(wake);
  const futex = new Futex(bell.value);
  while (Atomics.load(bell.value, 0) === 0) futex.waitBlocking(0, 900_000_000);
  await worker.terminate();
});

test('something unannounced is expected until all who expect it have ended that, once each', () => {
  const wake = new WakeWord();
  const ends = [wake.expectUnannounced(), new WakeWord(wake.buffer).expectUnannounced()];
  assert.equal(wake.expectsUnannounced, true);
  ends[0]!();
  ends[0]!();
  assert.equal(wake.expectsUnannounced, true);
  ends[1]!();
  assert.equal(wake.expectsUnannounced, false);
});
