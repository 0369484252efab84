// Channels of a staging thread: what counts as delivered.
import assert from 'node:assert/strict';
import test from 'node:test';
import { MemoryTable, PlainCopies } from '#lib/agent/staging/devices.js';
import { Lane } from '#lib/agent/staging/lane.js';
import { PreparedChannel } from '#lib/agent/staging/prepared.js';
import { plainStorage, RingMemory } from '#lib/agent/staging/ring.js';
import type { SendLane } from '#lib/agent/staging/send-lane.js';
import { STAGED_OPERATIONS } from '#lib/agent/staging/staging-board.js';
import { NativeBlock } from '#lib/native/library.js';
import { PartTable } from '#lib/transport/part-table.js';

test('operations of a channel count as delivered in order, though a later one comes back first', () => {
  const ring = new RingMemory({ slots: 4, pieceBytes: 65_536 }, plainStorage);
  const back = [0, 0];
  const session = {
    count: 2,
    sendsFromPlace: false,
    placeOf: () => 0,
    post: () => true,
    isBack: () => true,
    isDrained: () => true,
    skip: () => true,
    returned: (channel: number) => back[channel],
  };
  const lane = { ring, session, lane: new Lane(ring, session as never) } as unknown as SendLane;
  const memory = new MemoryTable();
  const { address } = new NativeBlock(64);
  const { number } = memory.add({ address, bytes: 64, copies: new PlainCopies(), isOffered: false });
  const rows = PartTable.ofCount(STAGED_OPERATIONS);
  rows.local.fill(number);
  rows.bytes.fill(8);
  const delivered: number[] = [];
  const onDelivered = (count: number): void => void delivered.push(count);
  const channel = new PreparedChannel(lane, { rows: rows.buffer, memory, onDelivered, onFailed: assert.fail });
  channel.remotes.push({ number: 1, key: 1 });
  for (let operation = 0; operation < 2; operation++) channel.post();
  lane.lane.step();
  back[1] = 1;
  while (lane.lane.step());
  assert.ok(delivered.every((count) => count === 0));
  back[0] = 1;
  while (lane.lane.step());
  assert.equal(delivered.at(-1), 2);
});
