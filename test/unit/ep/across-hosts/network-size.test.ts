// What the network side of expert parallelism takes follows from the configuration and the numbers of ranks alone.
import assert from 'node:assert/strict';
import test from 'node:test';
import { NETWORK_LINE_BYTES } from '#lib/abi/network.js';
import { maxServed } from '#lib/group/network/host-routes.js';
import { networkSize } from '#lib/ep/across-hosts/network-size.js';
import fc from '../../../support/fast-check.ts';

const perToken = fc.integer({ min: 0, max: 300 }).map((words) => words * 4);

const anyShape = fc.record({
  hosts: fc
    .array(fc.integer({ min: 1, max: 6 }), { minLength: 2, maxLength: 5 })
    .map((lengths) =>
      lengths.map((length, host) =>
        Array.from({ length }, (_, index) => lengths.slice(0, host).reduce((sum, one) => sum + one, 0) + index),
      ),
    ),
  maxTokensPerRank: fc.integer({ min: 1, max: 5000 }),
  sumTokens: fc.integer({ min: 1, max: 5000 }),
  columns: fc.integer({ min: 1, max: 32 }),
  hasRanks: fc.boolean(),
  topkBytes: perToken,
  weightBytes: perToken,
  scaleBytes: perToken,
  sumBytes: perToken,
  sumWeightBytes: perToken,
});

function requireNoOverlap(regions: readonly { readonly offset: number; readonly bytes: number }[], end: number): void {
  let last = 0;
  for (const { offset, bytes } of regions.toSorted((a, b) => a.offset - b.offset || a.bytes - b.bytes)) {
    assert.ok(offset >= last && offset % 128 === 0);
    last = offset + bytes;
  }
  assert.ok(last <= end && end < last + 128);
}

test('regions, and the arrays of a slot, lie behind each other without overlap', () => {
  fc.assert(
    fc.property(anyShape, (shape) => {
      const { bytes, regions, slot, slotBytes } = networkSize(shape);
      requireNoOverlap(Object.values(regions), bytes);
      requireNoOverlap(Object.values(slot), slotBytes);
    }),
  );
});

test('each region has a slot for every rank that is served, or for every other host', () => {
  fc.assert(
    fc.property(anyShape, (shape) => {
      const { regions, slot, slotBytes } = networkSize(shape);
      const { hosts, maxTokensPerRank, sumTokens, columns, hasRanks, sumBytes, sumWeightBytes } = shape;
      const [served, others] = [maxServed(hosts), hosts.length - 1];
      assert.equal(regions.cells.bytes, hosts.flat().length * NETWORK_LINE_BYTES);
      assert.equal(regions.landed.bytes, served * slotBytes);
      assert.equal(regions.packed.bytes, others * slotBytes);
      assert.equal(regions.sums.bytes, served * sumTokens * sumBytes);
      assert.equal(regions.hostRows.bytes, others * sumTokens * sumBytes);
      assert.equal(regions.sumWeights.bytes, served * sumTokens * sumWeightBytes);
      assert.equal(regions.hostWeights.bytes, others * sumTokens * sumWeightBytes);
      assert.equal(slot.ranks.bytes, hasRanks ? maxTokensPerRank * columns * 4 : 0);
      assert.equal(slot.tokens.bytes, maxTokensPerRank * 4);
    }),
  );
});
