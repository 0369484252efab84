// How a process that was started again finds out that its former one had made an elastic EpLowLatency.
import assert from 'node:assert/strict';
import test from 'node:test';
import { AnnouncementBoard } from '#lib/ep/low-latency/members/low-latency-joining.js';
import type { RankGroup } from '#lib/world/rank-group.js';

/** Ranks of one job; each process of a rank has a group of its own. */
function job(): (rank: number) => RankGroup {
  const values = new Map<string, unknown>();
  const store = {
    compareAndSet: async (key: string) => ({ isSet: false, value: values.get(key) }),
    setJson: async (key: string, value: unknown) => void values.set(key, value),
  };
  return (rank) => ({ rank, size: 2, ranks: [0, 1], store }) as unknown as RankGroup;
}

test('an object that nobody has announced is to be made', async () => {
  const process = job();
  for (const rank of [0, 1]) assert.equal(await new AnnouncementBoard(process(rank)).isKnown(), false);
});

test('a process that ended before it announced the object joins that which the others have announced', async () => {
  const process = job();
  const other = new AnnouncementBoard(process(0));
  await other.announce({ shared: undefined } as never, {} as never);
  const again = process(1);
  assert.equal(await new AnnouncementBoard(again).isKnown(), true);
  // The second one is another object.
  assert.equal(await new AnnouncementBoard(again).isKnown(), false);
});
