// The packet I/O over several RDMA ports, without devices: what a port without room means to the engine.
import assert from 'node:assert/strict';
import test from 'node:test';
import type { Burst } from '#lib/transport/io/packet-io.js';
import { VerbsPacketIo } from '#lib/transport/io/verbs/verbs-packet-io.js';
import type { RailEnd, VerbsRail } from '#lib/transport/io/verbs/verbs-rail.js';

function setUp(rails: readonly { readonly room: number; readonly isStuck: boolean }[]) {
  const failures = { queuePairs: 0, unsent: 0, broken: 0, strangers: 0 };
  const fakes = rails.map((rail) => ({ ...rail, makeRoom: () => {} }) as unknown as VerbsRail);
  return { io: new VerbsPacketIo(fakes, failures), failures, fakes };
}

test('an engine has as much room as the port that has the least', () => {
  const free = { room: 512, isStuck: false };
  assert.equal(setUp([free]).io.room(), 32);
  assert.equal(setUp([free, { room: 40, isStuck: false }]).io.room(), 2);
  assert.equal(setUp([free, { room: 15, isStuck: false }]).io.room(), 0);
});

test('a port that takes nothing for long holds up no other', () => {
  const stuck = { room: 0, isStuck: true };
  assert.equal(setUp([stuck, { room: 512, isStuck: false }]).io.room(), 32);
  assert.equal(setUp([stuck]).io.room(), 0);
});

test('what a port has no room for is lost, as is what a failed queue pair gets', () => {
  const { io, failures, fakes } = setUp([{ room: 3, isStuck: true }]);
  const end = (isFailed: boolean): RailEnd => ({ isFailed, rail: fakes[0] }) as unknown as RailEnd;
  io.setPeer(0, [end(false), end(true)]);
  const burst = { peer: 0, count: 4, region: undefined } as unknown as Burst;
  io.send({ ...burst, path: 0 });
  assert.equal(failures.unsent, 4);
  io.send({ ...burst, path: 1 });
  assert.equal(failures.unsent, 8);
  io.send({ ...burst, peer: 7, path: 0 });
  assert.equal(failures.unsent, 8, 'a peer that is gone');
});
