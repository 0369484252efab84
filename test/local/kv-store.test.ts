// Stores and readers of KV blocks between two agents: hits, each reason of a miss, leases, eviction, metrics.
import assert from 'node:assert/strict';
import test from 'node:test';
import { Agent, DescriptorList, type Registration } from 'weftline/agent';
import { WeftlineError } from 'weftline';
import { type KvPart, KvReader, type KvResult, KvStore, type KvTicket } from 'weftline/kv';
import { readMetrics } from 'weftline/metrics';
import { seededRandom } from '#lib/core/seeded-random.js';
import { MAX_SELECTED } from '#lib/agent/transfer-plan.js';
import { readTable } from '#lib/kv/kv-table.js';
import { testSeed } from '../support/seed.ts';
import { until } from '../support/until.ts';
import { withCode } from '../support/with-code.ts';
import {
  BLOCK_BYTES,
  isContent,
  type KvPath,
  type KvSide,
  openSide,
  viewsOf,
  writeContent,
} from './support/kv-content.ts';

const random = seededRandom(testSeed());
const BLOCKS = 8;

interface Pair extends AsyncDisposable {
  readonly here: KvSide;
  readonly there: KvSide;
  readonly store: KvStore;
  readonly reader: KvReader;
  /** Has the store seal a block for each key. */
  readonly put: (...keys: string[]) => Promise<void>;
  readonly load: () => Promise<string>;
}

async function openPair(path: KvPath = 'local', leases?: number): Promise<Pair> {
  const there = await openSide('there', path, { order: 'kv-first', blocks: BLOCKS });
  const here = await openSide('here', path, { order: 'blocks-first', blocks: BLOCKS });
  const { parts } = there;
  const store = await KvStore.create(there.agent, {
    name: 'cache',
    blocks: BLOCKS,
    parts,
    ...(leases === undefined ? {} : { leases }),
  });
  const reader = await KvReader.create(here.agent, { blocks: BLOCKS, parts: here.parts });
  const load = (): Promise<string> => here.agent.loadRemoteMetadata(there.agent.localMetadata());
  await load();
  return {
    here,
    there,
    store,
    reader,
    load,
    put: async (...keys) => {
      const blocks = store.reserve(keys);
      for (const [index, block] of blocks.entries()) writeContent(there, block, keys[index]!);
      await store.seal(keys);
    },
    [Symbol.asyncDispose]: async () => {
      await here.agent.close();
      await there.agent.close();
    },
  };
}

/** What became of each key: "hit", or the reason. Hits must be what their keys say. */
function outcomes(side: KvSide, results: readonly KvResult[]): string[] {
  return results.map((result) => {
    if (!result.isHit) return result.reason;
    assert.ok(isContent(side, result.block, result.key), `${result.key} is wrong`);
    return 'hit';
  });
}

for (const path of ['local', 'multipath', 'staged'] as const) {
  test(`${path}: blocks come whole, from one layout into another`, async () => {
    await using pair = await openPair(path);
    const { store, reader, here } = pair;
    await pair.put('a', 'b', 'c');
    const ticket = JSON.parse(JSON.stringify(store.ticket(['c', 'x', 'a']))) as KvTicket;
    const lease = reader.open(ticket);
    assert.deepEqual(outcomes(here, await lease.read([5, 6, 0])), ['hit', 'not-found', 'hit']);
    assert.deepEqual(outcomes(here, await lease.read([0, 1, 2])), ['hit', 'not-found', 'hit']);
    assert.equal(await lease.renew(), true);
    assert.equal(await lease.release(), true);
    assert.equal(lease.leftMs, 0);
    assert.deepEqual(outcomes(here, await lease.read([0, 1, 2])), ['lease-expired', 'not-found', 'lease-expired']);
    assert.equal(await lease.renew(), false);
    assert.equal(store.evict(['a', 'c']).length, 2);
  });

  test(`${path}: what is wrong with a block is a miss with its reason`, async () => {
    await using pair = await openPair(path);
    const { store, reader, here, there } = pair;
    await pair.put('a', 'b', 'c', 'd');
    const ticket = store.ticket(['a', 'b', 'c', 'd']);
    const places = [0, 1, 2, 3];
    const lease = reader.open(ticket);
    // A byte of the memory changes behind the seal.
    const views = viewsOf(there, ticket.blocks[1]!);
    const view = views[Math.floor(random() * views.length)]!;
    view[Math.floor(random() * view.length)]! ^= 1 << Math.floor(random() * 8);
    assert.deepEqual(outcomes(here, await lease.read(places)), ['hit', 'corrupt', 'hit', 'hit']);
    // The store takes the block for another key, behind the end of the lease.
    assert.throws(() => store.reserve(['e'], [ticket.blocks[2]!]), { code: 'WL_BUSY', message: /held by 1 lease/ });
    assert.equal(store.release(ticket), true);
    assert.equal(store.release(ticket), false);
    store.reserve(['e'], [ticket.blocks[2]!]);
    assert.deepEqual(outcomes(here, await lease.read(places)), [
      'lease-expired',
      'lease-expired',
      'stale',
      'lease-expired',
    ]);
    writeContent(there, ticket.blocks[2]!, 'e');
    await store.seal(['e']);
    // The same bytes under the same key, in another life of the block.
    assert.deepEqual(store.evict(['a']), ['a']);
    store.reserve(['a'], [ticket.blocks[0]!]);
    await store.seal(['a']);
    assert.deepEqual(outcomes(here, await lease.read(places)), ['stale', 'lease-expired', 'stale', 'lease-expired']);
    const renewed = reader.open(store.ticket(['a', 'e']));
    assert.deepEqual(outcomes(here, await renewed.read([7, 4])), ['hit', 'hit']);
    await store.close();
    const [first, second] = await renewed.read([7, 4]);
    for (const result of [first, second])
      assert.match(`${!result?.isHit && result?.reason}`, /^(?:restarted|peer-lost)$/);
  });

  test(`${path}: a store that was closed, a peer that restarts and one that is gone are misses`, async () => {
    await using pair = await openPair(path);
    const { store, reader, here, there } = pair;
    await pair.put('a');
    const old = store.ticket(['a']);
    assert.deepEqual(outcomes(here, await reader.open(old).read([0])), ['hit']);
    await store.close();
    for (const call of [() => store.ticket(['a']), () => store.keys, () => store.has('a')])
      assert.throws(call, { code: 'WL_CLOSED' });
    const [closed] = await reader.open(old).read([0]);
    assert.ok(closed?.isHit === false && closed.reason === 'restarted');
    assert.match(closed.error?.message ?? '', /KV store "cache".* was closed: ask another store/);
    await using again = await KvStore.create(there.agent, { name: 'cache', blocks: BLOCKS, parts: there.parts });
    await pair.load();
    again.reserve(['a'], [old.blocks[0]!]);
    await again.seal(['a']);
    assert.deepEqual(outcomes(here, await reader.open(old).read([0])), ['restarted']);
    assert.deepEqual(outcomes(here, await reader.open(again.ticket(['a'])).read([0])), ['hit']);
    const last = again.ticket(['a']);
    await there.agent.close();
    assert.deepEqual(outcomes(here, await reader.open(last).read([0], { timeoutMs: 20_000 })), ['peer-lost']);

    const successor = await openSide('there', path, { order: 'kv-first', blocks: BLOCKS });
    try {
      await using next = await KvStore.create(successor.agent, {
        name: 'cache',
        blocks: BLOCKS,
        parts: successor.parts,
      });
      await here.agent.loadRemoteMetadata(successor.agent.localMetadata());
      const [block] = next.reserve(['a']);
      writeContent(successor, block!, 'a');
      await next.seal(['a']);
      assert.deepEqual(outcomes(here, await reader.open(last).read([0])), ['restarted']);
      assert.deepEqual(outcomes(here, await reader.open(next.ticket(['a'])).read([0])), ['hit']);
    } finally {
      await successor.agent.close();
    }
    await here.agent.forget('there');
    const [result] = await reader.open(last).read([0]);
    assert.ok(result?.isHit === false && result.reason === 'peer-lost' && result.error?.code === 'WL_PEER_LOST');
  });
}

test('blocks that nobody holds make room, the one that was asked for longest ago first', async () => {
  await using pair = await openPair();
  const { store } = pair;
  const keys = Array.from({ length: BLOCKS }, (_, index) => `k${index}`);
  await pair.put(...keys);
  assert.deepEqual(store.keys, keys);
  const held = store.ticket(['k0', 'k1'], { leaseMs: 1_000_000 });
  store.release(store.ticket(['k2']));
  assert.equal(store.reserve(['n0'])[0], BLOCKS - 5);
  assert.deepEqual(store.keys, ['k4', 'k5', 'k6', 'k7', 'k0', 'k1', 'k2']);
  assert.throws(() => store.reserve(['m0', 'm1', 'm2', 'm3', 'm4', 'm5']), {
    code: 'WL_BUSY',
    message: /6 blocks are wanted, and 5 of 8/,
  });
  assert.deepEqual(store.keys, ['k4', 'k5', 'k6', 'k7', 'k0', 'k1', 'k2']);
  assert.deepEqual(store.evict(['k0', 'k4', 'n0', 'none']), ['k4', 'n0']);
  assert.equal(store.release(held), true);
  assert.equal(store.reserve(['m0', 'm1', 'm2', 'm3', 'm4', 'm5', 'm6', 'm7']).length, BLOCKS);
  assert.deepEqual(store.keys, []);
  assert.throws(() => store.reserve(['m9'], [3]), { code: 'WL_BUSY', message: /is reserved/ });
});

test('a lease ends by itself, and is renewed by its reader alone', async () => {
  await using pair = await openPair('local', 2);
  const { store, reader, here } = pair;
  await pair.put('a', 'b');
  const short = store.ticket(['a'], { leaseMs: 1 });
  await until(() => store.evict(['a']).length === 1);
  assert.deepEqual(outcomes(here, await reader.open({ ...short, lease: { ...short.lease!, ms: 60_000 } }).read([0])), [
    'stale',
  ]);

  const lease = reader.open(store.ticket(['b'], { leaseMs: 60_000 }));
  assert.equal(await lease.renew(), true);
  assert.deepEqual(store.evict(['b']), []);
  const other = store.ticket(['b']);
  assert.throws(() => store.ticket(['b']), { code: 'WL_BUSY', message: /all 2 leases are taken/ });
  assert.equal(store.ticket(['none']).lease, null);
  assert.equal(await lease.release(), true);
  assert.deepEqual(store.evict(['b']), []);
  // A mark of the old lease in the slot says nothing of the new one.
  const next = store.ticket(['b']);
  assert.equal(next.lease?.slot, lease.ticket.lease?.slot);
  assert.deepEqual(store.evict(['b']), []);
  assert.equal(store.release(next), true);
  // A renewal that comes too late keeps nothing.
  assert.equal(await reader.open({ ...next, lease: { ...next.lease!, ms: 60_000 } }).renew(), true);
  assert.equal(store.release(other), true);
  assert.deepEqual(store.evict(['b']), ['b']);
});

/** The mark that lies in the store's table for the lease of a ticket. */
async function markOf({ here }: Pair, { agent: peer, table, lease }: KvTicket): Promise<number> {
  const remote = here.agent.remoteMemory(peer).find(({ number }) => number === table)!;
  await using copy = await here.agent.allocate(remote.length);
  const lists = { local: DescriptorList.of(copy), remote: DescriptorList.of(remote) };
  await using transfer = await here.agent.prepare({ operation: 'read', peer, ...lists });
  transfer.post();
  await transfer.wait();
  const { buffer, byteOffset } = copy.bytes;
  return new Uint32Array(buffer, byteOffset + readTable(copy.bytes).places.mark(lease!.slot), 2)[1]!;
}

/** What a transfer does whose device does not answer. */
const late = (): Promise<never> => Promise.reject(new WeftlineError('WL_TIMEOUT', 'the copy did not finish'));

test('a renewal whose answer was lost is followed by another mark', async () => {
  await using pair = await openPair();
  const { store, reader, here } = pair;
  await pair.put('a');
  const ticket = store.ticket(['a'], { leaseMs: 1_000_000 });
  const lease = reader.open(ticket);
  const prepare = here.agent.prepare.bind(here.agent);
  here.agent.prepare = async (options) => {
    const transfer = await prepare(options);
    if (options.operation === 'write') {
      here.agent.prepare = prepare;
      transfer.wait = late;
    }
    return transfer;
  };
  assert.equal(await lease.renew(), false);
  const first = await markOf(pair, ticket);
  assert.equal(await lease.renew(), true);
  assert.notEqual(await markOf(pair, ticket), first);
});

test('blocks that a device may still write to are read to no more', async () => {
  await using pair = await openPair();
  const { store, reader, here } = pair;
  await pair.put('a', 'b');
  const lease = reader.open(store.ticket(['a', 'b']));
  const prepare = here.agent.prepare.bind(here.agent);
  here.agent.prepare = async (options) => {
    const transfer = await prepare(options);
    // The first transfer is that of the table.
    if (options.local.length > 1) Object.assign(transfer, { wait: late, close: late });
    return transfer;
  };
  const [result] = await lease.read([0, 1]);
  assert.ok(result?.isHit === false && result.reason === 'timeout');
  assert.match(result.error?.message ?? '', /the copy did not finish/);
  here.agent.prepare = prepare;
  for (const blocks of [
    [0, 2],
    [2, 1],
  ])
    await assert.rejects(lease.read(blocks), { code: 'WL_INVALID_ARGUMENT', message: /no GPU may still write to/ });
  assert.deepEqual(outcomes(here, await lease.read([2, 3])), ['hit', 'hit']);
});

for (const path of ['local', 'multipath'] as const) {
  test(`${path}: nothing is written to the blocks of a reader that was closed`, async () => {
    await using there = await Agent.create('there', { backends: [path], token: 'secret' });
    await using here = await Agent.create('here', { backends: [path], token: 'secret' });
    const [blocks, bytes] = [32, 1 << 20];
    const [source, target] = [await there.allocate(blocks * bytes), await here.allocate(blocks * bytes)];
    const store = await KvStore.create(there, { name: 'cache', blocks, parts: [{ memory: source, bytes }] });
    const reader = await KvReader.create(here, { blocks, parts: [{ memory: target, bytes }] });
    await here.loadRemoteMetadata(there.localMetadata());
    const keys = Array.from({ length: blocks }, (_, index) => `k${index}`);
    store.reserve(keys);
    source.bytes.fill(1);
    await store.seal(keys);
    const reading = reader.open(store.ticket(keys)).read([...keys.keys()]);
    const isClosed = withCode('WL_CLOSED', /KV reader of agent here was closed/);
    // It may have ended by then.
    const ended = reading.catch((error: unknown) => assert.ok(isClosed(error)));
    // The table was read, and the blocks are on their way.
    await until(() => target.bytes[0] === 1);
    await reader.close();
    target.bytes.fill(2);
    await ended;
    // What was under way is not any more: this comes behind it.
    await using transfer = await here.prepare({
      operation: 'read',
      peer: 'there',
      local: DescriptorList.of(target, 0, 8),
      remote: DescriptorList.of(here.remoteMemory('there')[0]!, 0, 8),
    });
    transfer.post();
    await transfer.wait();
    assert.equal(
      target.bytes.subarray(8).findIndex((byte) => byte !== 2),
      -1,
    );
  });
}

for (const path of ['local', 'multipath'] as const) {
  test(`${path}: the first calls to a store may come at once`, async () => {
    await using pair = await openPair(path);
    const { store, reader, here } = pair;
    await pair.put('a', 'b', 'c');
    const leases = ['a', 'b', 'c'].map((key) => reader.open(store.ticket([key])));
    const reads = leases.map((lease, place) => lease.read([place]));
    const renewals = leases.map((lease) => lease.renew());
    assert.deepEqual(outcomes(here, (await Promise.all(reads)).flat()), ['hit', 'hit', 'hit']);
    assert.deepEqual(await Promise.all(renewals), [true, true, true]);
  });
}

test('a ticket may be of more ranges than one selection names', async () => {
  await using there = await Agent.create('there', { backends: ['local'], token: 'secret' });
  await using here = await Agent.create('here', { backends: ['local'], token: 'secret' });
  const [count, blocks, bytes] = [128, 8300, 4];
  assert.ok(count * blocks > MAX_SELECTED);
  const parts = (memory: Registration): KvPart[] =>
    Array.from({ length: count }, (_, part) => ({ memory, bytes, offset: part * blocks * bytes }));
  const [source, target] = [await there.allocate(count * blocks * bytes), await here.allocate(count * blocks * bytes)];
  const store = await KvStore.create(there, { name: 'cache', blocks, parts: parts(source) });
  const reader = await KvReader.create(here, { blocks, parts: parts(target) });
  await here.loadRemoteMetadata(there.localMetadata());
  const keys = Array.from({ length: blocks }, (_, index) => `k${index}`);
  store.reserve(keys);
  for (let at = 0; at < source.bytes.length; at++) source.bytes[at] = at * 7;
  await store.seal(keys);
  const results = await reader.open(store.ticket(keys)).read([...keys.keys()]);
  assert.equal(results.filter(({ isHit }) => isHit).length, blocks);
  assert.ok(Buffer.from(target.bytes).equals(source.bytes));
});

test('a lease on blocks of other parts is given back as soon as that shows', async () => {
  await using pair = await openPair();
  const { store, here } = pair;
  await pair.put('a');
  // The same layers, the first of which is the last.
  const parts = [...here.parts.slice(2, -1), ...here.parts.slice(0, 2), ...here.parts.slice(-1)];
  await using reader = await KvReader.create(here.agent, { blocks: BLOCKS, parts });
  const lease = reader.open(store.ticket(['a'], { leaseMs: 1_000_000 }));
  assert.deepEqual(store.evict(['a']), []);
  const [result] = await lease.read([0]);
  assert.ok(result?.isHit === false && result.reason === 'failed');
  assert.match(result.error?.message ?? '', /^A block of KV store "cache" has a part 0 of another name/);
  assert.equal(lease.leftMs, 0);
  assert.deepEqual(store.evict(['a']), ['a']);
  await pair.put('b');
  assert.equal(await reader.open(store.ticket(['b'])).release(), true);
});

test('a release stays behind a renewal that is under way', async () => {
  await using pair = await openPair();
  const { store, reader } = pair;
  await pair.put('a');
  for (let round = 0; round < 10; round++) {
    const lease = reader.open(store.ticket(['a'], { leaseMs: 1_000_000 }));
    assert.deepEqual(await Promise.all([lease.renew(), lease.release(), lease.renew()]), [true, true, false]);
    assert.equal(lease.leftMs, 0);
  }
  assert.deepEqual(store.evict(['a']), ['a']);
});

test('a ticket reaches the table of its store alone, and nothing that it makes up stays', async () => {
  await using pair = await openPair();
  const { store, reader, there } = pair;
  await pair.put('a');
  const ticket = store.ticket(['a']);
  const errorOf = async (changed: Partial<KvTicket>): Promise<string> => {
    const [result] = await reader.open({ ...ticket, ...changed }).read([0]);
    assert.ok(result?.isHit === false);
    return `${result.error?.code} ${result.error?.message}`;
  };
  assert.match(await errorOf({ store: 'other\u001B[2J' }), /^WL_PROTOCOL .*"other\\u001b\[2J", has no table/);
  assert.match(await errorOf({ table: there.registrations[0]!.number }), /^WL_PROTOCOL .* has no table/);
  assert.match(await errorOf({ table: 999 }), /^WL_STALE .* made before the store, or after it was closed/);
  for (const incarnation of ['\u001B[2J', '', ticket.incarnation.toUpperCase() + 'x'])
    assert.throws(() => reader.open({ ...ticket, incarnation }), {
      code: 'WL_INVALID_ARGUMENT',
      message: /incarnation: /,
    });
  const { metrics } = await readMetrics();
  const series = metrics.find(({ name }) => name === 'weftline_kv_reads_total')!.series;
  assert.deepEqual([...new Set(series.map(({ labels }) => labels['store']))], ['']);
});

test('errors of arguments name them', async () => {
  await using pair = await openPair();
  const { store, reader } = pair;
  await pair.put('a');
  for (const leaseMs of [-1, 0, Number.NaN, 2 ** 31, '5' as never])
    assert.throws(() => store.ticket(['a'], { leaseMs }), { code: 'WL_INVALID_ARGUMENT', message: /^Invalid leaseMs/ });
  assert.throws(() => store.reserve(['']), { message: /^Invalid key: expected a text that is not empty/ });
  assert.throws(() => store.reserve(['k', 'k']), { message: /each key once, got "k"/ });
  assert.throws(() => store.reserve(['a']), { message: /evict it first, got "a"/ });
  store.reserve(['b'], [7]);
  assert.throws(() => store.reserve(['c'], [7]), { code: 'WL_BUSY', message: /is reserved: seal or evict it first/ });
  const ticket = store.ticket(['a']);
  assert.throws(() => reader.open(JSON.stringify(ticket) as never), { message: /JSON\.parse it first/ });
  assert.throws(() => reader.open({ ...ticket, blocks: [0.5] }), { message: /got blocks: not a list/ });
  assert.throws(() => reader.open(undefined as never), { message: /got Invalid input: expected object/ });
  // One problem is enough.
  const many = Array.from({ length: 200_000 }, () => 'x');
  assert.throws(() => reader.open({ ...ticket, blocks: many as never, generations: many as never }), {
    message: /blocks/,
  });
  await assert.rejects(reader.open(ticket).read([BLOCKS]), { message: /expected 0 to 7, got 8/ });
  for (const made of [KvStore, KvReader] as unknown as (new (...args: unknown[]) => unknown)[])
    assert.throws(() => new made(pair.here.agent, {}), {
      code: 'WL_INVALID_ARGUMENT',
      message: /\.create\(\), not by new/,
    });
});

test('what is evicted while it is being sealed stays so', async () => {
  await using pair = await openPair();
  const { store, there } = pair;
  const [block] = store.reserve(['a', 'b']);
  writeContent(there, block!, 'a');
  const sealing = store.seal(['a', 'b']);
  store.evict(['a']);
  store.reserve(['a'], [block!]);
  await sealing;
  assert.deepEqual(store.keys, ['b']);
  assert.equal(store.ticket(['a']).blocks[0], -1);
  await store.seal(['a']);
  assert.deepEqual(store.keys, ['b', 'a']);
});

test('tickets that were changed on their way give no wrong block', async () => {
  await using pair = await openPair();
  const { store, reader, here } = pair;
  await pair.put('a', 'b', 'c', 'd');
  const ticket = store.ticket(['a', 'b', 'c', 'd'], { leaseMs: 1_000_000 });
  const places = [4, 5, 6, 7];
  let misses = 0;
  for (let round = 0; round < 200; round++) {
    const changed = structuredClone(ticket) as { -readonly [Name in keyof KvTicket]: KvTicket[Name] };
    const column = (['keys', 'blocks', 'generations', 'checksums'] as const)[Math.floor(random() * 4)]!;
    const values = [...changed[column]] as (string | number)[];
    const at = Math.floor(random() * 4);
    const other = Math.floor(random() * 4);
    if (random() < 0.5) [values[at], values[other]] = [values[other]!, values[at]!];
    else if (column !== 'keys') values[at] = Math.max(0, Number(values[at]) + Math.floor(random() * 5) - 2);
    Object.assign(changed, { [column]: values });
    // outcomes() compares each hit with its key.
    misses += outcomes(here, await reader.open(changed).read(places)).filter((one) => one !== 'hit').length;
  }
  assert.ok(misses > 100, `${misses}`);
});

test('what is no ticket, no key and no block is refused before anything moves', async () => {
  await using pair = await openPair();
  const { store, reader, there } = pair;
  await pair.put('a', 'b');
  const ticket = store.ticket(['a', 'b']);
  const invalid = { code: 'WL_INVALID_ARGUMENT' };
  for (const wrong of [undefined, null, 'ticket', {}, { ...ticket, blocks: [1] }, { ...ticket, agent: 7 }]) {
    assert.throws(() => reader.open(wrong as never), invalid);
    assert.throws(() => store.release(wrong as never), invalid);
  }
  const lease = reader.open(ticket);
  for (const wrong of [undefined, [0], [0, 0], [0, BLOCKS], [0, -1], [0, 0.5], ['0', 1]]) {
    await assert.rejects(lease.read(wrong as never), invalid);
  }
  const reading = lease.read([0, 1]);
  await assert.rejects(lease.read([1, 2]), { ...invalid, message: /nothing is read to/ });
  await reading;
  await assert.rejects(lease.read([0, 1], { timeoutMs: -1 }), invalid);
  const aborted = AbortSignal.abort(new Error('enough'));
  await assert.rejects(lease.read([0, 1], { signal: aborted }), { message: 'enough' });
  for (const wrong of [undefined, 'a', [1], [undefined], Array(1)])
    assert.throws(() => store.reserve(wrong as never), invalid);
  for (const [keys, blocks] of [
    [['a']],
    [['n', 'n']],
    [['n'], [BLOCKS]],
    [
      ['n', 'm'],
      [1, 1],
    ],
    [['n'], [1, 2]],
  ] as const) {
    assert.throws(() => store.reserve(keys, blocks), invalid);
  }
  await assert.rejects(store.seal(['a']), invalid);
  await assert.rejects(store.seal(['none']), invalid);
  assert.throws(() => store.ticket(['a'], { ms: 1 } as never), invalid);
  for (const options of [{ name: '' }, { leases: 0 }, { block: 1 }, { parts: Array<KvPart>(1) }]) {
    const all = { name: 'x', blocks: BLOCKS, parts: there.parts, ...options };
    await assert.rejects(KvStore.create(there.agent, all), invalid);
  }
  await assert.rejects(KvStore.create({} as never, { name: 'x', blocks: 1, parts: there.parts }), invalid);
});

test('arrays of the caller are read during the call alone', async () => {
  await using pair = await openPair();
  const { there, here } = pair;
  const [theirs, ours] = [[...there.parts], [...here.parts]];
  const store = await KvStore.create(there.agent, { name: 'own arrays', blocks: BLOCKS, parts: theirs });
  const reader = await KvReader.create(here.agent, { blocks: BLOCKS, parts: ours });
  // As a program does that fills one array for one store after the other.
  theirs.length = 0;
  ours.length = 0;
  const keys = ['a', 'b'];
  for (const [at, block] of store.reserve(keys).entries()) writeContent(there, block, keys[at]!);
  await store.seal(keys);
  await pair.load();
  const lease = reader.open(store.ticket(keys));
  const places = [4, 5];
  const reading = lease.read(places);
  places.fill(7);
  const results = await reading;
  assert.deepEqual(outcomes(here, results), ['hit', 'hit']);
  assert.deepEqual(
    results.map((result) => result.isHit && result.block),
    [4, 5],
  );
  assert.deepEqual(outcomes(here, await lease.read([5, 4])), ['hit', 'hit']);
});

test('parts of other sizes are told', async () => {
  await using pair = await openPair();
  const { store, here } = pair;
  await pair.put('a');
  await using reader = await KvReader.create(here.agent, { blocks: BLOCKS, parts: here.parts.slice(1) });
  const [result] = await reader.open(store.ticket(['a'])).read([0]);
  assert.ok(result?.isHit === false && result.reason === 'failed');
  assert.ok(result.error?.code === 'WL_CONFIG_MISMATCH');
  assert.match(result.error.message, /has 13 parts, one of this reader 12: give both sides parts of the same sizes/);
});

test('blocks, leases, reads and bytes of a store are metrics', async () => {
  await using pair = await openPair();
  const { store, reader } = pair;
  await pair.put('a', 'b');
  store.reserve(['c']);
  const lease = reader.open(store.ticket(['a', 'b', 'x']));
  await lease.read([0, 1, 2]);
  const { metrics } = await readMetrics();
  const seriesOf = (name: string) =>
    metrics.find((metric) => metric.name === name)?.series.filter(({ labels }) => labels['store'] === 'cache');
  assert.deepEqual(seriesOf('weftline_kv_blocks'), [
    { labels: { store: 'cache', state: 'free' }, value: 5 },
    { labels: { store: 'cache', state: 'reserved' }, value: 1 },
    { labels: { store: 'cache', state: 'sealed' }, value: 2 },
  ]);
  assert.deepEqual(seriesOf('weftline_kv_leases'), [{ labels: { store: 'cache' }, value: 1 }]);
  // Stores of one name are counted together, as their reads are.
  await using namesake = await KvStore.create(pair.here.agent, { name: 'cache', blocks: 2, parts: pair.here.parts });
  namesake.reserve(['d']);
  const { metrics: both } = await readMetrics();
  assert.deepEqual(
    both.find(({ name }) => name === 'weftline_kv_blocks')?.series.map(({ value }) => value),
    [6, 2, 2],
  );
  await namesake.close();
  assert.deepEqual(seriesOf('weftline_kv_reads_total'), [
    { labels: { store: 'cache', result: 'hit' }, value: 2 },
    { labels: { store: 'cache', result: 'not-found' }, value: 1 },
  ]);
  assert.deepEqual(seriesOf('weftline_kv_bytes_total'), [{ labels: { store: 'cache' }, value: 2 * BLOCK_BYTES }]);
  await store.close();
  await reader.close();
  assert.throws(() => reader.open(lease.ticket), { code: 'WL_CLOSED' });
  await assert.rejects(lease.read([0, 1, 2]), { code: 'WL_CLOSED' });
  const after = await readMetrics();
  assert.deepEqual(
    after.metrics.filter(({ name }) => name.startsWith('weftline_kv')),
    [],
  );
});
