import assert from 'node:assert/strict';
import test from 'node:test';
import { sortRows, topCells, topColumns, topRows } from '#lib/programs/cli/top-command.js';
import type { JobView, RankView } from '#lib/world/watching/job-view.js';

const meters = { sentBytes: 0, receivedBytes: 0, sentPackets: 0, retransmittedPackets: 0, windowBytes: 1 << 20 };

function job(ranks: readonly Partial<RankView>[]): JobView {
  const views = ranks.map((view, rank) => ({
    rank,
    state: 'answers' as const,
    host: 'host',
    pid: 100 + rank,
    waits: [],
    objects: [],
    names: [],
    process: undefined,
    cpuShare: undefined,
    rssBytes: 1 << 20,
    meters,
    heardMs: 0,
    ...view,
  }));
  return { jobId: 'job', size: views.length, ranks: views, launchers: [], storeError: undefined, isStoreBusy: false };
}

const sent = (sentBytes: number): Partial<RankView> => ({ meters: { ...meters, sentBytes } });

test('rates are differences over the time between two looks; the first look has none', () => {
  const [first] = topRows(job([sent(100)]), undefined, 1);
  assert.equal(first?.values.sent, undefined);
  const [second] = topRows(job([sent(300)]), job([sent(100)]), 2);
  assert.equal(second?.values.sent, 100);
  // A connection was closed in between, and its count is gone.
  const [third] = topRows(job([sent(50)]), job([sent(300)]), 2);
  assert.equal(third?.values.sent, 0);
});

test('ranks are sorted ascending, other columns descending, unknown values last', () => {
  const before = job([sent(0), sent(0), { meters: undefined }]);
  const rows = topRows(job([sent(10), sent(30), { meters: undefined }]), before, 1);
  const order = (key: 'rank' | 'sent'): number[] => sortRows(rows, key).map(({ view }) => view.rank);
  assert.deepEqual(order('rank'), [0, 1, 2]);
  assert.deepEqual(order('sent'), [1, 0, 2]);
});

test('a cell for each column', () => {
  const object = { object: 'EpBuffer', ranks: [0, 1], calls: 7, last: 'combine', isRunning: true };
  const waits = [{ operation: 'combine (closing barrier)', ranks: [1], ageMs: 1250 }];
  const [row] = topRows(job([{ waits, objects: [object] }]), undefined, 1);
  const cells = topCells(row!);
  assert.equal(cells.length, topColumns.length);
  assert.deepEqual(cells.slice(0, 7), ['0', 'host', '100', 'waits', 'EpBuffer combine 7', 'rank 1', '1.3 s']);
  assert.deepEqual(cells.slice(-2), ['1 MiB', '1 MiB']);
});
