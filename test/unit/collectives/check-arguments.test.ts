// What allToAllv() refuses before anything moves: parts of the output that two ranks would write to.
import assert from 'node:assert/strict';
import test from 'node:test';
import { CpuDevice } from 'weftline';
import type { RankGroup } from 'weftline/world';
import { readAllToAllv } from '#lib/collectives/call-arguments.js';
import { makeCollectiveCall } from '#lib/collectives/collective-call.js';
import { withCode } from '../../support/with-code.ts';

const device = await CpuDevice.create({ addressSpaceMiB: 16 });
const group = { rank: 0, size: 3 } as unknown as RankGroup;
const input = device.empty('i32', [8]);
const output = device.empty('i32', [16]);

function read(recvCounts: readonly number[], recvOffsets: readonly number[]): void {
  const scope = { group, device, call: makeCollectiveCall(3) };
  readAllToAllv(scope, { input, output, sendCounts: [recvCounts[0]!, 1, 1], recvCounts, recvOffsets });
}

test('allToAllv() takes parts in any order with gaps, and empty ones anywhere', () => {
  read([2, 3, 4], [0, 2, 5]);
  read([2, 3, 4], [14, 8, 0]);
  read([2, 0, 4], [0, 1, 2]);
  read([4, 4, 4], [6, 0, 12]);
});

test('allToAllv() names two ranks whose parts share elements', () => {
  const cases: readonly (readonly [readonly number[], readonly number[], RegExp])[] = [
    [[2, 3, 4], [0, 1, 8], /recvOffsets\[1\]: expected .* apart from that of rank 0, elements 0 to 1 .* got 1$/],
    [[2, 3, 4], [8, 0, 2], /recvOffsets\[2\]: expected .* apart from that of rank 1, elements 0 to 2 .* got 2$/],
    [[1, 0, 1], [3, 3, 3], /recvOffsets\[2\]: expected .* apart from that of rank 0, elements 3 to 3 .* got 3$/],
  ];
  for (const [counts, offsets, words] of cases) {
    assert.throws(() => read(counts, offsets), withCode('WL_INVALID_ARGUMENT', words));
  }
});
