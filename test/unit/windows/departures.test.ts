// Memory of a GPU's window is kept until the other ranks have unmapped it or ended; tested with locks of this process.
import assert from 'node:assert/strict';
import { existsSync } from 'node:fs';
import test from 'node:test';
import { Departures, keptBytes, sweepKept } from '#lib/windows/cuda-window.js';

interface Part {
  disposed: boolean;
  readonly bytes: number;
  [Symbol.dispose](): void;
}

function part(): Part {
  return {
    disposed: false,
    bytes: 100,
    [Symbol.dispose]() {
      this.disposed = true;
    },
  };
}

/** One of the ranks of a host. */
function groupOf(rank: number, ranks: number): never {
  const scaleUpRanks = Array.from({ length: ranks }, (_, at) => at);
  return {
    filePrefix: `test-${process.pid}`,
    worldRank: rank,
    topology: { scaleUpRanks, scaleUpIndex: rank },
  } as never;
}

test('a part goes when the last of the others has left, and device.close() waits for that', async () => {
  const path = Departures.pathFor(groupOf(0, 3), 'window');
  const ranks = [0, 1, 2].map((rank) => new Departures(path, groupOf(rank, 3)));
  assert.ok(existsSync(path));
  for (const rank of ranks) rank.removeName();
  assert.ok(!existsSync(path));
  const threads = new Set<() => Promise<void>>();
  const own = part();
  ranks[0]!.leave();
  ranks[0]!.release(own as never, { threads }, 60_000);
  assert.deepEqual([own.disposed, keptBytes(), threads.size], [false, 100, 1]);
  ranks[1]!.leave();
  sweepKept();
  assert.equal(own.disposed, false);
  const closing = [...threads][0]!();
  // As the kernel does when its process ends.
  ranks[2]!.leave();
  await closing;
  assert.deepEqual([own.disposed, keptBytes(), threads.size], [true, 0, 0]);
  for (const rank of ranks) rank[Symbol.dispose]();
});

test('device.close() waits for late ranks no longer than it may', async () => {
  const path = Departures.pathFor(groupOf(0, 2), 'window');
  const ranks = [0, 1].map((rank) => new Departures(path, groupOf(rank, 2)));
  ranks[0]!.removeName();
  const threads = new Set<() => Promise<void>>();
  const own = part();
  ranks[0]!.leave();
  ranks[0]!.release(own as never, { threads }, 50);
  await [...threads][0]!();
  assert.equal(own.disposed, false);
  // What the device's own end does.
  own[Symbol.dispose]();
  sweepKept();
  assert.equal(keptBytes(), 0);
  for (const rank of ranks) rank[Symbol.dispose]();
});

test('a rank alone keeps nothing', () => {
  const alone = new Departures('/nowhere', groupOf(0, 1));
  const own = part();
  alone.leave();
  alone.release(own as never, { threads: new Set() }, 1000);
  assert.ok(own.disposed);
});
