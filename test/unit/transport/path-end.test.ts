// One end of a path, without a device: what a failed one is when it has begun again.
import assert from 'node:assert/strict';
import test from 'node:test';
import type { QueuePair } from '#lib/native/verbs/queue-pair.js';
import { type PacketMemory, PathEnd } from '#lib/transport/io/verbs/path-end.js';

function endOf(steps: Partial<Record<'reset' | 'initialize' | 'open', (...values: unknown[]) => void>>): PathEnd {
  const queuePair = { sends: { depth: 16 }, ...steps } as unknown as QueuePair;
  const end = new PathEnd({ memory: {} as PacketMemory }, queuePair, { number: 0, queueKey: 7, firstSequence: 9 });
  end.isFailed = true;
  end.hasTakenLast = true;
  return end;
}

test('an end that begins again holds receives of the device again', () => {
  const story: unknown[] = [];
  const end = endOf({
    reset: () => story.push('reset'),
    initialize: (...values) => story.push(values),
    open: (...values) => story.push(values),
  });
  end.restart(1);
  assert.deepEqual(story, ['reset', [1, {}, 7], [9]]);
  assert.equal(end.isFailed, false);
  assert.equal(end.hasTakenLast, false);
});

test('one that the device does not let begin again stays failed', () => {
  const end = endOf({
    reset: () => {
      throw new Error('refused');
    },
  });
  assert.throws(() => end.restart(1), /refused/);
  assert.ok(end.isFailed && end.hasTakenLast);
});
