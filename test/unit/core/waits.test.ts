import assert from 'node:assert/strict';
import test from 'node:test';
import {
  answeredNames,
  answerTo,
  beginWait,
  endWait,
  objectStates,
  presentWaits,
  watchObject,
  whileWaiting,
} from '#lib/core/waits.js';
import { addMeter, readMeters } from '#lib/core/metric-table.js';

test('waits are told while they last, with age and time left, and made to text only then', () => {
  let told = 0;
  const source = {
    waitFacts: () => {
      told += 1;
      return { operation: 'step', ranks: [2] };
    },
  };
  const endsAt = performance.now() + 30_000;
  const entry = beginWait(source, endsAt);
  assert.equal(told, 0);
  const now = entry.since + 400;
  const [wait] = presentWaits(now);
  assert.equal(wait?.operation, 'step');
  assert.deepEqual(wait.ranks, [2]);
  assert.equal(Math.round(wait.ageMs), 400);
  assert.equal(wait.leftMs, endsAt - now);
  endWait(entry);
  assert.deepEqual(presentWaits(), []);
});

test('a wait that cannot tell any more spoils no report', () => {
  const entry = beginWait({
    waitFacts: () => {
      throw new Error('closed');
    },
  });
  assert.equal(presentWaits()[0]?.operation, 'a wait that is just ending');
  endWait(entry);
});

test('a promise counts as a wait until it settles, however it does', async () => {
  for (const settle of ['resolve', 'reject'] as const) {
    const ends: (() => void)[] = [];
    const promise = new Promise<void>((resolve, reject) => {
      ends.push(settle === 'resolve' ? resolve : () => reject(new Error('late')));
    });
    const waiting = whileWaiting(promise, () => ({ operation: 'promise' }));
    assert.equal(presentWaits().length, 1);
    ends[0]!();
    await waiting.catch(() => {});
    assert.equal(presentWaits().length, 0);
  }
});

test('objects and names are told until they are taken back', () => {
  const state = { object: 'EpBuffer', ranks: [0, 1], calls: 3, last: 'combine', isRunning: false };
  const unwatch = watchObject({ objectState: () => state });
  const unname = answerTo('a');
  assert.deepEqual([objectStates(), answeredNames()], [[state], ['a']]);
  unwatch();
  unname();
  assert.deepEqual([objectStates(), answeredNames()], [[], []]);
});

test('meters are added up; one that fails counts nothing', async () => {
  const ends = [
    addMeter(() => ({ windowBytes: 5 })),
    addMeter(async () => ({ windowBytes: 2, sentBytes: 1 })),
    addMeter(() => Promise.reject(new Error('closing'))),
  ];
  const { windowBytes, sentBytes, receivedBytes } = await readMeters();
  assert.deepEqual([windowBytes, sentBytes, receivedBytes], [7, 1, 0]);
  for (const end of ends) end();
  assert.equal((await readMeters()).windowBytes, 0);
});
