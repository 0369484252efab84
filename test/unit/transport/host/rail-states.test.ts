// How the rails of a connection stand, from what its engines tell of their paths.
import assert from 'node:assert/strict';
import test from 'node:test';
import { RailStates } from '#lib/transport/host/connection.js';

const pairs = [
  { local: '10.0.0.1', remote: '10.0.0.2' },
  { local: '10.0.1.1', remote: '10.0.1.2' },
];

test('a rail is down while all its paths on all lanes are dead, since the last of them died', () => {
  // Two lanes of three paths: rails 0, 1, 0 of each.
  const states = new RailStates(pairs, 2, 6);
  const [first, second] = pairs;
  const isUp = { isUp: true, paths: 2, livePaths: 2 };
  assert.deepEqual(states.all, [
    { ...first, isUp: true, paths: 4, livePaths: 4 },
    { ...second, ...isUp },
  ]);
  states.note(0, 1, 5000);
  states.note(1, 2, 6000);
  assert.deepEqual(states.all, [
    { ...first, isUp: true, paths: 4, livePaths: 3 },
    { ...second, ...isUp, livePaths: 1 },
  ]);
  states.note(1, 1, 7000);
  assert.deepEqual(states.all[1], { ...second, isUp: false, paths: 2, livePaths: 0, deadSince: new Date(7000) });
  states.note(0, 1, 0);
  assert.deepEqual(states.all[1], { ...second, ...isUp, livePaths: 1 });
});
