// The address by which others reach this host, out of what they say that they have called.
import assert from 'node:assert/strict';
import { networkInterfaces } from 'node:os';
import test from 'node:test';
import { noteReachedAddress, reachedAddress } from '#lib/meeting/route.js';

test('of what others say only an own address counts that is no loopback address, and nothing else ends the call', () => {
  const said = [undefined, null, 7, {}, '127.0.0.1', '203.0.113.9'];
  noteReachedAddress(said, '127.0.1.1');
  assert.equal(reachedAddress(), undefined);
  const own = Object.values(networkInterfaces()).flatMap((entries) => entries ?? []);
  const reached = own.find(({ internal }) => !internal)?.address;
  noteReachedAddress(reached === undefined ? said : [...said, reached], '127.0.1.1');
  assert.equal(reachedAddress(), reached);
});
