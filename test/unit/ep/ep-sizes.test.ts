import assert from 'node:assert/strict';
import test from 'node:test';
import fc from '../../support/fast-check.ts';
import { withCode } from '../../support/with-code.ts';
import { bufferSize, DeepEpConfig, EPConfig, outputSize } from 'weftline/ep';

test('the hints of DeepEpConfig follow the formulas for one and for two nodes', () => {
  const eight = DeepEpConfig.forRanks('dispatch', 8);
  assert.deepEqual(Object.fromEntries(Object.entries(eight)), {
    numSms: 20,
    nvlSend: 6,
    nvlRecv: 256,
    rdmaSend: 6,
    rdmaRecv: 132,
  });
  // 10 channels, 8 peers, 1 node: prefixes, then 256 slots of 14336 + 8 + 1024 + 512 + 512 bytes.
  assert.equal(eight.getNvlBufferSizeHint(14_336, 8), Math.ceil((10 * 8 * 5 * 4 + 10 * 8 * 256 * 16_392) / 128) * 128);
  assert.equal(eight.getRdmaBufferSizeHint(14_336, 8), 0);
  const sixteen = DeepEpConfig.forRanks('combine', 16, 24);
  assert.deepEqual(Object.fromEntries(Object.entries(sixteen)), {
    numSms: 24,
    nvlSend: 4,
    nvlRecv: 288,
    rdmaSend: 12,
    rdmaRecv: 132,
  });
  const meta = 12 * 2 * (8 * 2 + 2) * 2 * 4;
  const data = 2 * 12 * 2 * 132 * (14_336 + 8 + 1024 + 512 + 512 + 16);
  assert.equal(sixteen.getRdmaBufferSizeHint(14_336, 16), Math.ceil((meta + data) / 128) * 128);
});

test('a plain DeepEpConfig serves any rank count of DeepEP, and others are refused', () => {
  assert.deepEqual(DeepEpConfig.forRanks('dispatch', 6), new DeepEpConfig());
  assert.deepEqual(Object.fromEntries(Object.entries(new DeepEpConfig())), {
    numSms: 20,
    nvlSend: 6,
    nvlRecv: 256,
    rdmaSend: 6,
    rdmaRecv: 258,
  });
  for (const ranks of [1, 3, 8, 16, 40, 1024]) {
    assert.ok(DeepEpConfig.forRanks('combine', ranks).getNvlBufferSizeHint(2048, ranks) > 0);
    assert.equal(new DeepEpConfig().getRdmaBufferSizeHint(2048, ranks) > 0, ranks > 8);
  }
  for (const ranks of [0, -8, 9, 12, 1.5, NaN]) {
    assert.throws(() => DeepEpConfig.forRanks('dispatch', ranks), withCode('WL_INVALID_ARGUMENT', /numRanks/));
    assert.throws(() => new DeepEpConfig().getRdmaBufferSizeHint(2048, ranks), withCode('WL_INVALID_ARGUMENT'));
  }
  for (const options of [{ nvlSend: 0 }, { nvlSend: 256 }, { rdmaSend: 300, rdmaRecv: 299 }, { numSms: -1 }]) {
    assert.throws(() => new DeepEpConfig(options), withCode('WL_INVALID_ARGUMENT'));
  }
});

test('bufferSize() is the worst case and nothing beyond it but alignment', () => {
  const config = { maxTokensPerRank: 4096, hidden: 7168, numExperts: 256, maxTopk: 8 };
  const size = bufferSize(config, 4);
  assert.equal(size.maxRecvTokens, 4 * 4096);
  const perRow = 7168 * 2 * 2 + 56 * 4 + 8 * 8 + 8 * 4 + 4 + 8 * 4;
  const exchange = 2 * 4 * Math.ceil(((16 + 4 + 256) * 4) / 128) * 128;
  assert.ok(size.bytes >= 16_384 * perRow + exchange);
  assert.ok(size.bytes < 16_384 * perRow + exchange + 8 * 128);
  assert.equal(size.addressSpaceBytes, 65_536 + 4 * Math.ceil(size.bytes / 65_536) * 65_536);
  const shared = bufferSize({ ...config, combineRows: 'shared' }, 4);
  assert.equal(size.bytes - shared.bytes, 16_384 * 7168 * 2);
  assert.deepEqual(shared.regions.combineRows, shared.regions.rows);
});

test('bufferSize() over several hosts tells the network side, which follows from tokens, ranks and hosts', () => {
  const config = { maxTokensPerRank: 4096, hidden: 7168, numExperts: 256, maxTopk: 8 };
  assert.equal(bufferSize(config, 4).network, undefined);
  const size = bufferSize(config, 4, [2, 2]);
  const { network } = size;
  // A rank serves one source, and has one other host: rows that it sums, and rows that come back.
  assert.equal(network?.regions.sums.bytes, 4096 * 7168 * 2);
  assert.equal(network.regions.hostRows.bytes, 4096 * 7168 * 2);
  const beside = 4096 * (4 + 2 * 4 + 8 * 8 + 8 * 4 + 56 * 4);
  assert.equal(network.regions.landed.bytes, beside);
  assert.equal(network.regions.packed.bytes, beside);
  assert.equal(size.sharedMemoryBytes, (1 + 2 * Math.ceil(size.bytes / 65_536)) * 65_536);
  assert.equal(size.addressSpaceBytes, size.sharedMemoryBytes + network.bytes);
  const exact = bufferSize({ ...config, combinePrecision: 'f32' }, 4, [2, 2]);
  assert.equal(exact.network?.regions.sums.bytes, 4096 * 7168 * 4);
  const lossy = { ...config, combinePrecision: 'fp8-lossy' as never };
  const refused = withCode('WL_INVALID_ARGUMENT', /combinePrecision: expected "bf16" or "f32", got "fp8-lossy"/);
  assert.throws(() => bufferSize(lossy, 4, [2, 2]), refused);
  assert.throws(() => new EPConfig({ ...lossy, rank: 0, worldSize: 4, localWorldSize: 2 }), refused);
  // The lone rank of the second host serves all three of the first.
  assert.equal(bufferSize(config, 4, [3, 1]).network?.regions.sums.bytes, 3 * 4096 * 7168 * 2);
  for (const ranksOfHosts of [[2], [2, 3], [4, 0], [1.5, 2.5], []]) {
    assert.throws(() => bufferSize(config, 4, ranksOfHosts), withCode('WL_INVALID_ARGUMENT', /ranksOfHosts/));
  }
});

test('bufferSize() of GPUs over several hosts tells the pinned memory, in which the way there is that back, too', () => {
  const config = { maxTokensPerRank: 4096, hidden: 7168, numExperts: 256, maxTopk: 8 };
  const { network, regions } = bufferSize(config, 4, [2, 2], 'cuda');
  assert.equal(network?.memory, 'pinned');
  // Row, choices, weights and scales of a token, its index, and its row at each of two ranks; in multiples of 16.
  const row = Math.ceil((7168 * 2 + 8 * 8 + 8 * 4 + 56 * 4 + 4 + 2 * 4) / 16) * 16;
  assert.equal(network.slotBytes, 4096 * row);
  // A rank serves one source, and has one other host.
  assert.equal(network.regions.out.bytes, network.slotBytes);
  assert.equal(network.regions.in.bytes, network.slotBytes);
  assert.equal(network.maxChunks, Math.ceil(4096 / Math.floor(2 ** 18 / row)));
  assert.equal(regions.exchange.bytes, 2 * 4 * network.recordBytes);
  // Sums that are not rounded are larger than rows with what goes with them.
  const exact = bufferSize({ ...config, combinePrecision: 'f32' }, 4, [2, 2], 'cuda');
  assert.equal(exact.network?.slotBytes, 4096 * (7168 * 4 + 8 * 4));
  assert.equal(bufferSize(config, 4, [3, 1], 'cuda').network?.maxServed, 3);
  assert.equal(bufferSize(config, 4, [4], 'cuda').network, undefined);
  // There is no smaller one.
  const { bytes } = network;
  assert.equal(bufferSize({ ...config, numRdmaBytes: bytes }, 4, [2, 2], 'cuda').network?.bytes, bytes);
  assert.throws(
    () => bufferSize({ ...config, numRdmaBytes: bytes - 1 }, 4, [2, 2], 'cuda'),
    withCode('WL_INVALID_ARGUMENT', /numRdmaBytes: expected 0, or at least the \d+/),
  );
});

test('numRdmaBytes bounds the network side: fewer sums fit at a time, and everything else as before', () => {
  const config = { maxTokensPerRank: 4096, hidden: 7168, numExperts: 256, maxTopk: 8 };
  const hosts = [8, 8, 8, 8];
  const all = bufferSize(config, 32, hosts).network!;
  // What DeepEP would ask for is far less than sums of all tokens.
  const numRdmaBytes = DeepEpConfig.forRanks('dispatch', 32).getRdmaBufferSizeHint(7168 * 2, 32);
  const few = bufferSize({ ...config, numRdmaBytes }, 32, hosts).network!;
  assert.ok(few.bytes <= numRdmaBytes && numRdmaBytes < all.bytes);
  assert.deepEqual(few.regions.landed, all.regions.landed);
  const { sumTokens, chunk, chunks } = few.sumRing;
  // Three sources served and three hosts, rows and weights.
  const perToken = 2 * 3 * (7168 * 2 + 8 * 4);
  assert.ok(numRdmaBytes - few.bytes < perToken + 4 * 128, 'no room is left over');
  assert.ok(chunk * chunks <= sumTokens && chunks >= 2);
  assert.deepEqual(bufferSize({ ...config, numRdmaBytes: all.bytes }, 32, hosts).network, all);
  assert.deepEqual(bufferSize({ ...config, numRdmaBytes: 0 }, 32, hosts).network, all);
  assert.throws(
    () => bufferSize({ ...config, numRdmaBytes: 1 << 20 }, 32, hosts),
    withCode(
      'WL_INVALID_ARGUMENT',
      /numRdmaBytes: expected 0, or at least \d+ \([^)]+\) for 4096 tokens .* got 1048576/,
    ),
  );
  assert.equal(bufferSize({ ...config, numRdmaBytes: 1 }, 32).network, undefined);
});

test('bufferSize() lays regions out without overlap, aligned, for any configuration', () => {
  const config = fc.record({
    maxTokensPerRank: fc.integer({ min: 1, max: 5000 }),
    hidden: fc.integer({ min: 1, max: 1000 }).map((eighths) => eighths * 8),
    expertsPerRank: fc.integer({ min: 1, max: 64 }),
    maxTopk: fc.integer({ min: 1, max: 32 }),
    ranks: fc.integer({ min: 1, max: 16 }),
  });
  fc.assert(
    fc.property(config, ({ ranks, expertsPerRank, ...rest }) => {
      const size = bufferSize({ ...rest, numExperts: expertsPerRank * ranks }, ranks);
      let end = 0;
      for (const { offset, bytes } of Object.values(size.regions).toSorted((a, b) => a.offset - b.offset)) {
        assert.ok(offset >= end && offset % 128 === 0);
        end = offset + bytes;
      }
      assert.ok(end <= size.bytes && size.bytes < end + 128);
    }),
  );
});

/** Bytes of a window that ranks of a host share, with its header. */
function footprint(bytes: number, ranks: number): number {
  return (1 + ranks * Math.ceil(bytes / 65_536)) * 65_536;
}

test('outputSize() over several hosts counts the ranks of the fullest, the window of counts and the network side', () => {
  const shape = { maxTokensPerRank: 256, hidden: 7168, maxTopk: 8, numExperts: 32, rank: 0, worldSize: 4 };
  const config = new EPConfig({ ...shape, localWorldSize: 3 });
  const size = outputSize(config, 4096);
  assert.deepEqual(size, outputSize(config, 4096, [3, 1]));
  assert.equal(size.sharedMemoryBytes, footprint(size.bytes, 3) + footprint(size.controlBytes, 3));
  assert.equal(size.addressSpaceBytes, size.sharedMemoryBytes + size.network!.bytes);
  // The lone rank of the second host serves all three of the first.
  assert.equal(size.network?.regions.sums.bytes, 3 * 256 * 7168 * 2);
  const even = outputSize(new EPConfig({ ...shape, localWorldSize: 2 }), 4096);
  assert.equal(even.sharedMemoryBytes, footprint(size.bytes, 2) + footprint(size.controlBytes, 2));
  assert.equal(even.network?.regions.sums.bytes, 256 * 7168 * 2);
  const alone = outputSize(new EPConfig({ ...shape, localWorldSize: 4 }), 4096);
  assert.equal(alone.network, undefined);
  assert.equal(alone.addressSpaceBytes, alone.sharedMemoryBytes);
  const least = { ...shape, localWorldSize: 2, numRdmaBytes: even.network.bytes - 100 * 7168 * 2 };
  assert.equal(outputSize(new EPConfig(least), 4096).network?.sumRing.sumTokens, 256 - 50);
});

test('outputSize() and EPConfig give sizes and bounds before anything is allocated', () => {
  const config = new EPConfig({
    maxTokensPerRank: 10,
    hidden: 16,
    maxTopk: 4,
    numExperts: 6,
    rank: 1,
    worldSize: 2,
    localWorldSize: 2,
  });
  assert.equal(config.numExpertsPerRank, 3);
  assert.equal(config.isIntraNode, true);
  assert.equal(config.maxRecvRows, 2 * 10 * 4);
  const size = outputSize(config, 60);
  assert.equal(size.capacityRows, 60);
  assert.ok(size.bytes >= 60 * (32 + 4 + 4 + 4 + 16) && size.bytes < 60 * 60 + 5 * 128);
  const wrong = {
    maxTokensPerRank: 10,
    hidden: 16,
    maxTopk: 4,
    numExperts: 7,
    rank: 0,
    worldSize: 2,
    localWorldSize: 2,
  };
  assert.throws(() => new EPConfig(wrong), {
    code: 'WL_INVALID_ARGUMENT',
    message: /numExperts: expected a multiple of the 2 ranks, got 7/,
  });
});
