// Large copies within the host: a thread carries them out, with the agent's own where that waits blocking.
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import test from 'node:test';
import { WeftlineError } from 'weftline';
import { Agent, DescriptorList, type Registration, type RemoteMemory, type Transfer } from 'weftline/agent';
import { seededRandom } from '#lib/core/seeded-random.js';
import { testSeed } from '../support/seed.ts';
import { until } from '../support/until.ts';

const MiB = 1 << 20;
const LARGE = 24 * MiB;

interface Two extends AsyncDisposable {
  readonly a: Agent;
  readonly b: Agent;
  readonly out: Registration;
  /** Memory of `b`, and how `a` sees it. */
  readonly target: Registration;
  readonly remote: RemoteMemory;
}

async function openTwo(bytes: number, kind: 'allocated' | 'plain' = 'allocated'): Promise<Two> {
  const a = await Agent.create('a', { backends: ['local'] });
  const b = await Agent.create('b', { backends: ['local'] });
  const out = await a.allocate(bytes);
  const target =
    kind === 'allocated' ? await b.allocate(bytes) : await b.register(new Uint8Array(new SharedArrayBuffer(bytes)));
  await a.loadRemoteMetadata(b.localMetadata());
  const [remote] = a.remoteMemory('b');
  assert.ok(remote);
  return {
    a,
    b,
    out,
    target,
    remote,
    [Symbol.asyncDispose]: async () => {
      await a.close();
      await b.close();
    },
  };
}

function write({ a, out, remote }: Two, offset: number, bytes: number): Promise<Transfer> {
  const local = DescriptorList.of(out, offset, bytes);
  return a.prepare({ operation: 'write', peer: 'b', local, remote: DescriptorList.of(remote, offset, bytes) });
}

/** Where `bytes` do not hold the value from `offset` on; -1 if they all do. */
function firstOther(memory: Registration, value: number, offset = 0, count = memory.bytes.length): number {
  const wanted = Buffer.alloc(count, value);
  return wanted.equals(memory.bytes.subarray(offset, offset + count))
    ? -1
    : memory.bytes.findIndex((byte) => byte !== value);
}

const byCode =
  (code: WeftlineError['code']) =>
  (error: unknown): boolean =>
    error instanceof WeftlineError && error.code === code;

/** Whether a post is refused with this code; one that is taken is waited for. */
async function isRefused(transfer: Transfer, code: WeftlineError['code']): Promise<boolean> {
  try {
    transfer.post();
  } catch (error) {
    return byCode(code)(error);
  }
  await transfer.wait().catch(() => {});
  return false;
}

/** Posts until the transfer is seen to be under way: the thread that copies may be done before this one goes on. */
async function postPending(transfer: Transfer): Promise<void> {
  for (let attempt = 0; attempt < 100; attempt += 1) {
    transfer.post();
    if (transfer.state === 'pending') return;
    await transfer.wait();
  }
  assert.fail('each post was done at once');
}

for (const kind of ['allocated', 'plain'] as const) {
  test(`${kind} memory: large writes end with an async wait, a blocking wait and none at all`, async () => {
    await using two = await openTwo(LARGE, kind);
    const { b, out, target } = two;
    await using transfer = await write(two, 0, LARGE);
    for (const [value, how] of [
      [1, 'async'],
      [2, 'blocking'],
      [3, 'async'],
      [4, 'none'],
    ] as const) {
      out.bytes.fill(value);
      transfer.post(Buffer.from(how));
      if (how === 'async') await transfer.wait();
      if (how === 'blocking') transfer.waitBlocking();
      const { message } = await b.nextNotification();
      assert.equal(Buffer.from(message).toString(), how);
      assert.equal(firstOther(target, value), -1);
    }
    await transfer.wait();
    assert.equal(transfer.telemetry.posts, 4);
    await postPending(transfer);
    await transfer.wait();
  });
}

test('messages come in the order of the posts, large and small, each behind its data', async () => {
  await using two = await openTwo(LARGE);
  const { b, out, target } = two;
  const places = [
    [0, 8 * MiB],
    [8 * MiB, 4096],
    [9 * MiB, 10 * MiB],
    [19 * MiB, 1],
    [20 * MiB, 4 * MiB],
  ] as const;
  const transfers: Transfer[] = [];
  for (const [offset, bytes] of places) transfers.push(await write(two, offset, bytes));
  for (let round = 1; round <= 5; round += 1) {
    out.bytes.fill(round);
    for (const [index, transfer] of transfers.entries())
      transfer.post(Buffer.from(`${index} ${'x'.repeat(round * 100)}`));
    for (const [index, [offset, bytes]] of places.entries()) {
      const { message } = round % 2 === 0 ? b.nextNotificationBlocking() : await b.nextNotification();
      assert.match(Buffer.from(message).toString(), new RegExp(`^${index} x+$`));
      assert.equal(firstOther(target, round, offset, bytes), -1);
    }
    for (const transfer of transfers) await transfer.wait();
  }
});

test('a cancelled transfer touches nothing more, sends nothing, and can be posted again at once', async () => {
  await using two = await openTwo(LARGE);
  const { b, out, target } = two;
  const [first, second, third] = [
    await write(two, 0, 8 * MiB),
    await write(two, 8 * MiB, 8 * MiB),
    await write(two, 16 * MiB, 8 * MiB),
  ];
  const cancelledOf = new Map([first, second].map((transfer) => [transfer, 0]));
  for (let round = 1; round <= 20; round += 1) {
    out.bytes.fill(round);
    for (const transfer of [first, second, third]) transfer.post(Buffer.from('lost or not'));
    // Some are cancelled at once, some when the thread that copies has got somewhere.
    if (round % 3 === 0) await new Promise((resolve) => setTimeout(resolve, round % 2));
    const cancelled = round % 2 === 0 ? first : second;
    cancelled.cancel();
    assert.notEqual(cancelled.state, 'pending');
    const wasCancelled = cancelled.state === 'failed';
    const before = Buffer.from(target.bytes.subarray(0, 8 * MiB));
    if (wasCancelled && cancelled === first) {
      await third.wait();
      assert.ok(before.equals(target.bytes.subarray(0, 8 * MiB)));
    }
    if (wasCancelled) {
      cancelledOf.set(cancelled, (cancelledOf.get(cancelled) ?? 0) + 1);
      await assert.rejects(cancelled.wait(), byCode('WL_CLOSED'));
      cancelled.post(Buffer.from('again'));
    }
    for (const transfer of [first, second, third]) await transfer.wait();
    for (let taken = 0; taken < 3; taken += 1) await b.nextNotification({ timeoutMs: 120_000 });
    assert.deepEqual(b.takeNotifications(), []);
    assert.equal(firstOther(target, round), -1);
  }
  for (const count of cancelledOf.values()) assert.ok(count > 0, 'a transfer was done each time before its cancel');
});

test('memory that is deregistered, a transfer that is released and an agent that closes end copies that are under way', async () => {
  await using two = await openTwo(LARGE);
  const { a } = two;
  const remote = DescriptorList.of(two.remote);
  const open = await write(two, 0, LARGE);
  const ends = { deregistered: 0, released: 0 };
  // The thread that copies may be done with one before this thread goes on, but not every time.
  for (let round = 0; round < 100 && (ends.deregistered === 0 || ends.released === 0); round += 1) {
    const other = await a.allocate(LARGE);
    const fromOther = await a.prepare({ operation: 'write', peer: 'b', local: DescriptorList.of(other), remote });
    const released = await write(two, 0, LARGE);
    fromOther.post(Buffer.from('x'));
    await other.close();
    if (fromOther.state !== 'done') ends.deregistered += Number(byCode('WL_CLOSED')(fromOther.error));
    // Only now: while this side waited they would have been done on a busy machine, each time.
    for (const transfer of [open, released]) transfer.post(Buffer.from('x'));
    await released.close();
    if (released.state !== 'done') ends.released += Number(byCode('WL_CLOSED')(released.error));
    await open.wait();
    two.b.takeNotifications();
  }
  assert.ok(ends.deregistered > 0 && ends.released > 0, JSON.stringify(ends));
  let closed = 0;
  for (let round = 0; round < 100 && closed === 0; round += 1) {
    await using pair = await openTwo(LARGE);
    const transfer = await write(pair, 0, LARGE);
    transfer.post();
    await pair.a.close();
    if (transfer.state === 'done') continue;
    assert.throws(() => transfer.waitBlocking(), byCode('WL_CLOSED'));
    closed += 1;
  }
  assert.equal(closed, 1);
});

test('whatever is posted, cancelled and waited for in any order, what is done is there and its message came once', async () => {
  await using two = await openTwo(LARGE);
  const { a, b, out, target } = two;
  const random = seededRandom(testSeed() + 7);
  const sizes = [5 * MiB, 4096, 6 * MiB, 300_000, 4 * MiB + 1, 1];
  const slots: { transfer: Transfer; offset: number; bytes: number; value: number; isOpen: boolean }[] = [];
  let offset = 0;
  for (const bytes of sizes) {
    slots.push({ transfer: await write(two, offset, bytes), offset, bytes, value: 0, isOpen: false });
    offset += bytes;
  }
  let done = 0;
  for (let action = 1; action <= 600; action += 1) {
    const slot = slots[Math.floor(random() * slots.length)] as (typeof slots)[number];
    const { transfer } = slot;
    if (!slot.isOpen) {
      slot.value = action % 251;
      out.bytes.fill(slot.value, slot.offset, slot.offset + slot.bytes);
      transfer.post(Buffer.alloc(action % 40));
      slot.isOpen = true;
      continue;
    }
    const choice = random();
    if (choice < 0.3) transfer.cancel();
    else if (choice < 0.6) transfer.waitBlocking();
    else if (choice < 0.8) await transfer.wait();
    else a.poll();
    if (transfer.state === 'pending') continue;
    slot.isOpen = false;
    if (transfer.state !== 'done') continue;
    done += 1;
    assert.equal(firstOther(target, slot.value, slot.offset, slot.bytes), -1);
    if (done % 10 === 0) assert.equal(b.takeNotifications().length > 0, true);
  }
  for (const { transfer, isOpen } of slots) if (isOpen) await transfer.wait();
  assert.ok(done > 100);
});

test('a large write whose message the peer has taken is done, although the peer closed since', async () => {
  for (let round = 0; round < 5; round += 1) {
    await using two = await openTwo(LARGE);
    const { a, b } = two;
    await using transfer = await write(two, 0, LARGE);
    transfer.post(Buffer.from('the last'));
    // Nothing of `a` looks until `b` has closed, as where its program computes.
    a.poll = () => false;
    b.nextNotificationBlocking();
    await b.close();
    Reflect.deleteProperty(a, 'poll');
    await transfer.wait();
    await until(() => isRefused(transfer, 'WL_CLOSED'), 'a post to a closed peer is refused');
  }
});

test('a large write to a peer that has closed fails before anything is copied', async () => {
  await using two = await openTwo(LARGE);
  await using transfer = await write(two, 0, LARGE);
  await two.b.close();
  assert.throws(() => transfer.post(), byCode('WL_CLOSED'));
});

test('a program that posts and waits for nothing ends when its copies have ended', () => {
  const agent = import.meta.resolve('weftline/agent');
  const text = `
    import { writeSync } from 'node:fs';
    const { Agent, DescriptorList } = await import('${agent}');
    const a = await Agent.create('a', { backends: ['local'] });
    const b = await Agent.create('b', { backends: ['local'] });
    const [out, target] = [await a.allocate(${LARGE}), await b.allocate(${LARGE})];
    await a.loadRemoteMetadata(b.localMetadata());
    const [remote] = a.remoteMemory('b').map((memory) => DescriptorList.of(memory));
    const transfer = await a.prepare({ operation: 'write', peer: 'b', local: DescriptorList.of(out), remote });
    out.bytes.fill(9);
    transfer.post();
    process.on('exit', () => writeSync(1, String(target.bytes.every((byte) => byte === 9))));
  `;
  const { stdout, status } = spawnSync(process.execPath, ['--input-type=module', '-e', text], {
    encoding: 'utf8',
    timeout: 600_000,
  });
  assert.equal(stdout, 'true');
  assert.equal(status, 0);
});
