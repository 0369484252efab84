// A peer that closes its side owes nothing of what came just before it closed, whatever other peers still owe.
import assert from 'node:assert/strict';
import test from 'node:test';
import { owes } from '#lib/group/network/host-network.js';

/** Two peers, of which each sends once: what has come is taken in by a look. */
function pretend(): { readonly come: Set<number>; isDone: () => boolean; awaits: (peer: number) => boolean } {
  const come = new Set<number>();
  const taken = new Set<number>();
  return {
    come,
    isDone: () => {
      for (const peer of come) taken.add(peer);
      return taken.size === 2;
    },
    awaits: (peer) => !taken.has(peer),
  };
}

test('what came since the last look counts, though another peer is missing', () => {
  const wait = pretend();
  assert.equal(wait.isDone(), false);
  wait.come.add(0);
  assert.equal(owes(0, wait), false);
});

test('what did not come is owed', () => {
  const wait = pretend();
  wait.come.add(1);
  assert.equal(owes(0, wait), true);
});
