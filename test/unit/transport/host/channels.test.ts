// Channels: whatever order their operations end in, they are counted in the order of posting, up to the first that failed.
import assert from 'node:assert/strict';
import test from 'node:test';
import { WeftlineError } from 'weftline';
import { encodeError } from '#lib/core/errors.js';
import { MAX_CHANNELS } from '#lib/transport/engine-commands.js';
import type { TransportConnection } from '#lib/transport/engine/transport-engine.js';
import { PartTable } from '#lib/transport/part-table.js';
import { Channel, ChannelPool } from '#lib/transport/host/channel.js';
import { CommandRing, EngineCommand } from '#lib/transport/host/command-ring.js';
import { EngineChannels } from '#lib/transport/host/engine-channels.js';
import type { EngineGroup } from '#lib/transport/host/engine-group.js';
import { SharedRequests } from '#lib/transport/host/shared-requests.js';
import fc from '../../../support/fast-check.ts';

const REMOTE = { remoteRegion: 1, remoteKey: 2 };
const OPERATIONS = 512;

/** Both sides of the channels of one engine; requests end when the test says so. */
class Sides {
  readonly requests = new SharedRequests();
  readonly pool: ChannelPool;
  readonly #user: CommandRing;
  readonly #engine: CommandRing;
  readonly #command: EngineCommand = new EngineCommand();
  readonly channels: EngineChannels;
  readonly group: EngineGroup;
  /** Names of operations by the handles of their requests, in the order of posting. */
  readonly names = new Map<number, number>();
  readonly cancelled: number[] = [];
  refuse: WeftlineError | undefined;
  /** The connection as channels see it. */
  readonly connection = { error: undefined as WeftlineError | undefined, isLeaving: false };
  /** Failures that the engine has told, and nobody has read. */
  readonly #told: (() => void)[] = [];
  #next = 1;

  constructor() {
    this.#user = new CommandRing();
    this.#engine = new CommandRing(this.#user.buffer);
    const post = (): number => {
      if (this.refuse !== undefined) throw this.refuse;
      return this.#next++;
    };
    const connection = {
      write: post,
      signal: post,
      cancel: (handle: number) => this.cancelled.push(handle),
    } as unknown as TransportConnection;
    this.channels = new EngineChannels({
      requests: new SharedRequests(this.requests.news, this.requests.buffer),
      connection: () => connection,
      find: () => connection,
      region: () => ({}) as never,
      follow: (handle, name) => this.names.set(handle, name),
      onFailure: (channel, error) => this.#told.push(() => this.pool.failed(channel, error)),
    });
    this.group = {
      requests: this.requests,
      links: [{ ring: this.#user }],
      failure: undefined,
      put: (_: number, command: EngineCommand) => this.#user.put(command),
      readEvents: () => this.readEvents(),
      call: async (_: number, name: string, channel: number) => {
        assert.equal(name, 'closeChannel');
        this.take();
        this.channels.close(channel);
      },
    } as unknown as EngineGroup;
    this.pool = new ChannelPool(this.group);
  }

  open(): Channel {
    const { group, pool, connection } = this;
    return new Channel({ group, pool, end: { engine: 0, number: 3 }, flow: 1, connection });
  }

  readEvents(): void {
    for (const tell of this.#told.splice(0)) tell();
  }

  /** The engine takes what was posted. */
  take(): void {
    while (this.#engine.take(this.#command)) this.channels.carryOut(this.#command);
  }

  end(handle: number, error?: WeftlineError): void {
    this.channels.ended(this.names.get(handle)!, error && encodeError(error));
  }
}

test('operations are counted in order up to the first that failed, whichever end first', () => {
  const end = fc.record({ pick: fc.nat(1000), fails: fc.integer({ min: 0, max: 20 }).map((number) => number === 0) });
  fc.assert(
    fc.property(fc.array(end, { minLength: 1, maxLength: 60 }), fc.nat(3), (ends, extra) => {
      const sides = new Sides();
      const channel = sides.open();
      for (let at = 0; at < ends.length + extra; at++) {
        if (at % 3 === 2) channel.add(REMOTE, 8, 1);
        else channel.write(0, at, REMOTE, at, 1);
      }
      sides.take();
      const pending = [...sides.names.keys()];
      const order = [...pending];
      const outcome = new Map<number, boolean>();
      for (const { pick, fails } of ends) {
        const [handle] = pending.splice(pick % pending.length, 1);
        sides.end(handle!, fails ? new WeftlineError('WL_PEER_FAILED', `request ${handle}`) : undefined);
        outcome.set(handle!, !fails);
        channel.look();
        let delivered = 0;
        while (outcome.get(order[delivered]!) === true) delivered++;
        assert.equal(channel.delivered, delivered);
        const first = order[delivered];
        if (first !== undefined && outcome.get(first) === false)
          assert.equal(channel.error?.message, `request ${first}`);
        else assert.equal(channel.error, undefined);
        if (channel.error !== undefined) break;
      }
    }),
  );
});

test('a full channel has no room until something of it is delivered', () => {
  const sides = new Sides();
  const channel = sides.open();
  for (let round = 0; round < 3; round++) {
    for (let at = 0; at < OPERATIONS; at++) {
      assert.ok(channel.hasRoom);
      channel.write(0, 0, REMOTE, 0, 8);
    }
    assert.equal(channel.hasRoom, false);
    sides.take();
    for (const handle of sides.names.keys()) sides.end(handle);
    sides.names.clear();
    assert.ok(channel.look());
    assert.equal(channel.delivered, channel.posted);
  }
  assert.equal(sides.pool.underWay, 0);
});

test('a channel that ends withdraws what is under way, and its number is free once that has ended', () => {
  const sides = new Sides();
  const channel = sides.open();
  channel.write(0, 0, REMOTE, 0, 8);
  channel.add(REMOTE, 8, 1);
  channel.end(new WeftlineError('WL_CLOSED', 'over'));
  channel.end(new WeftlineError('WL_PEER_LOST', 'twice'));
  assert.equal(channel.error?.message, 'over');
  assert.throws(() => channel.hasRoom, { code: 'WL_CLOSED' });
  const handles = [...sides.names.keys()];
  assert.deepEqual(sides.cancelled, handles);
  assert.equal(channel.isQuiet, false);
  const other = sides.open();
  other.write(0, 0, REMOTE, 0, 8);
  sides.take();
  for (const handle of handles) sides.end(handle, new WeftlineError('WL_CLOSED', 'cancelled'));
  assert.ok(channel.isQuiet);
  // The number of the first serves again, and starts from nothing; the first stays what it was.
  const again = sides.open();
  assert.equal(again.number, channel.number);
  assert.ok(channel.isQuiet);
  again.write(0, 0, REMOTE, 0, 8);
  sides.take();
  sides.end([...sides.names.keys()].at(-1)!);
  assert.ok(again.look());
  assert.equal(again.delivered, 1);
  assert.equal(again.error, undefined);
  assert.equal(other.look(), false);
});

test('what the engine refuses fails its channel, and a connection that ends fails what is left', () => {
  const sides = new Sides();
  const channel = sides.open();
  channel.write(0, 0, REMOTE, 0, 8);
  sides.take();
  sides.refuse = new WeftlineError('WL_INVALID_ARGUMENT', 'outside');
  channel.write(0, 0, REMOTE, 0, 8);
  sides.take();
  assert.equal(channel.look(), false);
  sides.end(1);
  assert.ok(channel.look());
  assert.equal(channel.delivered, 1);
  assert.equal(channel.error?.code, 'WL_INVALID_ARGUMENT');
  sides.refuse = undefined;
  const other = sides.open();
  other.write(0, 0, REMOTE, 0, 8);
  sides.take();
  sides.channels.endConnection(3, encodeError(new WeftlineError('WL_PEER_LOST', 'gone')));
  assert.ok(other.look());
  assert.equal(other.error?.code, 'WL_PEER_LOST');
});

test('nothing goes behind an operation that failed, and a table needs a connection', async () => {
  const sides = new Sides();
  const channel = sides.open();
  sides.refuse = new WeftlineError('WL_CLOSED', 'the region was closed');
  channel.write(0, 0, REMOTE, 0, 8);
  sides.take();
  sides.refuse = undefined;
  channel.add(REMOTE, 8, 1);
  sides.take();
  assert.equal(sides.names.size, 0);
  assert.ok(channel.look());
  assert.equal(channel.error?.message, 'the region was closed');
  const other = sides.open();
  sides.connection.error = new WeftlineError('WL_PEER_LOST', 'gone');
  await assert.rejects(other.shareTable(PartTable.ofCount(1), 0, REMOTE), { code: 'WL_PEER_LOST' });
});

test('the end of the connection is the error of its channels, and one that leaves takes nothing more', () => {
  const sides = new Sides();
  const channel = sides.open();
  channel.write(0, 0, REMOTE, 0, 8);
  sides.take();
  sides.connection.isLeaving = true;
  assert.equal(channel.hasRoom, false);
  sides.connection.error = new WeftlineError('WL_CLOSED', 'b closed the connection');
  assert.equal(channel.error?.code, 'WL_CLOSED');
  assert.throws(() => channel.hasRoom, { code: 'WL_CLOSED' });
  // What had gone may still be acknowledged.
  sides.end(1);
  assert.ok(channel.look());
  assert.equal(channel.delivered, 1);
  assert.ok(channel.isQuiet);
});

test('a channel does not tell the reason of an earlier one of its number', () => {
  const sides = new Sides();
  const first = sides.open();
  first.write(0, 0, REMOTE, 0, 8);
  sides.take();
  sides.end(1, new WeftlineError('WL_PEER_FAILED', 'of the first'));
  first.end(new WeftlineError('WL_CLOSED', 'closed'));
  const second = sides.open();
  assert.equal(second.number, first.number);
  second.write(0, 0, REMOTE, 0, 8);
  sides.take();
  sides.end(2, new WeftlineError('WL_PEER_LOST', 'of the second'));
  assert.ok(second.look());
  assert.equal(second.error?.message, 'of the second');
});

test('channels together leave requests of the engine to others, and each has some for itself', () => {
  const sides = new Sides();
  const stalled = Array.from({ length: 40 }, () => sides.open());
  for (const channel of stalled) {
    while (channel.hasRoom) {
      channel.write(0, 0, REMOTE, 0, 8);
      sides.take();
    }
  }
  assert.ok(sides.pool.underWay < 20_000, String(sides.pool.underWay));
  const late = sides.open();
  assert.ok(late.hasRoom);
});

test('as many channels as there may be leave requests of the engine to others', () => {
  const sides = new Sides();
  const few = Array.from({ length: 100 }, () => sides.open());
  const post = (channel: Channel): void => {
    while (channel.hasRoom) {
      channel.write(0, 0, REMOTE, 0, 8);
      sides.take();
    }
  };
  few.forEach(post);
  const many = Array.from({ length: MAX_CHANNELS - few.length }, () => sides.open());
  for (const channel of many) {
    post(channel);
    assert.ok(channel.posted > 0);
  }
  // An engine has 65,536 for everything, and prepared transfers take half of them.
  assert.ok(sides.pool.underWay < 36_000, String(sides.pool.underWay));
});

test('numbers that a command cannot hold are refused, and so are more channels than there is memory for', () => {
  const sides = new Sides();
  const channel = sides.open();
  for (const wrong of [-1, 0.5, 2 ** 53, Number.NaN, undefined as unknown as number]) {
    assert.throws(() => channel.write(0, wrong, REMOTE, 0, 8), { code: 'WL_INVALID_ARGUMENT' });
    assert.throws(() => channel.write(0, 0, REMOTE, wrong, 8), { code: 'WL_INVALID_ARGUMENT' });
    assert.throws(() => channel.write(0, 0, REMOTE, 0, wrong), { code: 'WL_INVALID_ARGUMENT' });
    assert.throws(() => channel.add(REMOTE, 0, wrong), { code: 'WL_INVALID_ARGUMENT' });
  }
  assert.equal(channel.posted, 0);
  const opened = Array.from({ length: MAX_CHANNELS - 1 }, () => sides.open());
  assert.throws(() => sides.open(), { code: 'WL_CAPACITY' });
  opened[5]!.end(undefined);
  sides.open();
});
