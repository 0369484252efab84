import assert from 'node:assert/strict';
import test from 'node:test';
import { Worker } from 'node:worker_threads';
import { SharedLock } from '#lib/threads/wake-word.js';

const ROUNDS = 50_000;

test('threads that hold the lock in turn lose none of their stores', async () => {
  const buffer = new SharedArrayBuffer(8);
  const count = new Int32Array(buffer, 4, 1);
  const workers = [1, 2].map(
    () =>
      new Worker(
        `const { workerData: { buffer, module, rounds } } = require('node:worker_threads');
         import(module).then(({ SharedLock }) => {
           const lock = new SharedLock(buffer, 0);
           const count = new Int32Array(buffer, 4, 1);
           for (let round = 0; round < rounds; round += 1) {
             lock.take();
             count[0] += 1;
             lock.release();
           }
         });`,
        {
          eval: true,
          workerData: { buffer, rounds: ROUNDS, module: import.meta.resolve('#lib/threads/wake-word.js') },
        },
      ),
  );
  const ends = workers.map((worker) => new Promise((resolve) => worker.once('exit', resolve)));
  const lock = new SharedLock(buffer, 0);
  for (let round = 0; round < ROUNDS; round += 1) {
    lock.take();
    (count[0] as number) += 1;
    lock.release();
  }
  await Promise.all(ends);
  assert.equal(count[0], 3 * ROUNDS);
});
