// What the network side of GPU ranks takes: regions without overlap, alike on all ranks, enough for every chunk of a call.
import assert from 'node:assert/strict';
import test from 'node:test';
import { networkChunkRows } from '#lib/abi/network.js';
import { maxServed } from '#lib/group/network/host-routes.js';
import { PINNED_CHUNK_BYTES, pinnedNetworkSize, requirePinnedBytes } from '#lib/ep/across-hosts/network-size.js';
import { requireNetworkLimits } from '#lib/ep/across-hosts/cuda-host-network.js';
import { bufferSize } from '#lib/ep/buffer/buffer-size.js';
import fc from '../../../support/fast-check.ts';
import { withCode } from '../../../support/with-code.ts';

function hostsOf(lengths: readonly number[]): number[][] {
  let next = 0;
  return lengths.map((length) => Array.from({ length }, () => next++));
}

const wire = fc.integer({ min: 1, max: 5000 }).map((units) => units * 16);

const anyShape = fc.record({
  hosts: fc.array(fc.integer({ min: 1, max: 6 }), { minLength: 2, maxLength: 5 }).map(hostsOf),
  maxTokensPerRank: fc.integer({ min: 1, max: 5000 }),
  experts: fc.integer({ min: 1, max: 4096 }),
  wireRowBytes: wire,
  wireSumBytes: wire,
});

test('regions lie behind each other, each slot holds all tokens with the most that goes with them', () => {
  fc.assert(
    fc.property(anyShape, (shape) => {
      const size = pinnedNetworkSize(shape);
      let last = 0;
      for (const { offset, bytes } of Object.values(size.regions)) {
        assert.ok(offset >= last && offset % 128 === 0);
        last = offset + bytes;
      }
      assert.ok(last <= size.bytes && size.bytes < last + 128);
      const { hosts, maxTokensPerRank, wireRowBytes, wireSumBytes } = shape;
      assert.ok(Math.max(wireRowBytes, wireSumBytes) * maxTokensPerRank <= size.slotBytes);
      assert.equal(size.regions.out.bytes, (hosts.length - 1) * size.slotBytes);
      assert.equal(size.regions.in.bytes, maxServed(hosts) * size.slotBytes);
    }),
  );
});

test('no rows make more chunks than there is room for, be they short or long', () => {
  fc.assert(
    fc.property(anyShape, fc.double({ min: 0, max: 1, noNaN: true }), (shape, part) => {
      const most = Math.max(shape.wireRowBytes, shape.wireSumBytes);
      const rowBytes = Math.max(16, Math.ceil((part * most) / 16) * 16);
      const chunks = Math.ceil(shape.maxTokensPerRank / networkChunkRows(PINNED_CHUNK_BYTES.least, rowBytes));
      assert.ok(chunks <= pinnedNetworkSize(shape).maxChunks);
    }),
  );
});

test('a token has a lane per rank and other host: more are refused with the figures', () => {
  requireNetworkLimits('EpBuffer', { hosts: hostsOf([32]) });
  requireNetworkLimits('EpBuffer', { hosts: hostsOf([8, 8, 8]) });
  requireNetworkLimits('EpBuffer', { hosts: hostsOf(Array.from({ length: 16 }, () => 1)) });
  for (const lengths of [[8, 8, 8, 8], Array.from({ length: 17 }, () => 1)]) {
    const ranks = lengths.reduce((sum, length) => sum + length, 0);
    const hosts = hostsOf(lengths);
    assert.throws(
      () => requireNetworkLimits('EpBuffer', { hosts }),
      withCode(
        'WL_UNSUPPORTED',
        new RegExp(`${ranks} ranks on ${hosts.length} hosts make ${ranks + hosts.length - 1}`),
      ),
    );
  }
});

test('on GPUs numRdmaBytes below what they take is refused by name', () => {
  const config = { maxTokensPerRank: 64, hidden: 256, numExperts: 4, maxTopk: 2 };
  const { network } = bufferSize(config, 2, [1, 1], 'cuda');
  const { bytes } = network!;
  assert.equal(bufferSize({ ...config, numRdmaBytes: bytes }, 2, [1, 1], 'cuda').network?.bytes, bytes);
  const tooFew = { ...config, numRdmaBytes: bytes - 1 };
  assert.throws(() => bufferSize(tooFew, 2, [1, 1], 'cuda'), withCode('WL_INVALID_ARGUMENT', /numRdmaBytes/));
});

test('a network side that no carrier takes is refused before anything is allocated', () => {
  const config = { maxTokensPerRank: 65_536, hidden: 7168, numExperts: 256, maxTopk: 8 };
  assert.throws(
    () => bufferSize(config, 8, [2, 2, 2, 2], 'cuda'),
    withCode('WL_UNSUPPORTED', /network side of each GPU would take \d+ bytes \(.* GiB\) of pinned memory, at most/),
  );
  bufferSize({ ...config, maxTokensPerRank: 4096 }, 8, [2, 2, 2, 2], 'cuda');
  requirePinnedBytes(2 ** 32 - 65_536, 0);
  assert.throws(() => requirePinnedBytes(2 ** 32 - 65_535, 0), withCode('WL_UNSUPPORTED', /fewer tokens per rank/));
});
