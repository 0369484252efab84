// The backend ucx where something ends: links, regions, slots, peers that die while nobody looks. Skipped without libucp.
import assert from 'node:assert/strict';
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import test, { type TestContext } from 'node:test';
import type { BackendPeer } from '#lib/agent/backend.js';
import { holdings, leftSince } from './support/process-holdings.js';
import { fixedBytes, introduce, introduced, UcxSide, until, whyNoUcx } from './support/ucx-side.js';
import { planned } from './support/planned-transfer.ts';
import { busyThreads } from '../support/busy-threads.ts';

const peerModule = new URL('./support/ucx-peer.js', import.meta.url).pathname;

const skip = whyNoUcx();
const BYTES = 2 ** 20;

function useTcp(context: TestContext): void {
  const before = process.env['UCX_TLS'];
  process.env['UCX_TLS'] = 'tcp,self';
  context.after(() => {
    if (before === undefined) delete process.env['UCX_TLS'];
    else process.env['UCX_TLS'] = before;
  });
}

function hasEnded({ exitCode, signalCode }: ChildProcess): boolean {
  return exitCode !== null || signalCode !== null;
}

async function within<T>(milliseconds: number, work: Promise<T>, what: string): Promise<T> {
  let timer: NodeJS.Timeout | undefined;
  const late = new Promise<never>((_, reject) => {
    timer = setTimeout(() => reject(new Error(`${what} did not end within ${milliseconds} ms`)), milliseconds);
  });
  return Promise.race([work, late]).finally(() => clearTimeout(timer));
}

test('ucx: a transfer that was never posted is released, whatever had its slot before', { skip }, async () => {
  await using near = await UcxSide.open('near');
  await using first = await UcxSide.open('first');
  await using second = await UcxSide.open('second');
  const local = await near.register(fixedBytes(BYTES));
  for (const far of [first, second]) {
    const link = await near.backend.connect(far.peer, { timeoutMs: 10_000 });
    const { info } = await far.register(fixedBytes(BYTES));
    const remote = link.importRegion(info, { kind: 'host', bytes: BYTES });
    const part = { local, localOffset: 0, remote, remoteOffset: 0, bytes: BYTES };
    const transfer = await link.prepare('write', planned([part]));
    const rounds = far === first ? 5 : 0;
    for (let round = 0; round < rounds; round++) {
      transfer.post();
      await until([near, far], () => transfer.state === 'done');
    }
    await within(20_000, transfer.release(), 'release');
  }
});

test('ucx: a signal that waits for data is not added to a region that is gone', { skip }, async (context) => {
  // Over shared memory the far side may fetch the data by itself.
  useTcp(context);
  await using near = await UcxSide.open('near', { ownThread: false });
  await using far = await UcxSide.open('far', { ownThread: false });
  const link = await near.backend.connect(far.peer, { timeoutMs: 10_000 });
  const data = 8 * BYTES;
  const local = await near.register(fixedBytes(data));
  const { info } = await far.register(fixedBytes(data));
  const remote = link.importRegion(info, { kind: 'host', bytes: data });
  const cells = fixedBytes(64);
  const successor = fixedBytes(64);
  const region = await far.register(cells);
  const channel = link.openChannel();
  const whole = { local, localOffset: 0, remote, remoteOffset: 0, bytes: data };
  // UCX connects with the first messages.
  for (let round = 1; round <= 5; round++) {
    assert.ok(channel.put(whole));
    await until([near, far], () => channel.delivered === round);
  }
  assert.ok(channel.put(whole));
  assert.ok(channel.signal(link.importRegion(region.info, { kind: 'host', bytes: 64 }), 0, 1));
  // Its data wait for the near side, which does nothing meanwhile.
  for (let look = 0; look < 100; look++) far.backend.poll();
  await region.release();
  await far.register(successor);
  await until([near, far], () => channel.error !== undefined || channel.delivered === 7);
  assert.equal(channel.error?.code, 'WL_UNAUTHORIZED');
  assert.deepEqual(cells, fixedBytes(64));
  assert.deepEqual(successor, fixedBytes(64));
  await channel.close();
});

test('ucx: notifications that have come are delivered, though their sender has closed since', { skip }, async () => {
  await using far = await UcxSide.open('far');
  {
    await using near = await UcxSide.open('near');
    const link = await near.backend.connect(far.peer, { timeoutMs: 10_000 });
    for (const word of ['one', 'two', 'three']) link.notify(Buffer.from(word));
    // Only its thread works for the far side.
    await new Promise((resolve) => setTimeout(resolve, 100));
  }
  // By now far's thread has taken in what near sent before it closed.
  await new Promise((resolve) => setTimeout(resolve, 100));
  await until([far], () => far.messages.length === 3);
  assert.deepEqual(far.messages, ['near: one', 'near: two', 'near: three']);
});

test('ucx over tcp: links are closed while large data flow', { skip }, async (context) => {
  useTcp(context);
  await using near = await UcxSide.open('near');
  await using far = await UcxSide.open('far');
  const bytes = 64 * BYTES;
  const local = await near.register(fixedBytes(bytes));
  const { info } = await far.register(fixedBytes(bytes));
  const releases: Promise<void>[] = [];
  for (let round = 0; round < 12; round++) {
    const link = await near.backend.connect(far.peer, { timeoutMs: 10_000 });
    const remote = link.importRegion(info, { kind: 'host', bytes });
    const transfer = await link.prepare('write', planned([{ local, localOffset: 0, remote, remoteOffset: 0, bytes }]));
    transfer.post();
    if (round === 11) await until([near, far], () => transfer.state === 'done');
    // Closed at another moment each time, wherever the data are by then.
    else await new Promise((resolve) => setTimeout(resolve, 2));
    await link.close();
    releases.push(transfer.release());
    // Both sides' threads end the link before the next one begins.
    await new Promise((resolve) => setTimeout(resolve, 30));
  }
  await within(20_000, Promise.all(releases), 'release');
});

test(
  'ucx: without a thread of its own a side does not sleep between the pieces of a message',
  { skip },
  async (context) => {
    await using near = await UcxSide.open('near');
    await using far = await UcxSide.open('far', { ownThread: false });
    const link = await near.backend.connect(far.peer, { timeoutMs: 10_000 });
    const local = await near.register(fixedBytes(BYTES));
    const { info } = await far.register(fixedBytes(BYTES));
    const remote = link.importRegion(info, { kind: 'host', bytes: BYTES });
    const transfer = await link.prepare(
      'write',
      planned([{ local, localOffset: 0, remote, remoteOffset: 0, bytes: BYTES }]),
    );
    let now = performance.now();
    transfer.post();
    await until([near, far], () => transfer.state === 'done');
    // What comes after the last work is idle time, which this clock alone counts.
    far.backend.poll();
    now = performance.now();
    context.mock.method(performance, 'now', () => now);
    transfer.post();
    near.backend.poll();
    while (transfer.state === 'pending') {
      far.backend.poll();
      near.backend.poll();
    }
    assert.equal(far.backend.prepareSleep(), 0);
    const sleeps = [2, 4, 100].map((idle) => {
      now += idle;
      far.backend.poll();
      return far.backend.prepareSleep();
    });
    assert.ok(sleeps[0] !== undefined && sleeps[0] > 0 && sleeps[0] < 1, `${sleeps.join(', ')} ms`);
    assert.equal(sleeps.at(-1), 1);
  },
);

test('ucx over tcp: links are closed while UCX still connects them', { skip }, async (context) => {
  useTcp(context);
  await using near = await UcxSide.open('near');
  await using far = await UcxSide.open('far');
  const bytes = 8 * BYTES;
  const local = await near.register(fixedBytes(bytes));
  const { info } = await far.register(fixedBytes(bytes));
  const releases: Promise<void>[] = [];
  for (let round = 0; round < 32; round++) {
    const link = await near.backend.connect(far.peer, { timeoutMs: 10_000 });
    const remote = link.importRegion(info, { kind: 'host', bytes });
    const transfer = await link.prepare('write', planned([{ local, localOffset: 0, remote, remoteOffset: 0, bytes }]));
    transfer.post();
    for (let turns = round % 8; turns > 0; turns--) {
      near.backend.poll();
      await new Promise((resolve) => setImmediate(resolve));
    }
    await link.close();
    releases.push(transfer.release());
  }
  await within(20_000, Promise.all(releases), 'release');
});

test('ucx: a dead peer keeps no thread busy while nobody looks', { skip }, async () => {
  await using near = await UcxSide.open('near');
  const child = spawn(process.execPath, [peerModule], { stdio: ['ignore', 'pipe', 'inherit'] });
  const [line] = (await once(child.stdout, 'data')) as [Buffer];
  const said = JSON.parse(line.toString()) as BackendPeer & { connectionInfo: string };
  const peer = { ...said, connectionInfo: Buffer.from(said.connectionInfo, 'hex') };
  const link = await near.backend.connect(peer, { timeoutMs: 10_000 });
  const { seen } = near.wake;
  child.kill('SIGKILL');
  near.wake.sleepBlocking(seen, 20_000);
  assert.equal(link.error?.code, 'WL_PEER_LOST');
  assert.deepEqual(busyThreads(), []);
});

/** Writes to a peer until that is stopped in the midst of it; then releases the transfer and closes this side. */
async function writeToStopped(context: TestContext): Promise<void> {
  await using near = await UcxSide.open('near', { timeoutMs: 500 });
  const child = spawn(process.execPath, [peerModule], { stdio: ['ignore', 'pipe', 'inherit'] });
  context.after(() => child.kill('SIGKILL'));
  const [line] = (await once(child.stdout, 'data')) as [Buffer];
  const { peer, region } = introduced(line.toString());
  const link = await near.backend.connect(peer, { timeoutMs: 10_000 });
  const bytes = 64 * BYTES;
  const local = await near.register(fixedBytes(bytes));
  const remote = link.importRegion(region, { kind: 'host', bytes });
  const transfer = await link.prepare('write', planned([{ local, localOffset: 0, remote, remoteOffset: 0, bytes }]));
  transfer.post();
  await until([near], () => transfer.state === 'done');
  child.kill('SIGSTOP');
  transfer.post();
  await within(10_000, transfer.release(), 'release');
  assert.equal(link.error?.code, 'WL_PEER_LOST');
  await within(10_000, near.backend.close(), 'close');
}

for (const tls of ['posix,self', 'tcp,self']) {
  const stopped = `ucx with UCX_TLS=${tls}: a peer that stands still in the midst of a write to it holds up nothing and leaves nothing`;
  test(stopped, { skip }, async (context) => {
    if (tls === 'tcp,self') useTcp(context);
    await writeToStopped(context);
    const before = holdings();
    await writeToStopped(context);
    // Pipes and sockets are of the peers themselves.
    assert.deepEqual(await leftSince(before, /^(pipe|socket):/), []);
  });

  const title = `ucx with UCX_TLS=${tls}: a peer that stands still in the midst of a write does not hold up deregistering`;
  test(title, { skip }, async (context) => {
    if (tls === 'tcp,self') useTcp(context);
    await using near = await UcxSide.open('near', { timeoutMs: 500 });
    const memory = fixedBytes(64 * BYTES).fill(1);
    const region = await near.register(memory);
    const words = [peerModule, '0123456789abcdef', 'write', introduce(near, region)];
    // It fails when its link ends.
    const child = spawn(process.execPath, words, { stdio: ['ignore', 'pipe', 'ignore'] });
    context.after(() => child.kill('SIGKILL'));
    await until([near], () => memory[0] === 0 || hasEnded(child));
    assert.ok(!hasEnded(child), `the peer ended by itself: ${child.signalCode ?? child.exitCode}`);
    child.kill('SIGSTOP');
    await within(10_000, region.release(), 'release');
    memory.fill(2);
    child.kill('SIGCONT');
    await until([near], () => !near.hasLinks || hasEnded(child));
    assert.ok(memory.every((byte) => byte === 2));
  });
}
