// Ends of what is staged: all is given back, what failed may be tried again, and nothing is reached by an old number.
import assert from 'node:assert/strict';
import test from 'node:test';
import { WeftlineError } from '#lib/core/errors.js';
import type { BackendChannel, BackendLink } from '#lib/agent/backend.js';
import { Piece } from '#lib/agent/staging/lane.js';
import { DirectChannel } from '#lib/agent/staging/prepared.js';
import { endRing, plainStorage, RingMemory } from '#lib/agent/staging/ring.js';
import { StagedChannel, StagedTransfer } from '#lib/agent/staging/staged-link.js';
import { StagedRegion, StagedRemoteRegion } from '#lib/agent/staging/staged-region.js';
import { StagingBoard } from '#lib/agent/staging/staging-board.js';
import type { AgentLane, StagingThread } from '#lib/agent/staging/staging-thread.js';
import { withCode } from '../../../support/with-code.ts';

const late = new WeftlineError('WL_TIMEOUT', 'the device is late');

/** A staging thread whose calls of that name fail as often as told. */
function openThread(failing: string, failures: number) {
  const calls: string[] = [];
  const given: number[] = [];
  let left = failures;
  let next = 0;
  const thread = {
    board: new StagingBoard(),
    failure: undefined,
    call: async (name: string) => {
      calls.push(name);
      if (name === failing && left-- > 0) throw late;
      return name === 'register' ? { number: 7, key: 1 } : 0;
    },
    errorOf: () => undefined,
    take: async (make: (number: number) => Promise<unknown>) => {
      const number = next++;
      await make(number);
      return number;
    },
    giveBack: (number: number) => given.push(number),
  } as unknown as StagingThread;
  const lane = { thread, number: 1, peer: 'b', link: {}, error: undefined } as unknown as AgentLane;
  return { thread, lane, calls, given };
}

test('a staged transfer whose release came too late is released again, and takes no posts between', async () => {
  const { lane, given } = openThread('close', 1);
  const plan = {
    operation: 'write',
    locals: [],
    remotes: [],
    parts: new SharedArrayBuffer(0),
    isBySelection: false,
  } as const;
  const transfer = await StagedTransfer.prepare(lane, plan);
  await assert.rejects(transfer.release(), withCode('WL_TIMEOUT'));
  assert.throws(() => transfer.post(), withCode('WL_CLOSED'));
  assert.deepEqual(given, []);
  await Promise.all([transfer.release(), transfer.release()]);
  assert.deepEqual(given, [0]);
});

test('a region that was released is not known by its number any more, also before the release has succeeded', async () => {
  const { thread, calls } = openThread('release', 1);
  const memory = {
    kind: 'cuda',
    address: 4096,
    bytes: 64,
    view: undefined,
    device: undefined,
    shared: undefined,
  } as const;
  const parts = { memory, host: undefined, info: new Uint8Array(), thread: async () => thread, number: 3, ordinal: 0 };
  const region = new StagedRegion(parts);
  assert.deepEqual([region.number, await region.staged()], [3, 3]);
  const releasing = region.release();
  assert.equal(region.number, -1);
  await assert.rejects(region.staged(), withCode('WL_CLOSED'));
  await assert.rejects(releasing, withCode('WL_TIMEOUT'));
  await region.release();
  assert.deepEqual(calls, ['release', 'release']);
});

test('a channel closes all its ways, though the first fails', async () => {
  const { thread, lane, given } = openThread('close', 1);
  const other = Object.assign({} as AgentLane, lane);
  let isHostClosed = false;
  const host = { put: () => true, close: async () => void (isHostClosed = true), posted: 0, delivered: 0 };
  const hostLink = { openChannel: () => host as unknown as BackendChannel } as unknown as BackendLink;
  const link = {
    error: undefined,
    laneTo: async (region: unknown) => (region instanceof StagedRemoteRegion ? other : lane),
    nameOf: () => ({ number: 1, key: 1 }),
  };
  const channel = new StagedChannel(link, hostLink);
  const memory = {
    kind: 'host',
    address: 4096,
    bytes: 64,
    view: undefined,
    device: undefined,
    shared: undefined,
  } as const;
  const made = { memory, info: new Uint8Array(), thread: async () => thread };
  const staged = new StagedRegion({ ...made, host: undefined, number: 3, ordinal: 0 });
  const plain = new StagedRegion({ ...made, host: {} as never, number: 4, ordinal: undefined });
  const there = new StagedRemoteRegion(64, { number: 1, key: 1, connectionInfo: new Uint8Array() });
  const otherHost = { bytes: 64 };
  const place = { local: plain, localOffset: 0, remote: otherHost, remoteOffset: 0, bytes: 8 };
  assert.ok(channel.put(place));
  await channel.prepare(staged, otherHost);
  await channel.prepare(plain, there);
  await assert.rejects(channel.close(), withCode('WL_TIMEOUT'));
  assert.ok(isHostClosed);
  assert.deepEqual(given, [1]);
});

test('a ring that a device may still touch is kept, but its links are given back', async () => {
  const done: string[] = [];
  const note = (what: string) => async (): Promise<void> => void done.push(what);
  const parts = {
    fence: async () => Promise.reject(late),
    session: { close: note('session') },
    local: { info: new Uint8Array(), release: note('region') },
    ring: { free: () => void done.push('ring') },
    uses: [{ link: {} as BackendLink, giveBack: note('link') }],
  };
  await assert.rejects(endRing(parts), withCode('WL_TIMEOUT'));
  assert.deepEqual(done.splice(0), ['session', 'region', 'link']);
  await endRing({ ...parts, fence: async () => {} });
  assert.deepEqual(done, ['session', 'region', 'ring', 'link']);
});

test('a slot of a channel that has failed is free when nothing is sent from it any more', () => {
  const ring = new RingMemory({ slots: 4, pieceBytes: 65_536 }, plainStorage);
  const channel = {
    error: undefined as WeftlineError | undefined,
    put: () => true,
    posted: 1,
    delivered: 0,
    isQuiet: true,
  };
  const way = new DirectChannel(channel as unknown as BackendChannel, { ring, local: {} as never });
  assert.ok(way.post(0, new Piece()));
  assert.equal(way.isDrained(0), false);
  channel.error = new WeftlineError('WL_UNAUTHORIZED', 'taken back');
  channel.isQuiet = false;
  assert.equal(way.isDrained(0), false);
  channel.isQuiet = true;
  assert.equal(way.isDrained(0), true);
});
