import assert from 'node:assert/strict';
import test from 'node:test';
import { LinkedStore, type StoreLink } from '#lib/world/store.js';
import { StoreCore } from '#lib/world/store-core.js';
import { seededRandom } from '#lib/core/seeded-random.js';
import { testSeed } from '../../support/seed.ts';

type Stores = readonly [LinkedStore, LinkedStore, LinkedStore, LinkedStore];

/** A store with a view for each of four ranks, which have joined. */
function world(elastic = false): { readonly core: StoreCore; readonly stores: Stores } {
  const core = new StoreCore({ size: 4, maxValueBytes: 4096, elastic });
  const stores = [0, 1, 2, 3].map((rank) => {
    core.join(rank, { pid: 100 + rank, host: 'host' });
    return new LinkedStore(linkOf(core, rank), { timeoutMs: 30_000, maxValueBytes: 4096 });
  });
  return { core, stores: stores as unknown as Stores };
}

function linkOf(core: StoreCore, rank: number): StoreLink {
  return { request: (...rest) => core.request(rank, ...rest) };
}

test('all ranks that live come: they get one group, whichever of them was lost before or meanwhile', async () => {
  const { core, stores } = world();
  const early = stores[0].shrink([], {});
  core.leave(3, { how: 'lost' });
  const later = stores[2].shrink([3], {});
  // The last one that is missing dies in the middle of the agreement.
  core.leave(1, { how: 'lost' });
  const [first, second] = await Promise.all([early, later]);
  assert.deepEqual(first, second);
  assert.deepEqual(first.ranks, [0, 2]);
  assert.deepEqual(first.left, [
    { rank: 1, why: 'its process was lost' },
    { rank: 3, why: 'its process was lost' },
  ]);
});

test('a rank that came and died before the decision is not in it', async () => {
  const { core, stores } = world();
  const waits = [stores[0].shrink([], {}), stores[1].shrink([], {}), stores[2].shrink([], {})];
  const died = assert.rejects(waits[1]!, { code: 'WL_CLOSED' });
  core.leave(1, { how: 'lost' });
  const last = stores[3].shrink([], {});
  await died;
  for (const wait of [waits[0]!, waits[2]!, last]) assert.deepEqual((await wait).ranks, [0, 2, 3]);
});

test('a rank that does not come in time is left out, and hears so whenever it comes', async () => {
  const { stores } = world();
  const [decided] = await Promise.all([
    stores[0].shrink([], { timeoutMs: 20 }),
    stores[1].shrink([], {}),
    stores[3].shrink([], {}),
  ]);
  assert.deepEqual(decided.ranks, [0, 1, 3]);
  assert.deepEqual(decided.left, [{ rank: 2, why: 'it did not come within the 20 ms of ranks 0, 1, 3' }]);
  const refused = {
    code: 'WL_INACTIVE',
    message:
      /^Rank 2 was left out of its group, because it did not come within the 20 ms of ranks 0, 1, 3: the others go on/,
    details: { rank: 2, why: 'it did not come within the 20 ms of ranks 0, 1, 3' },
  };
  await assert.rejects(stores[2].shrink([], {}), refused);
  // Another round of the same group, in which it is not awaited.
  const again = await Promise.all([stores[3].shrink([], {}), stores[0].shrink([], {}), stores[1].shrink([], {})]);
  for (const { ranks, number } of again) assert.deepEqual({ ranks, number }, { ranks: [0, 1, 3], number: 2 });
  await assert.rejects(stores[2].shrink([], {}), refused);
});

test('fewer than half leave nobody out', async () => {
  const { core, stores } = world();
  await assert.rejects(stores[1].shrink([], { timeoutMs: 10 }), {
    code: 'WL_TIMEOUT',
    message:
      'Rank 1 gave up the agreement on the ranks that live after 10 ms: ranks 0, 2, 3 did not come; those that came are fewer than half of the ranks that live, and cannot go on without the others',
    details: { rank: 1, waitingFor: 'the agreement on the ranks that live', timeoutMs: 10, missing: [0, 2, 3] },
  });
  // Two of three that live are enough, and the one that was hasty may come again.
  core.leave(3, { how: 'closed' });
  const both = await Promise.all([stores[0].shrink([], { timeoutMs: 30 }), stores[1].shrink([], {})]);
  for (const { ranks } of both) assert.deepEqual(ranks, [0, 1]);
  assert.equal(both[0].left[1]?.why, 'it closed its world');
});

test('a process that took the place of a lost one is of no group that was made before', async () => {
  const { core, stores } = world(true);
  core.leave(2, { how: 'lost' });
  core.join(2, { pid: 900, host: 'host' });
  const early = assert.rejects(stores[2].shrink([], {}), { code: 'WL_INACTIVE', message: /its process was lost/ });
  const others = [stores[0], stores[1], stores[3]].map((store) => store.shrink([2], {}));
  await early;
  for (const { ranks } of await Promise.all(others)) assert.deepEqual(ranks, [0, 1, 3]);
});

test('groups agree apart from each other', async () => {
  const { core } = world();
  const of = (rank: number) =>
    new LinkedStore(linkOf(core, rank), {
      timeoutMs: 30_000,
      maxValueBytes: 4096,
      group: { name: 'odd', ranks: [3, 1] },
    });
  const waits = [of(1).shrink([], {}), of(3).shrink([], {})];
  for (const { ranks } of await Promise.all(waits)) assert.deepEqual(ranks, [1, 3]);
});

test('ranks that are of no group are not lost of it', async () => {
  const { core } = world();
  const request = { op: 'shrink', name: 's', members: [0, 1], lost: [2], timeoutMs: 10 } as const;
  await assert.rejects(core.request(0, request, []), { code: 'WL_PROTOCOL' });
});

test('a rank that gives up is awaited again', async () => {
  const { stores } = world();
  const stop = new AbortController();
  const reason = new Error('enough');
  const given = assert.rejects(stores[0].shrink([], { signal: stop.signal }), reason);
  stop.abort(reason);
  await given;
  const waits = stores.slice(1).map((store) => store.shrink([], {}));
  const all = [...waits, stores[0].shrink([], {})];
  for (const { ranks } of await Promise.all(all)) assert.deepEqual(ranks, [0, 1, 2, 3]);
});

test('several calls of a rank at a time are for one decision each, in their order', async () => {
  const { stores } = world();
  const [first, second] = [stores[0].shrink([], {}), stores[0].shrink([], { timeoutMs: 20 })];
  const once = [1, 2, 3].map((rank) => stores[rank as 1].shrink([], {}));
  for (const wait of [first, ...once]) assert.equal((await wait).number, 1);
  // Fewer than half have come for the next one.
  await assert.rejects(second, { code: 'WL_TIMEOUT', message: /ranks 1, 2, 3 did not come/ });
  const again = stores.map((store) => store.shrink([], {}));
  for (const wait of again) assert.deepEqual((await wait).ranks, [0, 1, 2, 3]);
});

test('no two ranks come out with different members, whoever dies, is late or gives up', async () => {
  const next = seededRandom(testSeed());
  for (let round = 0; round < 200; round += 1) {
    const { core, stores } = world();
    const dead = new Set<number>();
    const outcomes = new Map<number, readonly number[]>();
    const come = (rank: number, timeoutMs: number): Promise<void> =>
      stores[rank]!.shrink([], { timeoutMs }).then(
        ({ ranks }) => void outcomes.set(rank, ranks),
        () => undefined,
      );
    const waits: Promise<void>[] = [];
    for (let step = 0; step < 6; step += 1) {
      const rank = Math.floor(next() * 4);
      if (dead.has(rank)) continue;
      if (next() < 0.3) {
        dead.add(rank);
        core.leave(rank, { how: 'lost' });
      } else if (!outcomes.has(rank)) {
        outcomes.set(rank, []);
        waits.push(come(rank, Math.floor(next() * 3)));
      }
      if (next() < 0.2) await new Promise((resolve) => setTimeout(resolve, 1));
    }
    await Promise.all(waits);
    for (const [rank, ranks] of outcomes) {
      if (ranks.length === 0) continue;
      assert.ok(ranks.includes(rank));
      // Whoever is in a group has the same one, or died before it was told.
      for (const other of ranks) assert.ok(dead.has(other) || outcomes.get(other)?.join() === ranks.join());
    }
  }
});
