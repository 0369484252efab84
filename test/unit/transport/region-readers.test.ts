// Queue pairs that read a region, without a device: who is waited for, and what becomes of those that do not come to an end.
import assert from 'node:assert/strict';
import test from 'node:test';
import type { MemoryRegion } from '#lib/native/verbs/memory-region.js';
import type { QueuePair } from '#lib/native/verbs/queue-pair.js';
import type { SendRing } from '#lib/native/verbs/request-ring.js';
import { type PacketMemory, PathEnd } from '#lib/transport/io/verbs/path-end.js';
import { RegionReaders, RegionUse } from '#lib/transport/io/verbs/verbs-rail.js';

/** Two ends that send from one region, and what was done with them. */
function setUp() {
  const story: string[] = [];
  const memory = { giveBack: () => {} } as unknown as PacketMemory;
  const ends = [0, 1].map((number) => {
    const sends = { depth: 16, doneUntil: () => {} } as unknown as SendRing;
    const queuePair = { sends, close: () => {} } as unknown as QueuePair;
    return new PathEnd({ memory }, queuePair, { number, queueKey: 1, firstSequence: 0 });
  }) as [PathEnd, PathEnd];
  const use = new RegionUse({} as MemoryRegion);
  const rail = {
    reapSome: () => 0,
    fail: (end: PathEnd) => {
      end.isFailed = true;
    },
    cutOff: (end: PathEnd) => {
      story.push(`cut off ${end.number}`);
      end.isFailed = true;
    },
    closeEnd: (end: PathEnd) => {
      story.push(`closed ${end.number}`);
      end.close();
    },
  };
  /** One packet of the region. */
  const send = (end: PathEnd): void => {
    end.hold(0);
    use.mark(end);
  };
  const ask = (of: readonly PathEnd[] = ends): RegionReaders => new RegionReaders(rail, use.readersAmong(of), 0);
  return { ends, use, send, ask, story };
}

test('packets that are sent later do not count, however long they go on', () => {
  const { ends, send, ask, story } = setUp();
  const [x, y] = ends;
  for (const end of ends) send(end);
  const readers = ask();
  // Each packet of y is under way until after the next was sent.
  for (let sequence = 0; sequence < 400; sequence += 1) {
    send(y);
    y.doneUntil(sequence);
    assert.equal(readers.areThrough(sequence * 1000), false, 'x has not ended');
  }
  x.doneUntil(0);
  assert.equal(readers.areThrough(400_000), true);
  assert.ok(y.underWay > 0);
  assert.deepEqual(story, []);
});

test('those that do not come to an end are failed, then destroyed; a healthy one that sends on is left alone', () => {
  const { ends, send, ask, story } = setUp();
  const [x, y] = ends;
  for (const end of ends) send(end);
  const readers = ask();
  let sequence = 0;
  const goOn = (): void => {
    send(y);
    y.doneUntil(sequence++);
  };
  for (let now = 0; now < 500_000; now += 1000) {
    goOn();
    assert.equal(readers.areThrough(now), false);
  }
  assert.deepEqual(story, []);
  assert.equal(readers.areThrough(500_000), false);
  assert.deepEqual(story, ['cut off 0']);
  goOn();
  assert.equal(readers.areThrough(999_999), false);
  assert.equal(readers.areThrough(1_000_000), true);
  assert.deepEqual(story, ['cut off 0', 'closed 0']);
  assert.ok(x.isClosed && !y.isFailed && y.underWay > 0);
});

test('two that are asked for at different times wait for different packets', () => {
  const { ends, send, ask } = setUp();
  const [x] = ends;
  send(x);
  const first = ask();
  send(x);
  const second = ask();
  x.doneUntil(0);
  assert.equal(first.areThrough(1), true);
  assert.equal(second.areThrough(1), false);
  x.doneUntil(1);
  assert.equal(second.areThrough(2), true);
});

test('only ends that have packets of the region under way are readers', () => {
  const { ends, use, send } = setUp();
  const [x, y] = ends;
  send(x);
  y.hold(0);
  assert.deepEqual(use.readersAmong(ends), [{ end: x, mark: 1 }]);
  assert.deepEqual(use.readersAmong([y]), []);
  x.doneUntil(0);
  assert.deepEqual(use.readersAmong(ends), []);
});
