// Callers that have not proven themselves: who goes when there are too many.
import assert from 'node:assert/strict';
import { EventEmitter } from 'node:events';
import type { Socket } from 'node:net';
import test from 'node:test';
import { strangers } from '#lib/meeting/listener.js';

/** A socket, as far as it is looked at. */
class Caller extends EventEmitter {
  readonly remoteAddress: string;
  bytesRead = 0;
  isDropped = false;

  constructor(remoteAddress: string) {
    super();
    this.remoteAddress = remoteAddress;
  }

  destroy(): void {
    this.isDropped = true;
    this.emit('close');
  }
}

function enter(address: string, most: number, bytesRead = 0): { readonly caller: Caller; readonly leave: () => void } {
  const caller = new Caller(address);
  caller.bytesRead = bytesRead;
  const leave = strangers.enter(caller as unknown as Socket, { most, milliseconds: 60_000 });
  assert.equal(leave === undefined, caller.isDropped);
  return { caller, leave: leave ?? ((): void => {}) };
}

function dropped(entries: readonly { readonly caller: Caller }[]): number[] {
  return entries.flatMap(({ caller }, index) => (caller.isDropped ? [index] : []));
}

test('the oldest goes first, and callers that have proven themselves are not counted', (t) => {
  let now = 1000;
  t.mock.method(performance, 'now', () => now);
  const [first, ...rest] = Array.from({ length: 4 }, () => enter('10.0.0.1', 4));
  first?.leave();
  now += 300;
  const more = [enter('10.0.0.1', 4), enter('10.0.0.1', 4)];
  assert.equal(first?.caller.isDropped, false);
  assert.deepEqual(dropped(rest), [0]);
  assert.equal(strangers.count, 4);
  for (const { leave } of [...rest, ...more]) leave();
  for (const { leave } of rest) leave();
  assert.equal(strangers.count, 0);
});

test('a caller that has just come keeps its place, and a newcomer of the same address finds none', (t) => {
  let now = 1000;
  t.mock.method(performance, 'now', () => now);
  const first = Array.from({ length: 8 }, () => enter('10.0.0.1', 8));
  now += 200;
  assert.deepEqual(dropped(Array.from({ length: 50 }, () => enter('10.0.0.1', 8))).length, 50);
  assert.deepEqual(dropped(first), []);
  now += 100;
  const later = enter('10.0.0.1', 8);
  assert.deepEqual([dropped(first), later.caller.isDropped], [[0], false]);
  for (const { leave } of [later, ...first]) leave();
  assert.equal(strangers.count, 0);
});

test('an address that holds many makes room, others keep their places', () => {
  const quiet = enter('10.0.0.2', 8);
  const crowd = Array.from({ length: 100 }, () => enter('10.0.0.1', 8));
  const late = enter('10.0.0.3', 8);
  assert.deepEqual([quiet.caller.isDropped, late.caller.isDropped], [false, false]);
  assert.equal(strangers.count, 8);
  assert.equal(dropped(crowd).length, 94);
  for (const { leave } of [quiet, late, ...crowd]) leave();
  assert.equal(strangers.count, 0);
});

test('of old ones those that said nothing go first', (t) => {
  let now = 1000;
  t.mock.method(performance, 'now', () => now);
  const talker = enter('10.0.0.1', 3, 5);
  const silent = enter('10.0.0.1', 3);
  now += 300;
  const fresh = enter('10.0.0.1', 3);
  const newest = enter('10.0.0.1', 3);
  assert.deepEqual(dropped([talker, silent, fresh, newest]), [1]);
  // None that is silent has had its time: then it is the oldest, whether it has said something or not.
  const next = enter('10.0.0.1', 3);
  assert.deepEqual(dropped([talker, silent, fresh, newest, next]), [0, 1]);
  for (const { leave } of [talker, silent, fresh, newest, next]) leave();
});
