import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { createInterface } from 'node:readline';
import test from 'node:test';
import { localConnectionInfo, localRegionInfo } from '#lib/agent/backends/local/local-region.js';
import { MAILBOX_REGIONS } from '#lib/agent/backends/local/mailbox-layout.js';
import { Block } from '#lib/abi/layout.js';
import {
  type BackendLink,
  type BackendPeer,
  type BackendRegion,
  type BackendTransfer,
  MAX_NOTIFICATION_BYTES,
} from '#lib/agent/backend.js';
import { createBackend } from '#lib/agent/backends/local/local-backend.js';
import { SharedMemory } from '#lib/windows/shared-memory.js';
import { hostMemory, openBackend, type OpenBackend, pollUntil, sharedMemory } from './support/backend-context.ts';
import { planned } from './support/planned-transfer.ts';
import { processUse } from './support/process-use.ts';
import { withCode } from '../support/with-code.ts';
import { until } from '../support/until.ts';

const options = { timeoutMs: 120_000 };
const peerModule = new URL('./support/local-backend-peer.js', import.meta.url).pathname;

async function openTwo(): Promise<{ a: OpenBackend; b: OpenBackend; link: BackendLink } & AsyncDisposable> {
  const a = await openBackend(createBackend, 'agent a');
  const b = await openBackend(createBackend, 'agent b');
  assert.equal(a.backend.whyNotPeer(b.peer), undefined);
  const link = await a.backend.connect(b.peer, options);
  return {
    a,
    b,
    link,
    [Symbol.asyncDispose]: async () => {
      await a.backend.close();
      await b.backend.close();
      await b.backend.close();
    },
  };
}

function pattern(bytes: number, seed: number): Uint8Array {
  const view = new Uint8Array(new SharedArrayBuffer(bytes));
  for (let index = 0; index < bytes; index += 1) view[index] = (index * 31 + seed) & 255;
  return view;
}

/** Until a post is seen as the test needs it: the thread that copies may be done with one before this thread goes on. */
async function postUntil(other: OpenBackend, transfer: BackendTransfer, isSeen: () => boolean): Promise<void> {
  for (let attempt = 0; !isSeen(); attempt += 1) {
    assert.ok(attempt < 100, 'each post was done at once');
    await pollUntil([other], () => transfer.state === 'done');
  }
}

interface Pair {
  readonly local: BackendRegion;
  readonly remote: BackendRegion;
  readonly bytes: number;
}

function prepare(link: BackendLink, operation: 'read' | 'write', pair: Pair): Promise<BackendTransfer> {
  const { local, remote, bytes } = pair;
  const imported = link.importRegion(remote.info, { kind: 'host', bytes });
  return link.prepare(operation, planned([{ local, localOffset: 0, remote: imported, remoteOffset: 0, bytes }]));
}

for (const kind of ['shared', 'process'] as const) {
  for (const bytes of [1, 256, 300_000, 9_000_001]) {
    test(`a ${kind} region of ${bytes} bytes is written, read back and announced`, async () => {
      await using two = await openTwo();
      const { a, b, link } = two;
      using memory = SharedMemory.create('test', bytes, false);
      const target = kind === 'shared' ? sharedMemory(memory) : hostMemory(pattern(bytes, 9));
      const source = pattern(bytes, 3);
      const back = pattern(bytes, 5);
      const remote = await b.backend.register(target);
      const local = await a.backend.register(hostMemory(source));
      const write = await prepare(link, 'write', { local, remote, bytes });
      assert.equal(write.state, 'idle');
      write.post(Buffer.from('written'));
      await pollUntil([a, b], () => write.state === 'done' && b.received.length === 1);
      assert.deepEqual(b.received, [{ peer: 'agent a', text: 'written' }]);
      assert.ok(Buffer.from(target.view as Uint8Array).equals(source));
      const read = await prepare(link, 'read', {
        local: await a.backend.register(hostMemory(back)),
        remote,
        bytes,
      });
      read.post();
      await pollUntil([a, b], () => read.state === 'done');
      assert.ok(Buffer.from(back).equals(source));
      await write.release();
      await read.release();
    });
  }
}

for (const kind of ['shared', 'process'] as const) {
  test(`a ${kind} region of a peer that closed its agent, and lives, is refused as that`, async () => {
    await using two = await openTwo();
    const { a, b, link } = two;
    const bytes = 256;
    using memory = SharedMemory.create('test', bytes, false);
    const remote = await b.backend.register(kind === 'shared' ? sharedMemory(memory) : hostMemory(pattern(bytes, 9)));
    const local = await a.backend.register(hostMemory(pattern(bytes, 3)));
    const read = await prepare(link, 'read', { local, remote, bytes });
    await b.backend.close();
    // Nobody has polled since.
    read.post();
    assert.equal(read.state, 'failed');
    const isClosed = withCode('WL_CLOSED', 'agent b');
    assert.ok(isClosed(read.error));
    // Only what lies in the peer's process is tried out.
    if (kind === 'process') assert.throws(() => link.importRegion(remote.info, { kind: 'host', bytes }), isClosed);
  });
}

test('a large transfer goes on without a poll, and the peer is told', async () => {
  await using two = await openTwo();
  const { a, b, link } = two;
  const bytes = 40 << 20;
  using memory = SharedMemory.create('test', bytes, false);
  const remote = await b.backend.register(sharedMemory(memory));
  const local = await a.backend.register(hostMemory(pattern(bytes, 1)));
  const write = await prepare(link, 'write', { local, remote, bytes });
  let sent = 0;
  const isPending = (): boolean => {
    write.post(Buffer.from('all'));
    sent += 1;
    return write.state === 'pending';
  };
  await postUntil(b, write, isPending);
  // The thread may end it just now.
  if (write.state === 'pending') assert.throws(() => write.post(), withCode('WL_INVALID_ARGUMENT'));
  await pollUntil([b], () => b.received.length === sent);
  assert.equal(write.state, 'done');
  await postUntil(b, write, () => {
    write.post();
    write.cancel();
    return write.state === 'failed';
  });
  assert.equal(write.error?.code, 'WL_CLOSED');
});

test('many descriptors, scattered, in both kinds of memory at once', async () => {
  await using two = await openTwo();
  const { a, b, link } = two;
  const [pieces, piece] = [3000, 96];
  using memory = SharedMemory.create('test', pieces * piece, false);
  const other = pattern(pieces * piece, 0).fill(0);
  const targets = [sharedMemory(memory), hostMemory(other)];
  const source = pattern(pieces * piece, 77);
  const local = await a.backend.register(hostMemory(source));
  const remotes = await Promise.all(targets.map((target) => b.backend.register(target)));
  const imported = remotes.map(({ info }) => link.importRegion(info, { kind: 'host', bytes: pieces * piece }));
  const parts = Array.from({ length: pieces }, (_, index) => ({
    local,
    localOffset: index * piece,
    remote: imported[index % 2] as (typeof imported)[0],
    remoteOffset: (pieces - 1 - index) * piece,
    bytes: piece,
  }));
  const write = await link.prepare('write', planned(parts));
  write.post();
  await pollUntil([a], () => write.state === 'done');
  for (const { localOffset, remoteOffset, bytes } of parts) {
    const index = localOffset / piece;
    const view = targets[index % 2]?.view as Uint8Array;
    const came = Buffer.from(view.subarray(remoteOffset, remoteOffset + bytes));
    assert.ok(came.equals(source.subarray(localOffset, localOffset + bytes)), `piece ${index}`);
  }
});

test('a wrong key, a released region and nonsense are refused, and nothing is written', async () => {
  await using two = await openTwo();
  const { a, b, link } = two;
  const target = pattern(64, 0);
  const before = Buffer.from(target);
  const remote = await b.backend.register(hostMemory(target));
  const local = await a.backend.register(hostMemory(pattern(64, 9)));
  const forged = remote.info.slice();
  (forged[8] as number) ^= 1;
  const refused = await prepare(link, 'write', { local, remote: { ...remote, info: forged }, bytes: 64 });
  refused.post(Buffer.from('x'));
  assert.equal(refused.state, 'failed');
  assert.ok(withCode('WL_UNAUTHORIZED', 'agent b')(refused.error));
  const about = { kind: 'host', bytes: 64 } as const;
  assert.throws(() => link.importRegion(remote.info, { ...about, bytes: 65 }), withCode('WL_PROTOCOL'));
  assert.throws(() => link.importRegion(remote.info, { ...about, kind: 'cuda' }), withCode('WL_PROTOCOL'));
  assert.throws(() => link.importRegion(remote.info.subarray(1), about), withCode('WL_PROTOCOL'));
  const good = await prepare(link, 'write', { local, remote, bytes: 64 });
  await remote.release();
  await remote.release();
  good.post();
  assert.ok(withCode('WL_UNAUTHORIZED')(good.error));
  assert.ok(Buffer.from(target).equals(before));
  b.backend.poll();
  assert.equal(b.received.length, 0);
});

test('notifications: order, the longest, a full ring, and room again', async () => {
  await using two = await openTwo();
  const { b, link } = two;
  link.notify(new Uint8Array(MAX_NOTIFICATION_BYTES).fill(65));
  let sent = 0;
  assert.throws(
    () => {
      for (;;) {
        link.notify(Buffer.from(`message ${sent}`));
        sent += 1;
      }
    },
    withCode('WL_BUSY', 'agent b'),
  );
  assert.ok(sent > 100);
  while (b.backend.poll());
  assert.equal(b.received.length, sent + 1);
  assert.equal(b.received[0]?.text.length, MAX_NOTIFICATION_BYTES);
  for (let round = 0; round < 5000; round += 1) {
    link.notify(new Uint8Array((round * 37) % 3000).fill(66));
    b.backend.poll();
  }
  assert.equal(b.received.length, sent + 5001);
  assert.ok(b.received.every(({ text }, index) => index <= sent || text.length === ((index - sent - 1) * 37) % 3000));
});

test('a channel puts and signals in order', async () => {
  await using two = await openTwo();
  const { a, b, link } = two;
  using memory = SharedMemory.create('test', 4096, true);
  const target = sharedMemory(memory);
  const remote = await b.backend.register(target);
  const local = await a.backend.register(hostMemory(pattern(256, 4)));
  const imported = link.importRegion(remote.info, { kind: 'host', bytes: 4096 });
  const channel = link.openChannel();
  assert.ok(channel.put({ local, localOffset: 16, remote: imported, remoteOffset: 100, bytes: 200 }));
  for (let round = 0; round < 3; round += 1) assert.ok(channel.signal(imported, 4088, 2 ** 33));
  assert.equal(channel.posted, 4);
  assert.equal(channel.delivered, 4);
  const cells = new BigInt64Array(memory.buffer());
  assert.equal(cells[511], BigInt(3 * 2 ** 33));
  assert.ok(Buffer.from(target.view?.subarray(100, 300) ?? []).equals(pattern(256, 4).subarray(16, 216)));
  assert.throws(() => channel.signal(imported, 4092, 1), withCode('WL_INVALID_ARGUMENT'));
  await channel.close();
  assert.throws(() => channel.signal(imported, 0, 1), withCode('WL_CLOSED'));
});

test('what was taken back is unmapped; what was prepared on it fails, and what is under way does so before', async () => {
  await using two = await openTwo();
  const { a, b, link } = two;
  const bytes = 40 << 20;
  const memory = SharedMemory.create('test', bytes, false);
  const region = await b.backend.register(sharedMemory(memory));
  const local = await a.backend.register(hostMemory(pattern(bytes, 1)));
  const before = processUse().mappings;
  const write = await prepare(link, 'write', { local, remote: region, bytes });
  const small = await prepare(link, 'write', { local, remote: region, bytes });
  const imported = link.importRegion(region.info, { kind: 'host', bytes });
  const channel = link.openChannel();
  assert.ok(channel.signal(imported, 0, 1));
  assert.equal(processUse().mappings, before + 1);
  write.post();
  link.releaseRegion?.(imported);
  await region.release();
  memory[Symbol.dispose]();
  await pollUntil([a, b], () => write.state !== 'pending' && processUse().mappings === before - 1);
  // All bytes may have been copied before the region was taken back.
  if (write.state === 'failed') assert.ok(withCode('WL_UNAUTHORIZED', 'agent b')(write.error));
  for (const transfer of [write, small]) {
    transfer.post(Buffer.from('x'));
    assert.equal(transfer.state, 'failed');
    assert.ok(withCode('WL_UNAUTHORIZED')(transfer.error));
  }
  assert.throws(() => channel.signal(imported, 0, 1), withCode('WL_UNAUTHORIZED'));
  assert.throws(
    () => channel.put({ local, localOffset: 0, remote: imported, remoteOffset: 0, bytes: 8 }),
    withCode('WL_UNAUTHORIZED'),
  );
  await channel.close();
  assert.deepEqual(b.received, []);
});

test('who sleeps is woken, asleep on a thread or blocking', async () => {
  await using two = await openTwo();
  const { b, link } = two;
  // Until the thread on the doorbell runs.
  await until(() => {
    b.backend.poll();
    return b.backend.prepareSleep() >= 10;
  });
  b.backend.poll();
  const seen = b.wake.seen;
  assert.ok(b.backend.prepareSleep() > 0);
  const woken = b.wake.sleep(seen, 10_000);
  link.notify(Buffer.from('up'));
  // A sleep alone does not keep the process.
  const kept = setTimeout(() => {}, 10_000);
  await woken;
  clearTimeout(kept);
  assert.ok(b.backend.poll());
  link.notify(Buffer.from('again'));
  assert.equal(b.backend.prepareSleep(), 0);
});

interface PeerProcess extends AsyncDisposable {
  readonly peer: BackendPeer;
  readonly info: Uint8Array;
  /** Key of memory that is the process's own. */
  readonly ownInfo: Uint8Array;
  readonly bytes: number;
  kill(): Promise<void>;
}

async function startPeer(): Promise<PeerProcess> {
  const child = spawn(process.execPath, [peerModule], { stdio: ['pipe', 'pipe', 'inherit'] });
  const exited = once(child, 'exit');
  const [line] = (await once(createInterface(child.stdout), 'line')) as [string];
  const said = JSON.parse(line) as {
    peer: BackendPeer;
    connectionInfo: string;
    info: string;
    ownInfo: string;
    bytes: number;
  };
  const kill = async (): Promise<void> => {
    child.kill('SIGKILL');
    await exited;
  };
  return {
    peer: { ...said.peer, connectionInfo: new Uint8Array(Buffer.from(said.connectionInfo, 'base64')) },
    info: new Uint8Array(Buffer.from(said.info, 'base64')),
    ownInfo: new Uint8Array(Buffer.from(said.ownInfo, 'base64')),
    bytes: said.bytes,
    kill,
    [Symbol.asyncDispose]: kill,
  };
}

test('a peer that is killed in the middle of a transfer is named; another one is reached afterwards', async () => {
  const a = await openBackend(createBackend, 'agent a');
  {
    await using first = await startPeer();
    const link = await a.backend.connect(first.peer, options);
    const local = await a.backend.register(hostMemory(pattern(first.bytes, 1)));
    const remote = link.importRegion(first.info, { kind: 'host', bytes: first.bytes });
    const write = await link.prepare(
      'write',
      planned([{ local, localOffset: 0, remote, remoteOffset: 0, bytes: first.bytes }]),
    );
    write.post();
    await pollUntil([a], () => write.state === 'done');
    write.post();
    await first.kill();
    await pollUntil([a], () => write.state !== 'pending');
    // All bytes may have been copied before the kill; then the next post tells of it.
    if (write.state === 'failed') assert.ok(withCode('WL_PEER_LOST', 'the peer')(write.error));
    else assert.throws(() => write.post(), withCode('WL_PEER_LOST', 'the peer'));
    assert.ok(withCode('WL_PEER_LOST', 'the peer')(link.error));
    assert.throws(() => write.post(), withCode('WL_PEER_LOST', 'the peer'));
    await assert.rejects(a.backend.connect(first.peer, options), withCode('WL_PEER_LOST', 'the peer'));
    await link.close();
  }
  await using second = await startPeer();
  const link = await a.backend.connect(second.peer, options);
  const local = await a.backend.register(hostMemory(pattern(64, 1)));
  const remote = link.importRegion(second.info, { kind: 'host', bytes: second.bytes });
  const read = await link.prepare('read', planned([{ local, localOffset: 0, remote, remoteOffset: 0, bytes: 64 }]));
  read.post();
  await pollUntil([a], () => read.state === 'done');
  await a.backend.close();
});

test('an idle link notices that its peer died', async () => {
  const a = await openBackend(createBackend, 'agent a');
  await using peer = await startPeer();
  const link = await a.backend.connect(peer.peer, options);
  await peer.kill();
  // Its memory is named before the link has looked.
  assert.throws(
    () => link.importRegion(peer.ownInfo, { kind: 'host', bytes: 4096 }),
    withCode('WL_PEER_LOST', 'the peer'),
  );
  await pollUntil([a], () => link.error !== undefined);
  assert.ok(withCode('WL_PEER_LOST', 'the peer')(link.error));
  await a.backend.close();
});

test('whyNotPeer() tells other hosts, other process numbers and other users', async () => {
  await using two = await openTwo();
  const { a, b } = two;
  const { offset } = localConnectionInfo;
  const changed = (at: number): string | undefined => {
    const connectionInfo = b.backend.connectionInfo.slice();
    (connectionInfo[at] as number) ^= 1;
    return a.backend.whyNotPeer({ ...b.peer, connectionInfo });
  };
  assert.match(changed(offset.version) ?? '', /version/);
  assert.match(changed(offset.pidNamespace) ?? '', /container/);
  assert.match(changed(offset.bootId) ?? '', /another host/);
  if (process.getuid?.() !== 0) assert.match(changed(offset.uid) ?? '', /user/);
});

test('the places of senders that left are free again', async () => {
  const b = await openBackend(createBackend, 'agent b');
  for (let round = 0; round < 100; round += 1) {
    const a = await openBackend(createBackend, `agent ${round}`);
    const link = await a.backend.connect(b.peer, options);
    link.notify(Buffer.from(`from ${round}`));
    await a.backend.close();
    if (round % 50 === 49) await pollUntil([b], () => b.received.length === round + 1);
    // The receiver looks for senders that left every 50 ms.
    if (round % 50 === 49) await new Promise((resolve) => setTimeout(resolve, 60));
    for (let polls = 0; polls < 300; polls += 1) b.backend.poll();
  }
  assert.deepEqual(b.received.at(-1), { peer: 'agent 99', text: 'from 99' });
  await b.backend.close();
});

test('a description of a region that cannot be is refused, and the agent goes on', async () => {
  await using two = await openTwo();
  const { a, b, link } = two;
  using memory = SharedMemory.create('test', 4096, false);
  const region = await b.backend.register(sharedMemory(memory));
  const changed = (values: Partial<Record<'slot' | 'bytes' | 'address' | 'mappedBytes', number>>): Uint8Array => {
    const info = region.info.slice();
    const block = Block.over(localRegionInfo, info);
    for (const [name, value] of Object.entries(values)) block.set(name as 'slot', value);
    return info;
  };
  assert.throws(
    () => link.importRegion(changed({ slot: MAILBOX_REGIONS }), { kind: 'host', bytes: 4096 }),
    withCode('WL_PROTOCOL', 'slot'),
  );
  // The file is mapped already, but it is not that long.
  link.importRegion(region.info, { kind: 'host', bytes: 4096 });
  const beyond = changed({ bytes: 4096, address: 1 << 20, mappedBytes: 2 << 20 });
  assert.throws(() => link.importRegion(beyond, { kind: 'host', bytes: 4096 }), withCode('WL_PROTOCOL', 'file'));
  await pollUntil([a, b], () => true);
  const local = await a.backend.register(hostMemory(pattern(4096, 3)));
  const write = await prepare(link, 'write', { local, remote: region, bytes: 4096 });
  write.post();
  assert.equal(write.state, 'done');
});
