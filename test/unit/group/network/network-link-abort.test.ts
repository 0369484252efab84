// A rank that gives up says so on a channel of its own: before rows that have no room, and later where there is none for it.
import assert from 'node:assert/strict';
import test from 'node:test';
import type { ChannelParts } from '#lib/agent/agent-options.js';
import type { BackendRemoteRegion, PutPlace } from '#lib/agent/backend.js';
import { NetworkLink } from '#lib/group/network/network-link.js';

class PretendedChannel {
  room = 0;
  posted = 0;
  delivered = 0;
  readonly operations: string[] = [];

  put({ localOffset, remoteOffset, bytes }: PutPlace): boolean {
    return this.#post(`put ${localOffset} ${remoteOffset} ${bytes}`);
  }

  signal(_remote: BackendRemoteRegion, offset: number): boolean {
    return this.#post(`signal ${offset}`);
  }

  #post(operation: string): boolean {
    if (this.room === 0) return false;
    this.room--;
    this.posted++;
    this.operations.push(operation);
    return true;
  }
}

async function pretend(): Promise<{ link: NetworkLink; rows: PretendedChannel; abort: PretendedChannel }> {
  const channels: PretendedChannel[] = [];
  const openChannel = (): PretendedChannel => {
    channels.push(new PretendedChannel());
    return channels.at(-1)!;
  };
  const parts = { backend: 'multipath', link: { state: 'open', error: undefined, openChannel }, local: {}, remote: {} };
  const link = await NetworkLink.open({
    parts: parts as unknown as ChannelParts,
    remotes: [{} as BackendRemoteRegion],
    channels: 1,
    rows: 8,
    rowWindow: 0,
    hasClosed: () => false,
  });
  const [rows, abort] = channels as [PretendedChannel, PretendedChannel];
  return { link, rows, abort };
}

const places = { from: 100, to: 200, bytes: 24, cell: 8 };

test('the reason and its signal go at once, whatever waits for room', async () => {
  const { link, rows, abort } = await pretend();
  link.queues[0]!.put(1000, 0, 2000, 64);
  link.advance();
  abort.room = 2;
  link.giveUp(places);
  assert.deepEqual(rows.operations, []);
  assert.deepEqual(abort.operations, ['put 100 200 24', 'signal 8']);
  rows.room = 1;
  link.advance();
  assert.deepEqual(abort.operations.length, 2, 'once');
});

test('where there is no room they go later, the reason first, and nothing counts as delivered before', async () => {
  const { link, abort } = await pretend();
  link.giveUp(places);
  assert.deepEqual(abort.operations, []);
  assert.equal(link.isDelivered, false);
  abort.room = 1;
  link.advance();
  assert.deepEqual(abort.operations, ['put 100 200 24']);
  abort.room = 1;
  link.advance();
  assert.deepEqual(abort.operations, ['put 100 200 24', 'signal 8']);
  assert.equal(link.isDelivered, false);
  abort.delivered = 2;
  assert.equal(link.isDelivered, true);
});
