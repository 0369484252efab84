// Queue pairs on their way out, without a device: they are destroyed when what they sent has left and their receives are back,
// or when that had its time.
import assert from 'node:assert/strict';
import test from 'node:test';
import { LeavingEnds } from '#lib/transport/io/verbs/verbs-io.js';
import type { RailEnd } from '#lib/transport/io/verbs/verbs-rail.js';

interface Fake {
  readonly end: RailEnd;
  readonly state: { underWay: number; isFailed: boolean; hasTakenLast: boolean; isGone: boolean };
  /** What became of it, in order. */
  readonly story: string[];
  gaveBack: boolean;
}

function fakeEnd(isShared: boolean): Fake {
  const story: string[] = [];
  const state = { underWay: 0, isFailed: false, hasTakenLast: false, isGone: false };
  const queuePair = { number: 7, fail: () => story.push('failed') };
  const rail = {
    shared: isShared ? {} : undefined,
    receiver: { hasGivenBack: () => fake.gaveBack, strip: () => story.push('stripped') },
    findEnd: () => (state.isGone ? undefined : end),
    closeEnd: () => {
      story.push('closed');
      state.isGone = true;
    },
    reapSome: () => 0,
  };
  const end = Object.defineProperties({ queuePair, rail } as unknown as RailEnd, {
    underWay: { get: () => state.underWay },
    isFailed: { get: () => state.isFailed },
    hasTakenLast: { get: () => state.hasTakenLast },
  });
  const fake: Fake = { end, state, story, gaveBack: false };
  return fake;
}

function leave(fake: Fake): LeavingEnds {
  const leaving = new LeavingEnds(
    () => fake.story.push('drained'),
    () => fake.story.push('over'),
  );
  leaving.add(fake.end, 0);
  return leaving;
}

const END = ['drained', 'closed', 'drained', 'stripped', 'over'];

test('it is failed when its sends have left, and destroyed when the device has taken its last shared receive', () => {
  const fake = fakeEnd(true);
  fake.state.underWay = 3;
  const leaving = leave(fake);
  leaving.advance(1000);
  assert.deepEqual(fake.story, []);
  fake.state.underWay = 0;
  leaving.advance(2000);
  leaving.advance(3000);
  assert.deepEqual(fake.story, ['failed']);
  fake.state.hasTakenLast = true;
  leaving.advance(4000);
  assert.deepEqual(fake.story, ['failed', ...END]);
  assert.equal(leaving.count, 0);
});

test('without that event it has a tenth of a second; sends that do not leave have half of one', () => {
  const fake = fakeEnd(true);
  fake.state.underWay = 3;
  const leaving = leave(fake);
  leaving.advance(499_999);
  assert.deepEqual(fake.story, []);
  leaving.advance(500_000);
  leaving.advance(599_999);
  assert.deepEqual(fake.story, ['failed']);
  leaving.advance(600_000);
  assert.deepEqual(fake.story, ['failed', ...END]);
});

test('one with receives of its own is destroyed when all are back', () => {
  const fake = fakeEnd(false);
  const leaving = leave(fake);
  leaving.advance(0);
  leaving.advance(10);
  assert.deepEqual(fake.story, ['failed']);
  fake.gaveBack = true;
  leaving.advance(20);
  assert.deepEqual(fake.story, ['failed', ...END]);
});

test('one that was destroyed meanwhile gives its receives to others', () => {
  const fake = fakeEnd(false);
  const leaving = leave(fake);
  fake.state.isGone = true;
  leaving.advance(0);
  assert.deepEqual(fake.story, END);
});

test('at the end of the loop what has left is enough, and time is shared', () => {
  const fakes = [fakeEnd(true), fakeEnd(true)];
  for (const { state } of fakes) state.underWay = 1;
  const leaving = new LeavingEnds(
    () => {},
    () => {},
  );
  for (const { end } of fakes) leaving.add(end, 0);
  let now = 0;
  leaving.finish(() => (now += 1000));
  assert.ok(now < 600_000, `${now} µs`);
  for (const { story } of fakes) assert.deepEqual(story, ['closed']);
});
