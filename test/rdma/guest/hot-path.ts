// In the guest: how many native calls writes take, and that a ring goes round many times.
import assert from 'node:assert/strict';
import test from 'node:test';
import { sendFlag, sendOpcode } from '#lib/native/verbs/c-structs.js';
import type { VerbsContext, VerbsOperations } from '#lib/native/verbs/context.js';
import { connectPair, fill, nextCompletions, Side } from './support/pair.ts';

const BATCH = 16;

/** Counts all native calls of the hot paths of a context from now on; to be called before its queue pairs are made. */
function countCalls(context: VerbsContext): { total: number } {
  const count = { total: 0 };
  const operations = context.operations as unknown as Record<keyof VerbsOperations, (...words: number[]) => number>;
  for (const [name, real] of Object.entries(operations)) {
    operations[name as keyof VerbsOperations] = (...words) => {
      count.total += 1;
      return real(...words);
    };
  }
  return count;
}

for (const signaled of ['every', 'last'] as const) {
  test(`16 writes and their completions (${signaled} signaled) take 2 native calls, 3 at most`, () => {
    using a = new Side('rxe0');
    using b = new Side('rxe1');
    const calls = countCalls(a.context);
    const [one] = connectPair('rc', [a, b]);
    const [from, to] = [a.memory.address, b.memory.address];
    for (let round = 1; round <= 20; round += 1) {
      fill(a.memory.bytes.subarray(0, BATCH * 64), round);
      b.memory.bytes[4096] = round;
      const before = calls.total;
      for (let index = 0; index < BATCH; index += 1) {
        assert.ok(one.sends.start(sendOpcode.write, signaled === 'every' ? sendFlag.signaled : 0, index));
        one.sends.add(from + index * 64, 64, a.region.localKey);
        one.sends.target(to + index * 64, b.region.remoteKey);
      }
      one.sends.signal();
      // Once the byte that a read brings is seen, all completions before it are there: no poll is in vain.
      assert.ok(one.sends.start(sendOpcode.read, 0, BATCH));
      one.sends.add(from + 4096, 1, a.region.localKey);
      one.sends.target(to + 4096, b.region.remoteKey);
      one.sends.post();
      const until = Date.now() + 120_000;
      while (a.memory.bytes[4096] !== round) assert.ok(Date.now() < until, 'the read did not come');
      const count = a.completions.poll();
      assert.equal(calls.total - before, 2);
      assert.equal(count, signaled === 'every' ? BATCH : 1);
      for (let index = 0; index < count; index += 1) {
        assert.ok(a.completions.isSuccess(index));
        assert.equal(a.completions.tagAt(index), BATCH - count + index);
      }
      one.sends.doneUntil(a.completions.sequenceAt(count - 1));
      // The read is known to be done with the next write that is.
      assert.equal(one.sends.room, one.sends.depth - 1);
      assert.deepEqual(b.memory.bytes.subarray(0, BATCH * 64), a.memory.bytes.subarray(0, BATCH * 64));
    }
  });
}

test('a full ring refuses requests, and takes them after completions', () => {
  using a = new Side('rxe0');
  using b = new Side('rxe1');
  const [one] = connectPair('rc', [a, b], { maxSends: 8 });
  const startWrite = (): boolean => {
    if (!one.sends.start(sendOpcode.write, sendFlag.signaled, 0)) return false;
    one.sends.add(a.memory.address, 8, a.region.localKey);
    one.sends.target(b.memory.address, b.region.remoteKey);
    return true;
  };
  let started = 0;
  let done = 0;
  while (done < 200) {
    while (started < 200 && startWrite()) started += 1;
    assert.ok(started - done <= 8);
    one.sends.post();
    const count = nextCompletions(a.completions);
    for (let index = 0; index < count; index += 1) assert.ok(a.completions.isSuccess(index));
    one.sends.doneUntil(a.completions.sequenceAt(count - 1));
    done += count;
    assert.equal(one.sends.room, 8 - (started - done));
  }
});
