// What kernels of a Communicator tell of calls that disagree, as errors; words of calls; regions; the order of messages.
import assert from 'node:assert/strict';
import test from 'node:test';
import { collectiveFailures, messageBlock, messageDirections, messageFlags } from '#lib/abi/collectives.js';
import { trapReasons } from '#lib/abi/trap-record.js';
import { makeCollectiveCall, type PairMessage } from '#lib/collectives/collective-call.js';
import {
  callWord,
  describeCallWord,
  explainCollectiveFailure,
  messageWord,
  signatureOf,
} from '#lib/collectives/cuda/kernel-failures.js';
import { areTaken, cudaCollectiveRegions, messageBatches } from '#lib/collectives/cuda/cuda-collectives.js';

const call = makeCollectiveCall(8);
const sum = callWord({ ...call, kind: 'allReduce', dtype: 'f32', count: 2 ** 35 + 1 });
const rooted = callWord({ ...call, kind: 'reduce', dtype: 'bf16', reduction: 'max', root: 7, count: 5 });
const message = (bytes: number, dtype: PairMessage['dtype'], peer = 0): PairMessage => ({
  direction: 'send',
  peer,
  address: 0,
  bytes,
  dtype,
  tensor: undefined as never,
});

function explained(kind: number, detail: number, expected: number, seen: number): string {
  const channel = kind | (1 << 4) | (detail << 8);
  const trap = { kernel: 'k', rank: 20, peer: 12, channel, expected, seen, timeoutMs: 300 };
  for (const reason of [trapReasons.callFailed, trapReasons.peerFailed]) {
    const error = explainCollectiveFailure({ ...trap, reason }, [10, 11, 12]);
    if (reason === trapReasons.peerFailed) return `${error?.code}: ${error?.message}`;
  }
  return '';
}

test('a word holds what ranks must agree on, and is a whole number that doubles hold', () => {
  assert.equal(describeCallWord(sum), 'allReduce (sum) of 34359738369 f32');
  assert.equal(describeCallWord(rooted), 'reduce (max) of 5 bf16 with root 7');
  assert.ok(Number.isSafeInteger(sum) && Number.isSafeInteger(rooted));
  assert.notEqual(signatureOf(sum), signatureOf(rooted));
});

test('failures name both sides, the same on all ranks', () => {
  const { otherCall, otherCounts, otherMessage, expired } = collectiveFailures;
  assert.match(
    explained(otherCall, 0, sum, rooted),
    /WL_CONFIG_MISMATCH: Rank 11 is in allReduce \(sum\) of 34359738369 f32, but rank 12 is in reduce \(max\) of 5 bf16/,
  );
  const detail = 3 << 1;
  assert.match(explained(otherCounts, detail, 12, 4), /rank 12 sends 3 f32 to rank 11, which expects 1/);
  assert.match(explained(otherCounts, detail | 1, 12, 4), /rank 11 sends 3 f32 to rank 12, which expects 1/);
  assert.match(
    explained(otherMessage, 0, messageWord(message(20, 'f32')), messageWord(message(20, 'i32'))),
    /Rank 11 sends 5 f32 to rank 12, whose recv expects 5 i32/,
  );
  assert.match(explained(expired, 0, rooted, 0), /WL_TIMEOUT: Rank 12 did not arrive within 300 ms: rank 11 waited/);
  assert.match(explained(expired, 2, messageWord(message(20, 'f32')), 0), /in a recv of 5 f32/);
});

test('a trap of another kind is not explained', () => {
  const trap = { kernel: 'k', rank: 0, peer: 0, channel: 0, expected: 0, seen: 0, timeoutMs: 1 };
  assert.equal(explainCollectiveFailure({ ...trap, reason: trapReasons.timeout }, [0]), undefined);
});

test('regions of a window lie behind each other', () => {
  const regions = cudaCollectiveRegions({ ranks: 3, pieceBytes: 65_536, numSms: 16 });
  const begins = [regions.arrivals, regions.records, regions.flags, regions.posts, regions.chunks, regions.slots];
  assert.deepEqual(
    begins,
    begins.toSorted((a, b) => a - b),
  );
  for (const begin of begins) assert.equal(begin % 128, 0);
  assert.equal(regions.slotBytes, 4096);
  assert.equal(regions.slots + 16 * 2 * 3 * 4096, regions.bytes);
});

test('messages are launched in rounds, at most four of a pair at a time, copies with where they go', () => {
  const toSelf = message(4, 'f32', 1);
  const own: PairMessage[] = [toSelf, { ...toSelf, direction: 'recv', address: 64 }];
  const sends = Array.from({ length: 5 }, (_, index) => message(index, 'u8', 0));
  const received: PairMessage = { ...message(9, 'u8', 2), direction: 'recv' };
  const batches = messageBatches([received, ...sends, ...own, message(1, 'u8', 2)], 1, 3);
  assert.deepEqual(
    batches.map((batch) => batch.map(({ message: { peer, bytes }, direction, to }) => [direction, peer, bytes, to])),
    [
      [
        [messageDirections.copy, 1, 4, 64],
        [messageDirections.send, 2, 1, 0],
        [messageDirections.send, 0, 0, 0],
        [messageDirections.send, 0, 1, 0],
        [messageDirections.send, 0, 2, 0],
        [messageDirections.send, 0, 3, 0],
        [messageDirections.receive, 2, 9, 0],
      ],
      [[messageDirections.send, 0, 4, 0]],
    ],
  );
});

test('chunks are taken when every receiver has counted as far as the block that sends to it, also where counters wrap', () => {
  const shape = { ranks: 3, lanes: 2 };
  const blocks = new Uint32Array((2 * shape.lanes * messageBlock.size) / 4);
  const flags = new Uint32Array((shape.lanes * shape.ranks * messageFlags.size) / 4);
  const [lane, peer] = [1, 2];
  const sent = (2 * lane * messageBlock.size + messageBlock.offset.chunks) / 4 + peer;
  const taken = ((lane * shape.ranks + peer) * messageFlags.size + messageFlags.offset.taken) / 4;
  for (const [put, got, all] of [
    [0, 0, true],
    [5, 3, false],
    [5, 5, true],
    [1, 2 ** 32 - 1, false],
    [2 ** 32 - 1, 2 ** 32 - 1, true],
  ] as const) {
    blocks[sent] = put;
    flags[taken] = got;
    assert.equal(areTaken(blocks, flags, shape), all, `${put} put, ${got} taken`);
  }
});
