import assert from 'node:assert/strict';
import test from 'node:test';
import { Worker } from 'node:worker_threads';
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

test('another thread wakes a blocked one', async () => {
  const wake = new WakeWord();
  const { seen } = wake;
  const worker = new Worker(
    `const { workerData } = require('node:worker_threads');
     import(workerData.module).then(({ WakeWord }) => new WakeWord(workerData.buffer).ring());`,
    { eval: true, workerData: { buffer: wake.buffer, module: import.meta.resolve('#lib/threads/wake-word.js') } },
  );
  wake.sleepBlocking(seen, 2 ** 30);
  assert.notEqual(wake.seen, seen);
  await worker.terminate();
});
