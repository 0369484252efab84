// What copy engines move in a call, and how ranks tell that they mean the same places.
import assert from 'node:assert/strict';
import test from 'node:test';
import { collectiveFailures } from '#lib/abi/collectives.js';
import { trapReasons } from '#lib/abi/trap-record.js';
import { makeCollectiveCall } from '#lib/collectives/collective-call.js';
import {
  callWord,
  describeCallWord,
  explainCollectiveFailure,
  signatureOfPlace,
} from '#lib/collectives/cuda/kernel-failures.js';
import { copiesByEngines } from '#lib/collectives/cuda/cuda-collectives.js';

const place = { id: 1, offset: 512, within: 0, leastBytes: 1 << 20 };
const call = {
  ...makeCollectiveCall(4),
  dtype: 'f32',
  elementBytes: 4,
  count: 100,
  input: 10_000,
  output: 90_000,
} as const;

test('allGather goes to its place at every rank, the next one first, and not to where it lies already', () => {
  const gather = { ...call, kind: 'allGather' } as const;
  assert.deepEqual(copiesByEngines(gather, { rank: 2, size: 4 }, place), [
    { rank: 2, to: 800, from: 10_000, bytes: 400 },
    { rank: 3, to: 800, from: 10_000, bytes: 400 },
    { rank: 0, to: 800, from: 10_000, bytes: 400 },
    { rank: 1, to: 800, from: 10_000, bytes: 400 },
  ]);
  const inPlace = copiesByEngines({ ...gather, input: 90_800 }, { rank: 2, size: 4 }, place)!;
  assert.deepEqual(
    inPlace.map(({ rank }) => rank),
    [3, 0, 1],
  );
});

test('allToAll brings part s to rank s; in place it goes another way', () => {
  const all = { ...call, kind: 'allToAll' } as const;
  const copies = copiesByEngines(all, { rank: 1, size: 2 }, place);
  assert.deepEqual(copies, [
    { rank: 1, to: 400, from: 10_400, bytes: 400 },
    { rank: 0, to: 400, from: 10_000, bytes: 400 },
  ]);
  assert.equal(copiesByEngines({ ...all, input: all.output }, { rank: 1, size: 2 }, place), undefined);
});

test('other calls, outputs that are not registered and ones that reach too far go another way', () => {
  const ranks = { rank: 0, size: 4 };
  assert.equal(copiesByEngines({ ...call, kind: 'allReduce' }, ranks, place), undefined);
  assert.equal(copiesByEngines({ ...call, kind: 'allGather' }, ranks, { ...place, id: 0 }), undefined);
  assert.equal(copiesByEngines({ ...call, kind: 'allGather' }, ranks, { ...place, leastBytes: 1599 }), undefined);
  assert.ok(copiesByEngines({ ...call, kind: 'allGather' }, ranks, { ...place, leastBytes: 1600 }));
});

test('ranks whose outputs are at different places are told so, and ranks that go another way too', () => {
  const gather = { ...call, kind: 'allGather' } as const;
  const [word, other] = [callWord(gather, true), callWord(gather)];
  assert.equal(describeCallWord(word), 'allGather of 100 f32 by copy engines');
  assert.equal(describeCallWord(other), 'allGather of 100 f32');
  const signatures = [place, { ...place, within: 4096 }, { ...place, id: 2 }].map((one) => signatureOfPlace(word, one));
  assert.equal(new Set(signatures).size, 3);
  const told = (seen: number): string =>
    explainCollectiveFailure(
      {
        reason: trapReasons.callFailed,
        channel: collectiveFailures.otherCall,
        peer: 1,
        expected: word,
        seen,
      } as never,
      [0, 1],
    )!.message;
  assert.match(told(word), /Ranks 0 and 1 are in allGather of 100 f32 by copy engines, .* different places/);
  assert.match(told(other), /Rank 0 is in allGather of 100 f32 by copy engines, but rank 1 is in allGather of 100 f32/);
});
