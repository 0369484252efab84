// The thread that sleeps for another: on a word that other processes ring, and on descriptors that are watched once each.
import assert from 'node:assert/strict';
import test from 'node:test';
import { Futex } from '#lib/native/libc.js';
import { addressOf } from '#lib/native/library.js';
import { Doorbell, ReadinessSet } from '#lib/native/readiness.js';
import { WakeWord } from '#lib/threads/wake-word.js';
import { WatchThread } from '#lib/threads/watch-thread.js';

const LONG_MS = 60_000;

async function rungAfter(wake: WakeWord, seen: number): Promise<void> {
  const alive = setInterval(() => {}, LONG_MS);
  await wake.sleep(seen, LONG_MS);
  clearInterval(alive);
  assert.notEqual(wake.seen, seen, 'nothing rang');
}

async function started(thread: WatchThread): Promise<void> {
  while (!thread.isRunning) await new Promise((resolve) => setTimeout(resolve, 1));
}

test('a word that others ring as a futex wakes the owner, and the thread ends when it is told to', async () => {
  const word = new Int32Array(new SharedArrayBuffer(4));
  const ring = (): void => {
    Atomics.add(word, 0, 1);
    new Futex(word).wakeAll();
  };
  const wake = new WakeWord();
  const thread = new WatchThread({ name: 'test', wake, source: { futex: Number(addressOf(word)) }, ring });
  await started(thread);
  for (let round = 0; round < 3; round++) {
    const seen = wake.seen;
    ring();
    await rungAfter(wake, seen);
  }
  await thread.close();
  assert.equal(thread.isRunning, false);
});

test('a descriptor is told of once, until it is added again', async () => {
  using readiness = new ReadinessSet();
  using end = Doorbell.create();
  using first = Doorbell.create();
  using second = Doorbell.create();
  readiness.add(end.fd, 0);
  readiness.addOnce(first.fd, 1);
  readiness.addOnce(second.fd, 2);
  const wake = new WakeWord();
  const source = { readiness: readiness.fd };
  const thread = new WatchThread({ name: 'test', wake, source, ring: () => end.ring() });
  await started(thread);
  let seen = wake.seen;
  first.ring();
  await rungAfter(wake, seen);
  assert.deepEqual([thread.isReady(1), thread.isReady(2)], [true, false]);

  // The first one stays readable, and must not ring again beside the second.
  thread.forget(1);
  seen = wake.seen;
  second.ring();
  await rungAfter(wake, seen);
  assert.deepEqual([thread.isReady(1), thread.isReady(2)], [false, true]);

  seen = wake.seen;
  readiness.addAgain(first.fd, 1);
  await rungAfter(wake, seen);
  assert.equal(thread.isReady(1), true);
  await thread.close();
});
