// What waits for a channel goes out once and in order, however little room the channel has.
import assert from 'node:assert/strict';
import test from 'node:test';
import { PartTable } from '#lib/transport/part-table.js';
import type { BackendChannel, BackendRegion, BackendRemoteRegion, PutPlace } from '#lib/agent/backend.js';
import { OutQueue } from '#lib/group/network/out-queue.js';
import { MAX_RANGE_BYTES } from '#lib/transport/send/range-list.js';
import fc from '../../../support/fast-check.ts';

const window = (name: string): BackendRemoteRegion => ({ name }) as unknown as BackendRemoteRegion;
const windows = [window('first'), window('second')];

/** Takes as many operations as it has room for. */
class PretendedChannel {
  needsCalls: boolean | undefined;
  room = 0;
  posted = 0;
  delivered = 0;
  readonly operations: string[] = [];

  put({ remote, localOffset, remoteOffset, bytes }: PutPlace): boolean {
    return this.#post(`put ${windows.indexOf(remote)} ${localOffset} ${remoteOffset} ${bytes}`);
  }

  signal(remote: BackendRemoteRegion, offset: number, add: number): boolean {
    return this.#post(`signal ${windows.indexOf(remote)} ${offset} ${add}`);
  }

  #post(operation: string): boolean {
    if (this.room === 0) return false;
    this.room--;
    this.posted++;
    this.operations.push(operation);
    return true;
  }
}

interface Pretended {
  readonly channel: PretendedChannel;
  readonly queue: OutQueue;
}

/** Rows go to the second window. */
async function pretend(): Promise<Pretended> {
  const channel = new PretendedChannel();
  const local = {} as unknown as BackendRegion;
  const queue = new OutQueue({
    channel: channel as unknown as BackendChannel,
    local,
    remotes: windows,
    rows: PartTable.ofCount(300),
    rowWindow: 1,
  });
  await queue.use(local, windows);
  return { channel, queue };
}

type Kind = 'put' | 'signal' | 'row';

/** Queues it, and returns what the channel is to see. */
function enqueue(queue: OutQueue, kind: Kind, at: number): string {
  const [local, remote] = [at * 1000, at * 2000];
  if (kind === 'signal') {
    queue.signal(0, remote);
    return `signal 0 ${remote} 1`;
  }
  if (kind === 'row') queue.putRow(local, remote, 16);
  else queue.put(local, 0, remote, 16);
  return `put ${kind === 'row' ? 1 : 0} ${local} ${remote} 16`;
}

test('puts, rows and signals keep their order over a channel that takes a few at a time', async () => {
  const anyWork = fc.record({
    work: fc.array(fc.constantFrom<Kind>('put', 'signal', 'row', 'row', 'row'), { maxLength: 300 }),
    room: fc.integer({ min: 1, max: 5 }),
    early: fc.boolean(),
  });
  await fc.assert(
    fc.asyncProperty(anyWork, async ({ work, room, early }) => {
      const { channel, queue } = await pretend();
      queue.begin();
      const expected = work.map((kind, at) => {
        const seen = enqueue(queue, kind, at);
        channel.room = early && at % 7 === 0 ? 2 : 0;
        queue.advance();
        return seen;
      });
      for (let round = 0; round <= work.length; round++) {
        channel.room = room;
        queue.advance();
      }
      assert.deepEqual(channel.operations, expected);
      assert.equal(queue.bytes, 16 * work.filter((kind) => kind !== 'signal').length);
      assert.equal(queue.isDelivered, work.length === 0);
      channel.delivered = channel.posted;
      assert.ok(queue.isDelivered);
    }),
  );
});

test('rows that follow each other on both sides become one, but not across a signal', async () => {
  const { channel, queue } = await pretend();
  channel.room = 100;
  queue.begin();
  queue.putRow(0, 64, 16);
  queue.putRow(16, 80, 16);
  queue.putRow(32, 128, 16);
  queue.signal(0, 8);
  queue.putRow(48, 144, 16);
  queue.advance();
  assert.deepEqual(channel.operations, ['put 1 0 64 32', 'put 1 32 128 16', 'signal 0 8 1', 'put 1 48 144 16']);
});

test('without room nothing goes out, and nothing counts as delivered', async () => {
  const { channel, queue } = await pretend();
  assert.ok(queue.isDelivered);
  queue.put(0, 0, 0, 0);
  assert.ok(queue.isDelivered, 'nothing to put');
  queue.put(0, 0, 0, 8);
  assert.ok(!queue.advance());
  assert.ok(!queue.isDelivered);
  channel.room = 1;
  assert.ok(queue.advance());
  assert.ok(!queue.isDelivered);
  channel.delivered = 1;
  assert.ok(queue.isDelivered);
});

test('posted means that the carrier needs no further call: what it holds back is not', async () => {
  const { channel, queue } = await pretend();
  channel.room = 1;
  channel.needsCalls = true;
  queue.put(0, 0, 0, 8);
  assert.ok(!queue.isPosted, 'it waits here');
  assert.ok(queue.advance());
  assert.ok(!queue.isPosted, 'it waits in the carrier');
  channel.needsCalls = false;
  assert.ok(queue.isPosted);
  assert.ok(!queue.isDelivered);
});

test('rows of a table are no longer than it takes: those go alone, as those do for which it has no place', async () => {
  const channel = new PretendedChannel();
  channel.room = 100;
  const rows = PartTable.ofCount(3);
  const shareParts = async () => ({
    put: (first: number, count: number) => {
      const ranges = Array.from(
        { length: count },
        (_, at) => `${rows.localOffset[first + at]}+${rows.bytes[first + at]}`,
      );
      channel.operations.push(`rows ${ranges.join(' ')}`);
      return true;
    },
    release: async () => {},
  });
  const local = {} as unknown as BackendRegion;
  const shared = Object.assign(channel, { shareParts }) as unknown as BackendChannel;
  const queue = new OutQueue({ channel: shared, local, remotes: windows, rows, rowWindow: 1 });
  await queue.use(local, windows);
  queue.begin();
  const half = MAX_RANGE_BYTES / 2;
  for (const at of [0, 1, 2]) queue.putRow(at * half, 100_000 + at * half, half);
  queue.putRow(200_000, 0, MAX_RANGE_BYTES + 1);
  queue.putRow(300_000, 0, 0);
  queue.putRow(400_000, 8, 16);
  queue.putRow(500_000, 64, 16);
  queue.signal(0, 8);
  queue.advance();
  assert.deepEqual(channel.operations, [
    `rows 0+${2 * half} ${2 * half}+${half}`,
    `put 1 200000 0 ${MAX_RANGE_BYTES + 1}`,
    'rows 400000+16',
    'put 1 500000 64 16',
    'signal 0 8 1',
  ]);
});
