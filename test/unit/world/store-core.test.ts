import assert from 'node:assert/strict';
import test from 'node:test';
import { WeftlineError } from 'weftline';
import { LinkedStore, type StoreLink } from '#lib/world/store.js';
import { StoreCore } from '#lib/world/store-core.js';
import { blamedRanks, encodeError } from '#lib/core/errors.js';

const bytes = (text: string) => new TextEncoder().encode(text);
const text = (value: Uint8Array | undefined) => (value === undefined ? undefined : new TextDecoder().decode(value));

/** A store with a view for each rank; all have joined except those that are listed. */
function world(size: number, absent: readonly number[] = []) {
  const core = new StoreCore({ size, maxValueBytes: 4096 });
  const stores = Array.from({ length: size }, (_, rank) => {
    if (!absent.includes(rank)) core.join(rank, { pid: 100 + rank, host: `host${rank}` });
    const request: StoreCore['request'] extends (rank: number, ...rest: infer Rest) => infer Result
      ? (...rest: Rest) => Result
      : never = (...rest) => core.request(rank, ...rest);
    return new LinkedStore({ request }, { timeoutMs: 30_000, maxValueBytes: 4096 });
  });
  return { core, stores: stores as [LinkedStore, LinkedStore, LinkedStore] };
}

/** Views of a group: by rank of the group. */
function groupOf(core: StoreCore, name: string, ranks: readonly number[]): [LinkedStore, LinkedStore] {
  const views = ranks.map((rank) => {
    const link: StoreLink = { request: (...rest) => core.request(rank, ...rest) };
    return new LinkedStore(link, { timeoutMs: 30_000, maxValueBytes: 4096, group: { name, ranks } });
  });
  return views as [LinkedStore, LinkedStore];
}

test('groups have keys, collectives and failures of their own', async () => {
  const { core, stores } = world(4);
  const [odd0, odd1] = groupOf(core, 'odd', [3, 1]);
  const [even0, even1] = groupOf(core, 'even', [0, 2]);
  await odd0.set('k', bytes('odd'));
  await even0.set('k', bytes('even'));
  assert.deepEqual([text(await odd1.get('k')), text(await even1.get('k'))], ['odd', 'even']);
  await assert.rejects(stores[0].get('k', { timeoutMs: 1 }), { code: 'WL_TIMEOUT' });
  // In the order of the group, and under one name with others at the same time.
  const gathered = await Promise.all([
    odd0.allGather('g', bytes('three')),
    even1.allGather('g', bytes('two')),
    odd1.allGather('g', bytes('one')),
    even0.allGather('g', bytes('zero')),
  ]);
  assert.deepEqual(gathered[0].map(text), ['three', 'one']);
  assert.deepEqual(gathered[1].map(text), ['zero', 'two']);
  // Rank 2 is gone: that is the business of those who share a group with it.
  const waiting = assert.rejects(even0.barrier('b'), { code: 'WL_PEER_LOST', rank: 2 });
  const key = assert.rejects(even0.get('never'), { code: 'WL_PEER_LOST', rank: 2 });
  core.leave(2, { how: 'lost' });
  await Promise.all([waiting, key]);
  await Promise.all([odd0.barrier('b'), odd1.barrier('b')]);
  await assert.rejects(odd0.get('never', { timeoutMs: 1, from: [1] }), {
    code: 'WL_TIMEOUT',
    message: /rank 1 did not come/,
  });
  await assert.rejects(odd0.get('never', { from: [2] }), {
    code: 'WL_INVALID_ARGUMENT',
    message: /ranks of the group, 0 to 1/,
  });
  await assert.rejects(stores[0].barrier('b'), { code: 'WL_PEER_LOST', rank: 2 });
});

test('a rank cannot take part in a group that it is no member of', async () => {
  const { core } = world(3);
  for (const members of [
    [1, 2],
    [0, 3],
  ]) {
    const request = core.request(0, { op: 'barrier', name: 'b', members, timeoutMs: 10 }, []);
    await assert.rejects(request, { code: 'WL_PROTOCOL' });
  }
});

test('set, get, delete and compareAndSet keep bytes and do not share them with callers', async () => {
  const { stores } = world(3);
  const [a, b] = stores;
  const value = bytes('one');
  await a.set('k', value);
  value[0] = 0;
  const read = await b.get('k');
  assert.equal(text(read), 'one');
  read[0] = 0;
  assert.equal(text(await a.get('k')), 'one');
  assert.deepEqual(await a.compareAndSet('k', bytes('two'), bytes('three')), { swapped: false, value: bytes('one') });
  assert.deepEqual(await a.compareAndSet('k', bytes('one'), bytes('two')), { swapped: true, value: bytes('two') });
  assert.deepEqual(await b.compareAndSet('k', undefined, bytes('x')), { swapped: false, value: bytes('two') });
  assert.deepEqual([await a.delete('k'), await a.delete('k')], [true, false]);
  assert.deepEqual(await b.compareAndSet('k', bytes('two'), bytes('x')), { swapped: false, value: undefined });
  assert.deepEqual(await b.compareAndSet('k', undefined, bytes('')), { swapped: true, value: bytes('') });
  assert.equal((await a.get('k')).byteLength, 0);
});

test('get() and wait() return once the last key is set, getJson() reads what setJson() wrote', async () => {
  const { stores } = world(3);
  const [a, b, c] = stores;
  const order: string[] = [];
  const both = b.wait(['x', 'y']).then(() => order.push('both'));
  const json = c.getJson('y').then((value) => order.push(JSON.stringify(value)));
  await a.set('x', bytes('1'));
  order.push('x');
  await a.setJson('y', { n: [1, null] });
  await Promise.all([both, json]);
  assert.equal(order[0], 'x');
  assert.deepEqual(order.slice(1).toSorted(), ['both', '{"n":[1,null]}']);
});

test('add() counts in decimal and refuses what is no integer', async () => {
  const { stores } = world(3);
  const [a, b] = stores;
  assert.deepEqual([await a.add('n', 5), await b.add('n', -7), await a.add('n', 0)], [5, -2, -2]);
  assert.equal(text(await a.get('n')), '-2');
  await a.set('n', bytes('12 apples'));
  await assert.rejects(a.add('n', 1), { code: 'WL_INVALID_ARGUMENT', message: /"n".*"12 apples"/ });
  await a.add('big', Number.MAX_SAFE_INTEGER);
  await assert.rejects(a.add('big', 1), { code: 'WL_INVALID_ARGUMENT' });
  await assert.rejects(a.add('n', 0.5), { code: 'WL_INVALID_ARGUMENT', message: /delta: expected .*, got 0.5/ });
});

test('collectives complete in rounds, even when a rank is a round ahead', async () => {
  const { stores } = world(3);
  const [a, b, c] = stores;
  const results = await Promise.all([
    a.allGather('g', bytes('a1')),
    a.allGather('g', bytes('a2')),
    b.allGather('g', bytes('b1')),
    c.allGather('g', bytes('c1')),
    c.allGather('g', bytes('c2')),
    b.allGather('g', bytes('b2')),
    ...stores.map((store) => store.barrier('g').then(() => [])),
  ]);
  const texts = results.map((values) => values.map(text).join());
  assert.deepEqual(texts.slice(0, 6), ['a1,b1,c1', 'a2,b2,c2', 'a1,b1,c1', 'a1,b1,c1', 'a2,b2,c2', 'a2,b2,c2']);
});

test('a timeout names who is missing and takes the arrival back', async () => {
  const { stores } = world(3, [2]);
  const [a, b, c] = stores;
  await assert.rejects(a.barrier('b', { timeoutMs: 5 }), {
    code: 'WL_TIMEOUT',
    message: 'Rank 0 gave up barrier "b" after 5 ms: rank 1 did not come; rank 2 never joined',
    details: { rank: 0, waitingFor: 'barrier "b"', timeoutMs: 5, missing: [1, 2] },
  });
  const again = Promise.all([b.barrier('b'), c.barrier('b')]);
  await assert.rejects(b.barrier('other', { timeoutMs: 5 }), { code: 'WL_TIMEOUT' });
  await a.barrier('b');
  await again;
  await assert.rejects(a.get('k', { timeoutMs: 0 }), { message: /nobody set "k": rank 2 never joined$/ });
  await assert.rejects(a.get('k', { timeoutMs: 0, from: [1] }), {
    message: /nobody set "k": rank 1 did not come$/,
    details: { rank: 0, waitingFor: 'waiting for key "k"', timeoutMs: 0, missing: [1], keys: ['k'] },
  });
});

test('an abort ends a wait with its reason and takes the arrival back', async () => {
  const { stores } = world(3);
  const [a, b, c] = stores;
  const abort = new AbortController();
  const reason = new Error('enough');
  const barrier = a.barrier('b', { signal: abort.signal });
  const other = b.barrier('b');
  const key = a.get('k', { signal: abort.signal });
  const rejections = Promise.all([assert.rejects(barrier, reason), assert.rejects(key, reason)]);
  abort.abort(reason);
  await rejections;
  await assert.rejects(a.get('k', { signal: abort.signal }), reason);
  await Promise.all([a.barrier('b'), other, c.barrier('b')]);
});

test('a lost rank fails pending and later waits that need it, and no others', async () => {
  const { core, stores } = world(3);
  const [a, b] = stores;
  const lost = { code: 'WL_PEER_LOST', message: /^Rank 2 \(process 102 on host2\) was lost/ };
  const pending = [a.barrier('b'), a.get('k'), b.get('k', { from: [2] })].map((wait) => assert.rejects(wait, lost));
  const fromA = b.get('from a', { from: [0] });
  core.leave(2, { how: 'lost' });
  await Promise.all(pending);
  await assert.rejects(a.barrier('later'), lost);
  await assert.rejects(a.wait(['k']), lost);
  await a.set('from a', bytes('1'));
  assert.equal(text(await fromA), '1');
});

test('a rank that was waiting in a collective when it was lost is missed there', async () => {
  const { core, stores } = world(3);
  const [a, b, c] = stores;
  const own = assert.rejects(c.barrier('b'), { code: 'WL_CLOSED' });
  const other = assert.rejects(a.barrier('b'), { code: 'WL_PEER_LOST', message: /^Rank 2/ });
  core.leave(2, { how: 'lost' });
  await Promise.all([own, other]);
  await assert.rejects(b.barrier('b'), { code: 'WL_PEER_LOST' });
});

test('a rank that failed passes its error on, one that closed is named', async () => {
  const { core, stores } = world(3);
  const [a] = stores;
  const key = a.get('k');
  core.leave(1, { how: 'closed' });
  await assert.rejects(a.barrier('b'), {
    code: 'WL_PEER_LOST',
    message: 'Rank 1 (process 101 on host1) closed its world; barrier "b" cannot go on',
  });
  // Rank 2 may still set the key.
  const failed = assert.rejects(key, (error: unknown) => {
    assert.ok(error instanceof WeftlineError && error.cause instanceof WeftlineError);
    assert.deepEqual([error.code, error.rank, error.cause.code], ['WL_PEER_FAILED', 2, 'WL_CHECK']);
    assert.match(error.message, /WL_CHECK: off by one/);
    return true;
  });
  core.leave(2, { how: 'failed', error: encodeError(new WeftlineError('WL_CHECK', 'off by one')) });
  await failed;
});

test('a key that only closed ranks could set fails at once', async () => {
  const { core, stores } = world(3);
  const wait = assert.rejects(stores[0].get('k'), { code: 'WL_PEER_LOST', message: /closed its world/ });
  core.leave(1, { how: 'closed' });
  core.leave(2, { how: 'closed' });
  await wait;
});

test('a rank number is given once, its holder is named', () => {
  const { core } = world(3);
  const again = () => core.join(1, { pid: 9, host: 'h' });
  assert.throws(again, { code: 'WL_RANK_TAKEN', message: /Rank 1 .* is used by process 101 on host1/ });
  core.leave(1, { how: 'closed' });
  assert.throws(again, { code: 'WL_RANK_TAKEN', message: /was used and left by process 101/ });
});

test('values and keys have limits', async () => {
  const { stores } = world(3);
  const [a] = stores;
  await a.set('k', new Uint8Array(4096));
  await assert.rejects(a.set('k', new Uint8Array(4097)), { code: 'WL_CAPACITY', message: /4097 bytes.*at most 4096/ });
  await assert.rejects(a.allGather('g', new Uint8Array(1366)), { code: 'WL_CAPACITY', message: /3 ranks together/ });
  await assert.rejects(a.set('', bytes('')), { code: 'WL_INVALID_ARGUMENT', message: /key/ });
  await assert.rejects(a.set('x'.repeat(1025), bytes('')), { code: 'WL_INVALID_ARGUMENT' });
  await assert.rejects(a.setJson('k', undefined), { code: 'WL_INVALID_ARGUMENT' });
  await assert.rejects(a.get('k', { timeoutMs: -1 }), { code: 'WL_INVALID_ARGUMENT', message: /timeoutMs/ });
});

test('a rank that left because another did not come is told as that, naming the other', async () => {
  const { core, stores } = world(3);
  const [, b, c] = stores;
  await assert.rejects(b.barrier('early', { timeoutMs: 5 }), {
    code: 'WL_TIMEOUT',
    details: { ...timedOut(1, [0, 2]) },
  });
  const waiting = c.barrier('early');
  await assert.rejects(b.barrier('early', { timeoutMs: 5 }), { details: { ...timedOut(1, [0]) } });
  core.leave(1, { how: 'closed' });
  await assert.rejects(waiting, {
    code: 'WL_PEER_FAILED',
    rank: 0,
    message:
      /^Rank 1 \(process 101 on host1\) left after it had given up barrier "early", to which rank 0 did not come; barrier "early" cannot go on$/,
  });
});

test('a rank that ended without goodbye after it had waited in vain is named with those that did not come', async () => {
  const { core, stores } = world(3);
  const [, b, c] = stores;
  const waiting = c.barrier('early');
  await assert.rejects(b.barrier('early', { timeoutMs: 5 }), { details: { ...timedOut(1, [0]) } });
  core.leave(1, { how: 'lost' });
  await assert.rejects(waiting, (error: WeftlineError) => {
    assert.equal(error.code, 'WL_PEER_LOST');
    assert.deepEqual(blamedRanks(error), [0, 1]);
    assert.match(
      error.message,
      /^Rank 1 .* was lost \(its connection broke without goodbye\) after it had given up barrier "early", to which rank 0 did not come;/,
    );
    return true;
  });
});

test('a wait without any time left says so', async () => {
  const { stores } = world(2);
  await assert.rejects(stores[1].barrier('b', { timeoutMs: 0 }), {
    code: 'WL_TIMEOUT',
    message: 'Rank 1 gave up barrier "b" at once, with no time left: rank 0 did not come',
  });
});

test('a rank whose last collective was complete has left by itself', async () => {
  const { core, stores } = world(3);
  const [a, b, c] = stores;
  await assert.rejects(b.barrier('x', { timeoutMs: 5 }), { code: 'WL_TIMEOUT' });
  await Promise.all([a, b, c].map((store) => store.barrier('y')));
  core.leave(1, { how: 'closed' });
  await assert.rejects(c.barrier('z'), { code: 'WL_PEER_LOST', rank: 1, message: /closed its world/ });
});

test('of several ranks that left, the first is named', async () => {
  const { core, stores } = world(3);
  core.leave(1, { how: 'lost' });
  core.leave(0, { how: 'failed', error: encodeError(new WeftlineError('WL_PEER_LOST', 'Rank 1 was lost'), 0) });
  await assert.rejects(stores[2].barrier('z'), { code: 'WL_PEER_LOST', rank: 1 });
});

function timedOut(rank: number, missing: readonly number[]): object {
  return { rank, waitingFor: 'barrier "early"', timeoutMs: 5, missing };
}

test('a rank that came and gave up is not one of those that did not come', async () => {
  const { stores } = world(3);
  const [, b, c] = stores;
  const late = c.barrier('early', { timeoutMs: 30 });
  await assert.rejects(b.barrier('early', { timeoutMs: 5 }), { message: /: rank 0 did not come$/ });
  await assert.rejects(late, { message: /: rank 0 did not come$/ });
});

test('a gather without its value is refused: later ranks would pass for earlier ones', async () => {
  const { core, stores } = world(2);
  const gather = { op: 'gather', name: 'g', timeoutMs: 30_000 } as const;
  await assert.rejects(core.request(0, gather, []), { code: 'WL_PROTOCOL' });
  const both = await Promise.all([stores[0].allGather('g', bytes('a')), stores[1].allGather('g', bytes('b'))]);
  assert.deepEqual(both[1].map(text), ['a', 'b']);
});
