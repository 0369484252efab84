// How much of a peer waits to be taken, and who is told when there is room again.
import assert from 'node:assert/strict';
import test from 'node:test';
import { Notifications } from '#lib/agent/notifications.js';

function queue(mostBytes: number): { readonly waiting: Notifications; readonly rooms: () => number } {
  let rooms = 0;
  return { waiting: new Notifications(mostBytes, () => rooms++), rooms: () => rooms };
}

test('hasRoom() is false for a peer with as much waiting as may, and true for others', () => {
  const { waiting, rooms } = queue(1000);
  let taken = 0;
  for (; waiting.hasRoom('a') && taken < 100; taken++) waiting.push('a', new Uint8Array(36));
  // 36 bytes and 64 for the entry, up to the one that reaches the bound.
  assert.equal(taken, 10);
  assert.ok(waiting.hasRoom('b'));
  waiting.push('b', new Uint8Array(2000));
  assert.ok(!waiting.hasRoom('b'));
  assert.equal(waiting.take({ from: 'b' })?.message.length, 2000);
  assert.ok(waiting.hasRoom('b') && !waiting.hasRoom('a'));
  assert.equal(rooms(), 1);
  waiting.take({});
  assert.ok(waiting.hasRoom('a'));
  assert.equal(rooms(), 2);
});

test('takeAll() makes room for all, and says so once, and only to those that asked', () => {
  const { waiting, rooms } = queue(1);
  for (const peer of ['a', 'b', 'c']) waiting.push(peer, Buffer.from(peer));
  assert.ok(!waiting.hasRoom('a') && !waiting.hasRoom('b'));
  assert.deepEqual(
    waiting.takeAll().map(({ peer }) => peer),
    ['a', 'b', 'c'],
  );
  assert.equal(rooms(), 1);
  assert.ok(waiting.hasRoom('a'));
  waiting.push('a', new Uint8Array(0));
  assert.equal(waiting.takeAll().length, 1);
  assert.equal(rooms(), 1);
});

test('take() keeps the order over many, of all peers and of one', () => {
  const { waiting } = queue(1 << 30);
  const numbers: number[] = [];
  let pushed = 0;
  for (let round = 0; round < 400; round++) {
    for (let count = 0; count < 20; count++, pushed++)
      waiting.push(pushed % 3 === 0 ? 'a' : 'b', Uint8Array.of(pushed));
    for (let count = 0; count < 15; count++) numbers.push(waiting.take({})?.message[0] as number);
  }
  assert.deepEqual(
    numbers,
    numbers.map((_, at) => at % 256),
  );
  const left = pushed - numbers.length;
  let ofA = 0;
  for (let next = waiting.take({ from: 'a' }); next !== undefined; next = waiting.take({ from: 'a' })) ofA++;
  const rest = waiting.takeAll();
  assert.equal(rest.length + ofA, left);
  assert.ok(rest.every(({ peer }) => peer === 'b'));
});
