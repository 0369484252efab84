// The same cases for every backend of the agent: data, order, errors, and what survives a peer's death.
import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { existsSync, mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import test, { after } from 'node:test';
import type { WeftlineError } from 'weftline';
import { Agent, type AgentOptions, DescriptorList, type RemoteMemory, type Transfer } from 'weftline/agent';
import { PartTable } from '#lib/transport/part-table.js';
import type { AgentConfiguration } from './agent-configurations.ts';
import { AgentPeer, openPair, SharedPair } from './agent-pair.ts';
import { whyMissing } from './missing-backend.ts';
import { seededRandom } from '#lib/core/seeded-random.js';
import { testSeed } from '../../support/seed.ts';
import { until } from '../../support/until.ts';
import { withCode } from '../../support/with-code.ts';
import { MAX_NOTIFICATION_BYTES } from '#lib/agent/backend.js';

const MiB = 1 << 20;

function memoryOf(agent: Agent, name: string): RemoteMemory {
  const found = agent.remoteMemory('there').find((memory) => memory.name === name);
  assert.ok(found);
  return found;
}

async function postAndWait(transfer: Transfer, message: string | Uint8Array): Promise<void> {
  transfer.post(Buffer.from(message));
  await transfer.wait();
}

/** Posts until a post or its wait fails: on a busy machine one may be over before the peer is killed. */
async function failureOf(transfer: Transfer): Promise<string> {
  try {
    for (;;) {
      transfer.post();
      await transfer.wait();
    }
  } catch (error) {
    return (error as WeftlineError).code;
  }
}

function canPost(transfer: Transfer, message: Buffer, number: number): boolean {
  message.writeUInt32LE(number);
  try {
    transfer.post(message);
    return true;
  } catch (error) {
    return !withCode('WL_BUSY')(error);
  }
}

function hostRange(address: number, bytes: number): DescriptorList {
  return new DescriptorList('host', Float64Array.of(address), Float64Array.of(bytes));
}

const threads: readonly (readonly [how: string, options: AgentOptions])[] = [
  ['on its own thread', { ownThread: true }],
  ["on the caller's thread", { ownThread: false }],
];

/** Registers the tests; of a sample those of data and order, on a thread of the agent's own. */
export async function testConformance(configuration: AgentConfiguration, isSample = false): Promise<void> {
  const { name: title, backend } = configuration;
  const skip = (await whyMissing(backend)) ?? false;
  // Within a host, more than the call of post copies itself.
  const sharedBytes = backend === 'local' ? 16 * MiB : 4 * MiB;
  const shared = new SharedPair(configuration, sharedBytes);
  after(() => shared.close());

  for (const [how, options] of isSample ? threads.slice(0, 1) : threads) {
    test(`${title}, ${how}: writes and reads of every size and place are intact`, { skip }, async () => {
      await using pair = await openPair(configuration, 3 * MiB, options);
      const { agent, peer } = pair;
      const out = await agent.register(randomBytes(3 * MiB));
      const back = await agent.allocate(3 * MiB);
      for (const name of ['allocated', 'plain']) {
        const memory = memoryOf(agent, name);
        for (const [offset, bytes] of [
          [0, 1],
          [13, 4099],
          [1, 65_536],
          [777, MiB + 5],
          [0, 3 * MiB],
        ] as const) {
          const local = DescriptorList.of(out, offset, bytes);
          const remote = DescriptorList.of(memory, offset, bytes);
          await using write = await agent.prepare({ operation: 'write', peer: 'there', local, remote });
          assert.equal(write.backend, backend);
          assert.equal(write.state, 'idle');
          write.post();
          await write.wait();
          const expected = out.bytes.slice(offset, offset + bytes);
          assert.deepEqual(await peer.bytes(name, offset, bytes), new Uint8Array(expected));
          const into = DescriptorList.of(back, offset, bytes);
          await using read = await agent.prepare({ operation: 'read', peer: 'there', local: into, remote });
          read.post();
          read.waitBlocking();
          assert.ok(Buffer.from(expected).equals(back.bytes.subarray(offset, offset + bytes)));
        }
      }
    });
  }

  test(`${title}: only what the descriptors name is written, in any order of blocks`, { skip }, async () => {
    const { agent, peer } = await shared.use();
    const out = await agent.allocate(MiB);
    out.bytes.set(randomBytes(MiB));
    const ours = DescriptorList.blocks(out, { blockBytes: 1000, stride: 4096 });
    const theirs = DescriptorList.blocks(memoryOf(agent, 'allocated'), { blockBytes: 1000, stride: 4096 });
    const indices = [200, 3, 4, 5, 0, 77];
    await using transfer = await agent.prepare({
      operation: 'write',
      peer: 'there',
      local: ours.select(indices),
      remote: theirs.select(indices.toReversed()),
    });
    transfer.post();
    await transfer.wait();
    const expected = new Uint8Array(MiB).fill(7);
    for (const [at, index] of indices.toReversed().entries()) {
      const from = (indices[at] as number) * 4096;
      expected.set(out.bytes.subarray(from, from + 1000), index * 4096);
    }
    assert.deepEqual(await peer.bytes('allocated', 0, MiB), expected);
  });

  test(`${title}: runs of blocks are written and read, whatever their distances and sizes`, { skip }, async () => {
    const { agent, peer } = await shared.use();
    const memory = memoryOf(agent, 'allocated');
    const out = await agent.allocate(2 * MiB);
    out.bytes.set(randomBytes(2 * MiB));
    /** Bytes of a block, how many there are, and distances here and there. */
    const shapes = [
      [576, 700, 640, 1216],
      [8, 900, 24, 8],
      [40_000, 9, 40_000, 50_000],
      [16_000, 3, 20_000, 16_000],
      [1, 1, 1, 1],
      [100, 20, 100, 100],
    ] as const;
    const [ours, theirs]: [DescriptorList[], DescriptorList[]] = [[], []];
    const copied = new Uint8Array(sharedBytes);
    copied.set(await peer.bytes('allocated', 0, 2 * MiB));
    let [here, there] = [5, 11];
    for (const [blockBytes, count, stride, remoteStride] of shapes) {
      ours.push(DescriptorList.blocks(out, { blockBytes, count, stride, offset: here }));
      theirs.push(DescriptorList.blocks(memory, { blockBytes, count, stride: remoteStride, offset: there }));
      for (let block = 0; block < count; block++) {
        const from = here + block * stride;
        copied.set(out.bytes.subarray(from, from + blockBytes), there + block * remoteStride);
      }
      here += (count - 1) * stride + blockBytes;
      there += (count - 1) * remoteStride + blockBytes + 3;
    }
    const lists = { local: DescriptorList.join(ours), remote: DescriptorList.join(theirs) };
    await using write = await agent.prepare({ operation: 'write', peer: 'there', ...lists });
    write.post();
    await write.wait();
    assert.deepEqual(await peer.bytes('allocated', 0, 2 * MiB), copied.slice(0, 2 * MiB));
    const { descriptors, parts } = write.telemetry;
    assert.deepEqual([descriptors, parts], [1633, 1614]);
    const expected = out.bytes.slice();
    const back = await agent.allocate(2 * MiB);
    await using read = await agent.prepare({
      operation: 'read',
      peer: 'there',
      local: DescriptorList.join(
        shapes.map(([blockBytes, count, stride], at) =>
          DescriptorList.blocks(back, {
            blockBytes,
            count,
            stride,
            offset: (ours[at] as DescriptorList).entry(0).address - out.address,
          }),
        ),
      ),
      remote: lists.remote,
    });
    read.post();
    read.waitBlocking();
    for (let entry = 0; entry < lists.local.length; entry++) {
      const { address, length } = lists.local.entry(entry);
      const at = address - out.address;
      assert.ok(Buffer.from(expected.subarray(at, at + length)).equals(back.bytes.subarray(at, at + length)));
    }
  });

  test(`${title}: each post of a transfer by selection moves the entries that it names`, { skip }, async () => {
    const { agent, peer } = await shared.use();
    const out = await agent.allocate(MiB);
    out.bytes.set(randomBytes(MiB));
    const [allocated, plain] = [memoryOf(agent, 'allocated'), memoryOf(agent, 'plain')];
    const pages = { blockBytes: 4096, stride: 5000 };
    const rows = { blockBytes: 576, stride: 640 };
    // 40 pages and 700 rows here, 60 pages and 900 rows in two memories there.
    const local = DescriptorList.join([
      DescriptorList.blocks(out, { ...pages, count: 40 }),
      DescriptorList.blocks(out, { ...rows, offset: 500_001, count: 700 }),
    ]);
    const remote = DescriptorList.join([
      DescriptorList.blocks(allocated, { ...pages, count: 60 }),
      DescriptorList.blocks(plain, { ...rows, count: 900 }),
    ]);
    const lists = { peer: 'there', local, remote, bySelection: true } as const;
    await using write = await agent.prepare({ operation: 'write', ...lists });
    await using read = await agent.prepare({ operation: 'read', ...lists });
    const copies = new Map([
      [allocated.address, await peer.bytes('allocated', 0, MiB)],
      [plain.address, await peer.bytes('plain', 0, MiB)],
    ]);
    const random = seededRandom(testSeed() + 3);
    const pick = (count: number, from: number): number => from + Math.floor(random() * count);
    for (let round = 0; round < 6; round++) {
      // Each place there, or for reads here, is named once; some go on where the one before ends.
      const isRead = round % 2 === 1;
      const selection = { local: [] as number[], remote: [] as number[] };
      const taken = new Set<number>();
      for (let at = 0; at < 40 + 60 * round; at++) {
        const isPage = at % 5 === 0;
        let pair: [here: number, there: number] = isPage ? [pick(40, 0), pick(60, 0)] : [pick(700, 40), pick(900, 60)];
        if (at % 3 === 0 && at % 5 > 1) pair = [selection.local.at(-1)! + 1, selection.remote.at(-1)! + 1];
        const [here, there] = pair;
        const target = isRead ? here : there;
        if (here >= 740 || there >= 960 || taken.has(target)) continue;
        taken.add(target);
        selection.local.push(here);
        selection.remote.push(there);
      }
      const expected = isRead ? out.bytes.slice() : out.bytes;
      for (const [at, here] of selection.local.entries()) {
        const [one, other] = [local.entry(here), remote.entry(selection.remote[at] as number)];
        const from = one.address - out.address;
        const isAllocated = (selection.remote[at] as number) < 60;
        const { address } = isAllocated ? allocated : plain;
        const there = copies.get(address) as Uint8Array;
        const to = other.address - address;
        if (isRead) expected.set(there.subarray(to, to + one.length), from);
        else there.set(out.bytes.subarray(from, from + one.length), to);
      }
      const transfer = isRead ? read : write;
      const arrays =
        round < 3 ? selection : { local: Int32Array.from(selection.local), remote: Int32Array.from(selection.remote) };
      transfer.post(`round ${round}`, arrays);
      if (round % 3 === 0) transfer.waitBlocking();
      else await transfer.wait();
      assert.equal(transfer.telemetry.descriptors, selection.local.length);
      const { message } = (await peer.do({ do: 'next', blocking: false, timeoutMs: 60_000 })) as {
        readonly message: Uint8Array;
      };
      assert.equal(Buffer.from(message).toString(), `round ${round}`);
      assert.deepEqual(await peer.bytes('allocated', 0, MiB), copies.get(allocated.address));
      assert.deepEqual(await peer.bytes('plain', 0, MiB), copies.get(plain.address));
      assert.ok(Buffer.from(expected).equals(out.bytes));
    }
    for (const [wrong, message] of [
      [undefined, /selection/],
      [{ local: [] }, /expected 1 to 960/],
      [{ local: [740] }, /selection\.local\[0\]: expected the number of an entry/],
      [{ local: [-1] }, /selection\.local\[0\]: expected the number of an entry/],
      [{ local: [0.5] }, /selection\.local\[0\]: expected the number of an entry/],
      [{ local: [0], remote: [960] }, /selection\.remote\[0\]: expected the number of an entry/],
      [{ local: [0, 1], remote: [0] }, /one per local index/],
      [{ local: [0], remote: [60] }, /selection\.remote\[0\]: expected an entry of 4096 bytes, as local entry 0 has/],
    ] as const) {
      assert.throws(() => write.post(undefined, wrong), withCode('WL_INVALID_ARGUMENT', message));
    }
    // The one that follows is as good as any.
    write.post(undefined, { local: [3] });
    await write.wait();
    await using whole = await agent.prepare({
      operation: 'write',
      peer: 'there',
      local,
      remote:
        local === remote ? local : remote.select(Array.from({ length: 740 }, (_, at) => (at < 40 ? at : at + 20))),
    });
    assert.throws(() => whole.post(undefined, { local: [0] }), withCode('WL_INVALID_ARGUMENT', /bySelection/));
  });

  test(
    `${title}: a transfer by selection that is cancelled or fails is posted again with other entries`,
    { skip },
    async () => {
      const { agent, peer } = await shared.use();
      const bytes = sharedBytes / 2;
      const out = await agent.allocate(bytes);
      const memory = memoryOf(agent, 'allocated');
      const [local, remote] = [out, memory].map((one) =>
        DescriptorList.blocks(one, { blockBytes: 8192, count: bytes / 8192 }),
      ) as [DescriptorList, DescriptorList];
      await using transfer = await agent.prepare({
        operation: 'write',
        peer: 'there',
        local,
        remote,
        bySelection: true,
      });
      const all = Array.from({ length: local.length }, (_, at) => (at * 37) % local.length);
      for (let round = 1; round <= 10; round++) {
        out.bytes.fill(round);
        transfer.post(undefined, { local: all });
        // So that more and more of it is under way.
        for (const end = performance.now() + round / 8; performance.now() < end;);
        transfer.cancel();
        await transfer.wait().catch((error: unknown) => assert.ok(withCode('WL_CLOSED')(error)));
        out.bytes.fill(100 + round);
        transfer.post(undefined, { local: [round], remote: [2 * round] });
        await transfer.wait();
        const page = await peer.bytes('allocated', 2 * round * 8192, 8192);
        assert.ok(page.every((byte) => byte === 100 + round));
      }
    },
  );

  test(`${title}: once a cancelled write has ended, nothing of it is written`, { skip }, async () => {
    const { agent, peer } = await shared.use();
    const bytes = sharedBytes / 2;
    const out = await agent.allocate(bytes);
    const place = memoryOf(agent, 'allocated');
    const common = { operation: 'write', peer: 'there' } as const;
    const local = DescriptorList.of(out);
    await using whole = await agent.prepare({ ...common, local, remote: DescriptorList.of(place, 0, bytes) });
    const [here, there] = [DescriptorList.of(out, 0, 1), DescriptorList.of(place, bytes, 1)];
    await using next = await agent.prepare({ ...common, local: here, remote: there });
    out.bytes.fill(1);
    for (let round = 0; round < 20; round++) {
      whole.post();
      // So that more and more of it is under way.
      for (const end = performance.now() + round / 8; performance.now() < end;);
      whole.cancel();
      await whole.wait().catch((error: unknown) => assert.ok(withCode('WL_CLOSED')(error)));
      await peer.do({ do: 'fill', name: 'allocated', value: 0 });
      // It comes behind whatever was under way.
      next.post();
      await next.wait();
      const page = await peer.bytes('allocated', 0, bytes);
      assert.equal(page.indexOf(1), -1, `round ${round}`);
    }
  });

  test(`${title}: neighbours are moved as one, and telemetry counts`, { skip }, async () => {
    const { agent } = await shared.use();
    const out = await agent.allocate(MiB);
    const local = DescriptorList.blocks(out, { blockBytes: 4096, count: 128 });
    const remote = DescriptorList.blocks(memoryOf(agent, 'plain'), { blockBytes: 4096, count: 128 });
    const common = { operation: 'write', peer: 'there', local, remote } as const;
    await using joined = await agent.prepare(common);
    await using single = await agent.prepare({ ...common, merge: false });
    for (const transfer of [joined, single]) {
      for (let round = 0; round < 3; round++) {
        transfer.post();
        await transfer.wait();
      }
    }
    assert.equal(joined.telemetry.parts, 1);
    const { parts, descriptors, bytes, posts, failures, transferMicroseconds, totalTransferMicroseconds } =
      single.telemetry;
    assert.deepEqual(
      { parts, descriptors, bytes, posts, failures },
      { parts: 128, descriptors: 128, bytes: 524_288, posts: 3, failures: 0 },
    );
    assert.ok(transferMicroseconds > 0 && totalTransferMicroseconds > transferMicroseconds);
  });

  test(`${title}: a notification comes behind its data, while the initiator does nothing`, { skip }, async () => {
    const { agent, peer } = await shared.use();
    const folder = mkdtempSync(join(tmpdir(), 'weftline-agent-'));
    try {
      const out = await agent.allocate(sharedBytes);
      for (const operation of ['write', 'read'] as const) {
        const path = join(folder, operation);
        out.bytes.fill(99);
        const remote = DescriptorList.of(memoryOf(agent, 'allocated'));
        await using transfer = await agent.prepare({ operation, peer: 'there', local: DescriptorList.of(out), remote });
        const marked = peer.do({ do: 'mark', name: 'allocated', path });
        transfer.post(Buffer.from(operation));
        // This thread stands still: nothing of the agent runs on it.
        const end = performance.now() + 120_000;
        while (!existsSync(path) && performance.now() < end)
          Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 5);
        await marked;
        assert.equal(readFileSync(path, 'utf8'), `${operation} 99 99`);
        await transfer.wait();
      }
    } finally {
      rmSync(folder, { recursive: true });
    }
  });

  for (const blocking of [true, false]) {
    test(`${title}: many notifications arrive in order, ${blocking ? 'blocking' : 'async'}`, { skip }, async () => {
      const { agent, peer } = await shared.use();
      const out = await agent.allocate(64);
      const remote = DescriptorList.of(memoryOf(agent, 'plain'), 0, 64);
      await using transfer = await agent.prepare({
        operation: 'write',
        peer: 'there',
        local: DescriptorList.of(out),
        remote,
      });
      const sent: string[] = [];
      for (let round = 0; round < 40; round++) {
        const text = `${round} ${'x'.repeat(round * 97)}`;
        sent.push(text);
        if (round % 2 === 0) {
          transfer.post(Buffer.from(text));
          await transfer.wait();
        } else await agent.notify('there', Buffer.from(text));
        // Notifications of notify are ordered behind transfers that are done; the next one waits for them here.
        const { peer: from, message } = (await peer.do({ do: 'next', blocking, timeoutMs: 120_000 })) as {
          readonly peer: string;
          readonly message: Uint8Array;
        };
        assert.equal(from, 'here');
        assert.equal(Buffer.from(message).toString(), sent[round]);
      }
      await assert.rejects(
        peer.do({ do: 'next', blocking, timeoutMs: 30 }),
        withCode('WL_TIMEOUT', /No notification came to agent there within 30 ms/),
      );
    });
  }

  test(`${title}: the longest notification arrives, a longer one is refused`, { skip }, async () => {
    const { agent, peer } = await shared.use();
    const out = await agent.allocate(64);
    const remote = DescriptorList.of(memoryOf(agent, 'plain'), 0, 64);
    const lists = { local: DescriptorList.of(out), remote };
    await using transfer = await agent.prepare({ operation: 'write', peer: 'there', ...lists });
    const longest = randomBytes(MAX_NOTIFICATION_BYTES);
    const longer = Buffer.alloc(MAX_NOTIFICATION_BYTES + 1);
    const tooLong = withCode('WL_INVALID_ARGUMENT', /expected at most 32760 bytes, got 32761/);
    assert.throws(() => transfer.post(longer), tooLong);
    await assert.rejects(agent.notify('there', longer), tooLong);
    // 16,381 characters of two bytes each: bytes count, not characters.
    assert.throws(
      () => transfer.post('é'.repeat(MAX_NOTIFICATION_BYTES / 2 + 1)),
      withCode('WL_INVALID_ARGUMENT', '32762'),
    );
    assert.equal(transfer.state, 'idle');
    await assert.rejects(peer.do({ do: 'next', blocking: false, timeoutMs: 30 }), withCode('WL_TIMEOUT'));
    // More than once, so that each ring ends within a message.
    for (let round = 0; round < 20; round++) {
      if (round % 2 === 0) await agent.notify('there', longest);
      else await postAndWait(transfer, longest);
      const next = await peer.do({ do: 'next', blocking: false, timeoutMs: 120_000 });
      assert.ok(longest.equals((next as { readonly message: Uint8Array }).message));
    }
  });

  test(`${title}: a string arrives as UTF-8; what is neither bytes nor a string is refused`, { skip }, async () => {
    const { agent, peer } = await shared.use();
    const local = DescriptorList.of(await agent.allocate(64));
    const remote = DescriptorList.of(memoryOf(agent, 'plain'), 0, 64);
    await using transfer = await agent.prepare({ operation: 'write', peer: 'there', local, remote });
    const text = 'größer: 東京 🙂';
    const next = async (): Promise<string> => {
      const { message } = (await peer.do({ do: 'next', blocking: false, timeoutMs: 120_000 })) as {
        readonly message: Uint8Array;
      };
      return Buffer.from(message).toString('utf8');
    };
    await agent.notify('there', text);
    assert.equal(await next(), text);
    transfer.post(text);
    await transfer.wait();
    assert.equal(await next(), text);
    for (const message of [7, null, {}, [1, 2], new ArrayBuffer(4), new Uint16Array(2)]) {
      const refused = withCode('WL_INVALID_ARGUMENT', /Invalid message: expected a Uint8Array or a string/);
      assert.throws(() => transfer.post(message as never), refused);
      await assert.rejects(agent.notify('there', message as never), refused);
    }
    assert.equal(transfer.state, 'done');
  });

  for (const [how, options] of isSample ? threads.slice(0, 1) : threads) {
    test(
      `${title}, ${how}: notifications that nobody takes hold up their sender and nothing else`,
      { skip },
      async () => {
        const settings = { timeoutMs: 120_000, notificationBytes: 16_384 };
        await using pair = await openPair(configuration, 65_536, { ...options, settings });
        const { agent, peer } = pair;
        const out = await agent.allocate(65_536);
        const remote = DescriptorList.of(memoryOf(agent, 'plain'));
        const list = { operation: 'write', peer: 'there', local: DescriptorList.of(out), remote } as const;
        await using transfer = await agent.prepare(list);
        await using quiet = await agent.prepare(list);
        const message = Buffer.alloc(4096);
        let sent = 0;
        const sendUntilFull = async (): Promise<void> => {
          for (const end = performance.now() + 60_000; ; sent++) {
            message.writeUInt32LE(sent);
            try {
              await postAndWait(transfer, message);
            } catch (error) {
              withCode('WL_BUSY', /there/)(error);
              return;
            }
            assert.ok(performance.now() < end, `${sent} messages were taken in`);
          }
        };
        const take = async (from: number, to: number): Promise<void> => {
          for (let number = from; number < to; number++) {
            const next = await peer.do({ do: 'next', blocking: number % 2 === 0, timeoutMs: 120_000 });
            const { message: found } = next as { readonly message: Uint8Array };
            assert.equal(Buffer.from(found).readUInt32LE(), number);
          }
        };
        await sendUntilFull();
        const first = sent;
        assert.ok(first > 4 && first < 1000, `${first} messages`);
        // Data goes on.
        out.bytes.fill(88);
        quiet.post();
        await quiet.wait();
        assert.deepEqual(await peer.bytes('plain', 0, 65_536), new Uint8Array(65_536).fill(88));
        await take(0, first);
        await until(() => canPost(transfer, message, sent));
        sent++;
        await transfer.wait();
        await sendUntilFull();
        await take(first, sent);
        await assert.rejects(peer.do({ do: 'next', blocking: false, timeoutMs: 30 }), withCode('WL_TIMEOUT'));
      },
    );
  }

  test(
    `${title}: both sides write to each other, and the peer's notification wakes an async wait here`,
    { skip },
    async () => {
      await using pair = await openPair(configuration, MiB);
      const { agent, peer } = pair;
      const mine = await agent.allocate(MiB, { name: 'mine' });
      assert.equal(await peer.do({ do: 'load', blob: agent.localMetadata() }), 'here');
      await peer.do({ do: 'fill', name: 'plain', value: 55 });
      const next = agent.nextNotification({ from: 'there' });
      await peer.do({ do: 'write', peer: 'here', name: 'plain', message: Buffer.from('look') });
      assert.equal(Buffer.from((await next).message).toString(), 'look');
      assert.ok(mine.bytes.every((byte) => byte === 55));
    },
  );

  test(`${title}: a channel's signals come behind its puts`, { skip }, async () => {
    const { agent, peer } = await shared.use();
    await peer.do({ do: 'fill', name: 'allocated', value: 0 });
    const out = await agent.allocate(MiB);
    out.bytes.fill(3);
    const memory = memoryOf(agent, 'allocated');
    const { link, local, remote } = await agent.channelParts('there', out, memory.number);
    const channel = link.openChannel();
    await channel.prepare?.(local, remote);
    const place = { local, localOffset: 0, remote, remoteOffset: 4096, bytes: MiB };
    for (let round = 0; round < 3; round++) {
      place.remoteOffset = 4096 + round * MiB;
      assert.ok(channel.put(place));
      assert.ok(channel.signal(remote, 0, 5));
    }
    assert.equal(await peer.do({ do: 'awaitCell', name: 'allocated', value: 15 }), 15);
    assert.deepEqual(await peer.bytes('allocated', 4096, 3 * MiB - 4096), new Uint8Array(3 * MiB - 4096).fill(3));
    const end = performance.now() + 120_000;
    while (channel.delivered < channel.posted && performance.now() < end) {
      agent.poll();
      await new Promise((resolve) => setImmediate(resolve));
    }
    assert.deepEqual([channel.posted, channel.delivered, channel.error], [6, 6, undefined]);
    await channel.close();
  });

  test(`${title}: a put of no bytes posts nothing, and what is around it arrives`, { skip }, async () => {
    const { agent, peer } = await shared.use();
    const out = await agent.register(randomBytes(4096));
    const memory = memoryOf(agent, 'allocated');
    const { link, local, remote } = await agent.channelParts('there', out, memory.number);
    const channel = link.openChannel();
    const isSettled = (): boolean => {
      if (channel.error !== undefined) throw channel.error;
      return channel.delivered === channel.posted;
    };
    const settled = (): Promise<void> =>
      agent.until({
        get isSettled() {
          return isSettled();
        },
        describe: () => 'what a channel has posted is not delivered',
      });
    /** Until there is room. */
    const post = async (attempt: () => boolean): Promise<void> => {
      while (!attempt()) {
        agent.poll();
        await new Promise((resolve) => setTimeout(resolve, 1));
      }
    };
    const nothing = { local, localOffset: 4096, remote, remoteOffset: sharedBytes, bytes: 0 };
    assert.equal(channel.put(nothing), true);
    assert.deepEqual([channel.posted, channel.delivered], [0, 0]);
    for (const at of [0, 1, 2]) {
      const place = { local, localOffset: at * 100, remote, remoteOffset: 64 + at * 100, bytes: 100 };
      await post(() => channel.put(place));
      assert.equal(channel.put(nothing), true);
    }
    await post(() => channel.signal(remote, 0, 5));
    assert.equal(channel.put(nothing), true);
    assert.equal(channel.posted, 4);
    await settled();
    const expected = new Uint8Array(400).fill(7, 364);
    expected.set(out.bytes.subarray(0, 300), 64);
    expected.fill(7, 0, 64);
    expected[0] = 12;
    assert.deepEqual(await peer.bytes('allocated', 0, 400), expected);
    // A table of parts without bytes is delivered too.
    const table = PartTable.ofCount(3);
    table.bytes[1] = 10;
    const parts = await channel.shareParts?.(table, local, remote);
    if (parts !== undefined) {
      for (const [first, count] of [
        [0, 1],
        [0, 3],
        [2, 1],
      ] as const) {
        await post(() => parts.put(first, count));
      }
      await settled();
      assert.deepEqual(await peer.bytes('allocated', 0, 10), out.bytes.slice(0, 10));
      await parts.release();
    }
    await channel.close();
    assert.throws(() => channel.put(nothing), withCode('WL_CLOSED'));
  });

  test(`${title}: what is wrong is refused, and nothing is written`, { skip }, async () => {
    // It is no longer of use to others afterwards.
    await using pair = await shared.take();
    const { agent, peer } = pair;
    const out = await agent.allocate(65_536);
    out.bytes.fill(1);
    const memory = memoryOf(agent, 'plain');
    const prepare = (local: DescriptorList, remote: DescriptorList): Promise<unknown> =>
      agent.prepare({ operation: 'write', peer: 'there', local, remote });
    const whole = DescriptorList.of(out);
    await assert.rejects(
      prepare(whole, hostRange(memory.address + sharedBytes - 65_535, 65_536)),
      withCode('WL_INVALID_ARGUMENT', new RegExp(`leaves a region of ${sharedBytes} bytes by 1`)),
    );
    await assert.rejects(
      prepare(whole, hostRange(memory.address - 1, 65_536)),
      withCode('WL_INVALID_ARGUMENT', /lies in no region that agent there/),
    );
    await assert.rejects(
      prepare(hostRange(64, 8), hostRange(memory.address, 8)),
      withCode('WL_INVALID_ARGUMENT', /no region that agent here has registered/),
    );
    await assert.rejects(
      prepare(whole, hostRange(memory.address, 8)),
      withCode('WL_INVALID_ARGUMENT', /as its local one has/),
    );
    await assert.rejects(
      agent.prepare({ operation: 'write', peer: 'nobody', local: whole, remote: whole }),
      withCode('WL_INVALID_ARGUMENT', /nobody/),
    );
    await using transfer = await agent.prepare({
      operation: 'write',
      peer: 'there',
      local: whole,
      remote: DescriptorList.of(memory, 0, 65_536),
    });
    await assert.rejects(transfer.wait(), withCode('WL_INVALID_ARGUMENT', /never posted/));
    await peer.do({ do: 'deregister', name: 'plain' });
    // At once, or when the peer says so.
    await assert.rejects(postAndWait(transfer, 'must not come'), withCode('WL_UNAUTHORIZED', /there/));
    assert.notEqual(transfer.state, 'done');
    await assert.rejects(peer.do({ do: 'next', blocking: false, timeoutMs: 50 }), withCode('WL_TIMEOUT'));
    // The rest goes on.
    await using other = await agent.prepare({
      operation: 'write',
      peer: 'there',
      local: whole,
      remote: DescriptorList.of(memoryOf(agent, 'allocated'), 0, 65_536),
    });
    other.post();
    await other.wait();
    await out.close();
    assert.throws(() => other.post(), withCode('WL_CLOSED', /registration of its memory was closed/));
  });

  test(
    `${title}: cancel and release end what is under way; close is awaited and may be repeated`,
    { skip },
    async () => {
      await using pair = await openPair(configuration, 64 * MiB);
      const { agent } = pair;
      const out = await agent.allocate(64 * MiB);
      const remote = DescriptorList.of(memoryOf(agent, 'plain'));
      const options = { operation: 'write', peer: 'there', local: DescriptorList.of(out), remote } as const;
      await using first = await agent.prepare(options);
      const second = await agent.prepare(options);
      // A thread may carry out all of a post before it is cancelled, but not every time.
      let cancelled = 0;
      for (let round = 0; round < 20 && cancelled === 0; round++) {
        first.post();
        assert.throws(() => first.post(), withCode('WL_INVALID_ARGUMENT', /under way/));
        first.cancel();
        const failure: unknown = await first.wait().then(
          () => undefined,
          (reason: unknown) => reason,
        );
        if (failure === undefined) continue;
        withCode('WL_CLOSED', /cancelled/)(failure);
        assert.equal(first.state, 'failed');
        cancelled += 1;
      }
      assert.equal(cancelled, 1, 'no post was cancelled');
      second.post();
      await second.close();
      await second.close();
      assert.throws(() => second.post(), withCode('WL_CLOSED'));
      first.post();
      await first.wait();
      await assert.rejects(
        (async () => {
          first.post();
          await first.wait({ signal: AbortSignal.abort(new Error('enough')) });
        })(),
        /enough/,
      );
      await Promise.all([agent.close(), agent.close()]);
      assert.throws(() => agent.localMetadata(), withCode('WL_CLOSED'));
      await assert.rejects(agent.prepare(options), withCode('WL_CLOSED'));
    },
  );

  if (isSample) return;

  test(`${title}: a link is open until one side closes it, and then closed`, { skip }, async () => {
    await using pair = await openPair(configuration, 64);
    const { agent, peer } = pair;
    const link = await agent.linkTo('there');
    const local = DescriptorList.of(await agent.allocate(64));
    const remote = DescriptorList.of(memoryOf(agent, 'plain'), 0, 64);
    await using transfer = await agent.prepare({ operation: 'write', peer: 'there', local, remote });
    assert.deepEqual([link.state, link.error], ['open', undefined]);
    await peer.do({ do: 'close' });
    await until(() => agent.poll() || link.state !== 'open');
    assert.equal(link.state, 'closed', String(link.error));
    withCode('WL_CLOSED', /there.* closed/)(link.error);
    await assert.rejects(async () => postAndWait(transfer, 'nobody takes it'), withCode('WL_CLOSED', /there/));
    await using again = await openPair(configuration, 64);
    const own = await again.agent.linkTo('there');
    await again.agent.forget('there');
    assert.equal(own.state, 'closed');
    withCode('WL_CLOSED')(own.error);
  });

  test(`${title}: a link is dead when the peer's process has ended, with nothing under way`, { skip }, async () => {
    await using pair = await openPair(configuration, 64);
    const { agent, peer } = pair;
    const link = await agent.linkTo('there');
    await peer.kill();
    // Nobody asks for it: the agent looks by itself.
    await until(() => link.state !== 'open');
    assert.equal(link.state, 'dead');
    withCode('WL_PEER_LOST', /there/)(link.error);
  });

  // Within a host the user counts, not the token.
  if (backend !== 'local')
    test(`${title}: another token is refused`, { skip }, async () => {
      await using pair = await openPair(configuration, 64);
      await using stranger = await Agent.create('stranger', {
        backends: [backend],
        token: 'another',
        settings: { timeoutMs: 120_000 },
      });
      await stranger.loadRemoteMetadata(await pair.peer.metadata());
      await assert.rejects(stranger.connect('there'), withCode('WL_UNAUTHORIZED'));
    });

  test(`${title}: a killed peer fails what is under way, and may come back`, { skip }, async () => {
    await using pair = await openPair(configuration, 64 * MiB, {
      settings: { timeoutMs: 120_000, transportGiveUpMs: 3000 },
    });
    const { agent } = pair;
    const out = await agent.allocate(64 * MiB);
    const before = await pair.peer.metadata();
    const remote = DescriptorList.of(memoryOf(agent, 'plain'));
    const transfers = await Promise.all(
      Array.from({ length: 4 }, () =>
        agent.prepare({ operation: 'write', peer: 'there', local: DescriptorList.of(out), remote }),
      ),
    );
    const ends = transfers.map(failureOf);
    await pair.peer.kill();
    for (const code of await Promise.all(ends)) assert.ok(code === 'WL_PEER_LOST' || code === 'WL_CLOSED', code);
    const late = async (): Promise<void> => {
      const options = {
        operation: 'write',
        peer: 'there',
        local: DescriptorList.of(out),
        remote,
        timeoutMs: 120_000,
      } as const;
      await using transfer = await agent.prepare(options);
      await postAndWait(transfer, 'too late');
    };
    await assert.rejects(late(), withCode('WL_PEER_LOST'));
    // The same name, another life.
    await using again = await AgentPeer.start('there', {
      ...configuration.there,
      backends: [backend],
      token: 'secret',
    });
    await again.do({ do: 'register', name: 'plain', bytes: 64 });
    await agent.loadRemoteMetadata(await again.metadata());
    assert.throws(() => transfers[0]?.post(), withCode('WL_STALE', /restarted/));
    await assert.rejects(agent.loadRemoteMetadata(before), withCode('WL_STALE', /another one is known/));
    await using anew = await agent.prepare({
      operation: 'write',
      peer: 'there',
      local: DescriptorList.of(out, 0, 64),
      remote: DescriptorList.of(memoryOf(agent, 'plain')),
    });
    anew.post(Buffer.from('back'));
    await anew.wait();
    const { message } = (await again.do({ do: 'next', blocking: false, timeoutMs: 120_000 })) as {
      readonly message: Uint8Array;
    };
    assert.equal(Buffer.from(message).toString(), 'back');
  });
}
