// Rows that wait for channels of every backend: data, order before signals, ends.
import assert from 'node:assert/strict';
import test from 'node:test';
import { PartTable } from '#lib/transport/part-table.js';
import { OutQueue } from '#lib/group/network/out-queue.js';
import type { BackendChannel, BackendRegion, BackendRemoteRegion, SharedParts } from '#lib/agent/backend.js';
import { seededRandom } from '#lib/core/seeded-random.js';
import { Agent, type Registration } from 'weftline/agent';
import {
  type AgentConfiguration,
  lanesConfigurations,
  plainConfigurations,
  stagedConfigurations,
} from './support/agent-configurations.ts';
import { openPair } from './support/agent-pair.ts';
import { whyMissing } from './support/missing-backend.ts';
import { isWhole } from '../support/extent.ts';
import { testSeed } from '../support/seed.ts';

const MiB = 1 << 20;
/** Bytes of data at the receiver, behind the cell. */
const BYTES = 6 * MiB;
const CELL_BYTES = 64;
const MAX_PARTS = 5000;
/** On two channels in turn; the first of each has the most parts. */
const ROUNDS = isWhole ? 8 : 2;

const small = { settings: { transportSegmentBytes: 1472 } };
/** What the gate has: each backend, one of several lanes, and staged memory. */
function isUnlike(configuration: AgentConfiguration): boolean {
  const few = [...plainConfigurations, ...lanesConfigurations.slice(0, 1), ...stagedConfigurations.slice(0, 1)];
  return few.includes(configuration);
}

const configurations: readonly AgentConfiguration[] = [
  ...plainConfigurations,
  { name: 'multipath with packets of 1472 bytes', backend: 'multipath', here: small, there: small },
  ...lanesConfigurations,
  ...stagedConfigurations.slice(0, 1),
];

/** Parts of random sizes at random places of both sides, none over another there. Returns how many bytes they move. */
function fillTable(table: PartTable, count: number, random: () => number): number {
  const most = [1, 200, 5000, 20_000, 100_000][Math.floor(random() * 5)]!;
  const sizes = Array.from({ length: count }, () => 1 + Math.floor(random() * most));
  const total = sizes.reduce((sum, size) => sum + size, 0);
  const scale = Math.min(1, BYTES / total);
  const gap = Math.max(0, Math.floor((BYTES - total * scale) / count / 2));
  const order = sizes.map((_, index) => index).toSorted(() => random() - 0.5);
  let at = CELL_BYTES;
  let moved = 0;
  for (const index of order) {
    const bytes = Math.max(1, Math.floor(sizes[index]! * scale) - 1);
    at += Math.floor(random() * (gap + 1));
    table.remoteOffset[index] = at;
    table.localOffset[index] = Math.floor(random() * (BYTES - bytes));
    table.bytes[index] = bytes;
    at += bytes;
    moved += bytes;
  }
  assert.ok(at <= CELL_BYTES + BYTES + count);
  return moved;
}

/** Waits for what a channel has posted. */
function deliveryOf(channel: BackendChannel): { readonly isSettled: boolean; describe(): string } {
  return {
    get isSettled() {
      if (channel.error !== undefined) throw channel.error;
      return channel.delivered === channel.posted;
    },
    describe: () => `${channel.posted - channel.delivered} operations were not delivered`,
  };
}

async function openQueue(
  channel: BackendChannel,
  local: BackendRegion,
  remote: BackendRemoteRegion,
): Promise<OutQueue> {
  const rows = PartTable.ofCount(MAX_PARTS);
  const queue = new OutQueue({ channel, local, remotes: [remote], rows, rowWindow: 0 });
  await queue.use(local, [remote]);
  return queue;
}

/** Parts of the table from number `first` to before `end`. */
function putRows(queue: OutQueue, table: PartTable, first: number, end: number): void {
  for (let at = first; at < end; at++) queue.putRow(table.localOffset[at]!, table.remoteOffset[at]!, table.bytes[at]!);
}

/** Posts all that waits for room. */
async function advance(agent: Agent, queue: OutQueue): Promise<void> {
  while (!queue.isPosted) {
    queue.advance();
    agent.poll();
    await new Promise((resolve) => setImmediate(resolve));
  }
}

interface Sides extends AsyncDisposable {
  readonly here: Agent;
  readonly there: Agent;
  readonly out: Registration;
  readonly into: Registration;
}

async function openSides({ backend, here, there }: AgentConfiguration): Promise<Sides> {
  const settingsOf = (own: AgentConfiguration['here']) => ({
    ...own,
    token: 'secret',
    backends: [backend],
    settings: { timeoutMs: 120_000, ...own.settings },
  });
  const near = await Agent.create('here', settingsOf(here));
  const far = await Agent.create('there', settingsOf(there));
  const out = await near.allocate(BYTES);
  const into = await far.allocate(CELL_BYTES + BYTES + MAX_PARTS);
  await near.loadRemoteMetadata(far.localMetadata());
  await far.loadRemoteMetadata(near.localMetadata());
  return {
    here: near,
    there: far,
    out,
    into,
    [Symbol.asyncDispose]: async () => {
      await near.close();
      await far.close();
    },
  };
}

for (const configuration of isWhole ? configurations : configurations.filter(isUnlike)) {
  const { name, backend } = configuration;
  const skip = (await whyMissing(backend)) ?? false;

  test(`${name}: parts of any sizes arrive whole before the signal behind them`, { skip }, async () => {
    const random = seededRandom(testSeed());
    await using sides = await openSides(configuration);
    const { here, there, out, into } = sides;
    for (let at = 0; at < BYTES; at++) out.bytes[at] = Math.floor(random() * 256);
    const { link, local, remote } = await here.channelParts('there', out, into.number);
    const cell = new BigUint64Array(into.bytes.buffer, into.bytes.byteOffset, 1);
    const expected = new Uint8Array(into.bytes.length);
    const table = PartTable.ofCount(MAX_PARTS);
    // Over all lanes of the link, and on one of them.
    const ways = [{}, { lane: (link.lanes ?? 1) - 1 }].map((options) => link.openChannel(options));
    const opened = ways.map(async (channel) => ({ channel, queue: await openQueue(channel, local, remote) }));
    const channels = await Promise.all(opened);
    for (let round = 1; round <= ROUNDS; round++) {
      const { channel, queue } = channels[round % 2]!;
      const count = round <= 2 ? MAX_PARTS : 1 + Math.floor(random() * 300);
      fillTable(table, count, random);
      expected.fill(round, CELL_BYTES);
      into.bytes.fill(round, CELL_BYTES);
      for (let index = 0; index < count; index++) {
        const from = table.localOffset[index]!;
        expected.set(out.bytes.subarray(from, from + table.bytes[index]!), table.remoteOffset[index]);
      }
      // In two pieces, with a put by itself between them.
      const middle = Math.floor(random() * (count + 1));
      queue.begin();
      putRows(queue, table, 0, middle);
      queue.put(5, 0, into.bytes.length - 9, 9);
      expected.set(out.bytes.subarray(5, 14), into.bytes.length - 9);
      putRows(queue, table, middle, count);
      queue.signal(0, 0);
      await advance(here, queue);
      const came = there.until({
        get isSettled() {
          here.poll();
          return Atomics.load(cell, 0) >= BigInt(round);
        },
        describe: () => 'The signal did not come',
      });
      await came;
      assert.equal(
        Buffer.compare(into.bytes.subarray(CELL_BYTES), expected.subarray(CELL_BYTES)),
        0,
        `round ${round}: ${count} parts`,
      );
      await here.until(deliveryOf(channel));
    }
    for (const { queue } of channels) await queue.close();
  });

  test(`${name}: a peer that dies ends puts of parts with an error`, { skip }, async () => {
    await using pair = await openPair(configuration, 4 * MiB);
    const { agent, peer } = pair;
    const out = await agent.allocate(4 * MiB);
    const [memory] = agent.remoteMemory('there');
    assert.ok(memory);
    const { link, local, remote } = await agent.channelParts('there', out, memory.number);
    const channel = link.openChannel();
    const table = PartTable.ofCount(256);
    for (let index = 0; index < 256; index++) {
      table.localOffset[index] = index * 14_336;
      table.remoteOffset[index] = (255 - index) * 14_336;
      table.bytes[index] = 14_336;
    }
    const queue = await openQueue(channel, local, remote);
    const once = async (): Promise<void> => {
      queue.begin();
      putRows(queue, table, 0, 256);
      await advance(agent, queue);
      await agent.until(deliveryOf(channel));
    };
    await once();
    const killed = peer.kill();
    const failed = async (): Promise<void> => {
      for (;;) await once();
    };
    await assert.rejects(failed(), { code: 'WL_PEER_LOST' });
    await killed;
    await queue.close();
  });

  test(`${name}: closing in mid-flight ends puts of parts, and the memory can be taken back`, { skip }, async () => {
    await using sides = await openSides(configuration);
    const { here, out, into } = sides;
    const { link, local, remote } = await here.channelParts('there', out, into.number);
    const table = PartTable.ofCount(400);
    fillTable(table, 400, seededRandom(7));
    for (const withAgent of [false, true]) {
      const channel = link.openChannel();
      const queue = await openQueue(channel, local, remote);
      putRows(queue, table, 0, 400);
      queue.advance();
      if (withAgent) await here.close();
      else await channel.close();
      queue.put(0, 0, 0, 8);
      assert.throws(() => queue.advance(), { code: 'WL_CLOSED' });
      assert.equal(queue.error?.code, 'WL_CLOSED');
      await queue.close();
      if (!withAgent) await (await here.allocate(100)).close();
    }
    assert.throws(() => out.bytes, { code: 'WL_CLOSED' });
  });
}

test('multipath: parts that the table does not have are refused, ranges outside of the memory end the channel', async () => {
  const [configuration] = configurations.filter(({ backend }) => backend === 'multipath');
  assert.ok(configuration);
  await using sides = await openSides(configuration);
  const { here, out, into } = sides;
  const { link, local, remote } = await here.channelParts('there', out, into.number);
  for (const [localOffset, remoteOffset, bytes] of [
    [BYTES, 0, 1],
    [0, into.bytes.length, 1],
    [0, 0, 1.5],
  ] as const) {
    const channel = link.openChannel();
    const table = PartTable.ofCount(2);
    const puts = (await channel.shareParts?.(table, local, remote)) as SharedParts;
    for (const [first, count] of [
      [-1, 1],
      [0, 3],
      [2, 1],
      [0.5, 1],
      [0, Number.NaN],
    ] as const) {
      assert.throws(() => puts.put(first, count), { code: 'WL_INVALID_ARGUMENT' });
    }
    // Puts of nothing, or none at all, are delivered like others.
    assert.equal(puts.put(2, 0), true);
    assert.equal(puts.put(0, 2), true);
    await here.until(deliveryOf(channel));
    assert.equal(channel.posted, 2);
    table.localOffset[1] = localOffset;
    table.remoteOffset[1] = remoteOffset;
    table.bytes[1] = bytes;
    puts.put(0, 2);
    await assert.rejects(here.until(deliveryOf(channel)), { code: 'WL_INVALID_ARGUMENT' });
    assert.throws(() => puts.put(0, 2), { code: 'WL_INVALID_ARGUMENT' });
    await channel.close();
  }
});
