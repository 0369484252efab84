// The same cases for every backend of the agent: memory that was deregistered is out of reach of its peers.
import assert from 'node:assert/strict';
import { fork } from 'node:child_process';
import test from 'node:test';
import { fileURLToPath } from 'node:url';
import type { WeftlineError } from 'weftline';
import { Agent, DescriptorList, type Registration } from 'weftline/agent';
import { seededRandom } from '#lib/core/seeded-random.js';
import { SharedMemory } from '#lib/windows/shared-memory.js';
import { testSeed } from '../../support/seed.ts';
import type { AgentConfiguration } from './agent-configurations.ts';
import { openPair } from './agent-pair.ts';
import type { DeregisterNews, DeregisterRound } from './deregister-peer.ts';
import { whyMissing } from './missing-backend.ts';
import { nextMessage } from './next-message.ts';
import { isWhole } from '../../support/extent.ts';

const seed = testSeed();
const script = fileURLToPath(new URL('deregister-peer.js', import.meta.url));
const ROUNDS = Number(process.env['WEFTLINE_TEST_DEREGISTER_ROUNDS'] ?? (isWhole ? 25 : 5));
/** Even, as every second round has memory of the other kind. */
const FEW_ROUNDS = isWhole ? 4 : 2;
const MiB = 1 << 20;
/** What the owner keeps in the memory once it has it back. */
const SECRET = 0x53;
const usual = [
  [0, 256],
  [4096, 65_536],
  [MiB, MiB],
  [2 * MiB, 5 * MiB],
] as const;
const large = [...usual, [8 * MiB, 64 * MiB]] as const;
/** One round of so many moves much. */
const LARGE_EVERY = 9;

/** The bytes of a region, to be looked at after it was deregistered. */
function bytesOf(kind: 'allocated' | 'plain', agent: Agent, name: string, bytes: number) {
  return kind === 'allocated' ? allocated(agent, name, bytes) : plain(agent, name, bytes);
}

async function allocated(agent: Agent, name: string, count: number) {
  const registration = await agent.allocate(count, { name });
  const shared = registration.memory.shared?.memory as SharedMemory;
  const again = SharedMemory.open(shared.name, 'this process');
  return { registration, bytes: new Uint8Array(again.buffer()), [Symbol.dispose]: () => again[Symbol.dispose]() };
}

async function plain(agent: Agent, name: string, count: number) {
  const bytes = new Uint8Array(new SharedArrayBuffer(count));
  return { registration: await agent.register(bytes, { name }), bytes, [Symbol.dispose]: () => {} };
}

async function someTurns(most: number, random: () => number): Promise<void> {
  for (let turn = Math.floor(random() * most); turn > 0; turn -= 1) {
    await new Promise((resolve) => setImmediate(resolve));
  }
}

/** The peer goes on, but may be late on a busy machine. */
async function untilClosed(registration: Registration): Promise<void> {
  for (let attempt = 1; ; attempt += 1) {
    try {
      await registration.close();
      return;
    } catch (error) {
      assert.equal((error as WeftlineError).code, 'WL_TIMEOUT');
      assert.ok(attempt < 60, 'the peer goes on, and the memory is not given back');
    }
  }
}

/** Registers the tests. */
export async function testDeregister(configuration: AgentConfiguration): Promise<void> {
  const { name: title, backend, here, there } = configuration;
  const peerOptions = JSON.stringify({ ...there, backends: [backend] });
  const common = { ...here, backends: [backend], token: 'secret' };
  const skip = (await whyMissing(backend)) ?? false;

  test(`${title}: after deregister() a peer changes and reads nothing, in ${ROUNDS} rounds`, { skip }, async () => {
    const random = seededRandom(seed + 11);
    await using owner = await Agent.create('owner', common);
    const child = fork(script, [peerOptions], { serialization: 'advanced' });
    try {
      await nextMessage<DeregisterNews>(child);
      for (let round = 0; round < ROUNDS; round += 1) {
        const name = `region ${round}`;
        const places = round % LARGE_EVERY === 0 ? large : usual;
        const count = Math.max(...places.map(([offset, length]) => offset + length));
        using memory = await bytesOf(round % 2 === 0 ? 'allocated' : 'plain', owner, name, count);
        const { registration, bytes } = memory;
        const order: DeregisterRound = { blob: owner.localMetadata(), name, secret: SECRET, places };
        child.send(order);
        assert.equal((await nextMessage<DeregisterNews>(child)).is, 'busy');
        await someTurns(200, random);
        await registration.close();
        bytes.fill(SECRET);
        const news = await nextMessage<DeregisterNews>(child);
        assert.ok(news.is === 'over');
        const changed = Buffer.alloc(count, SECRET).equals(bytes) ? -1 : bytes.findIndex((byte) => byte !== SECRET);
        assert.equal(
          changed,
          -1,
          `round ${round}: the peer wrote at ${changed} (its errors: ${news.codes.join(', ')})`,
        );
        assert.ok(!news.hasSecret, `round ${round}: the peer read what was written after deregister()`);
        for (const code of news.codes) assert.match(code, /^WL_(UNAUTHORIZED|PEER_FAILED)$/);
      }
    } finally {
      child.kill('SIGKILL');
    }
  });

  test(`${title}: after close() a peer changes and reads nothing`, { skip }, async () => {
    const random = seededRandom(seed + 12);
    const child = fork(script, [peerOptions], { serialization: 'advanced' });
    try {
      await nextMessage(child);
      for (let round = 0; round < FEW_ROUNDS; round += 1) {
        const owner = await Agent.create('owner', common);
        const name = `region ${round}`;
        using memory = await bytesOf(round % 2 === 0 ? 'allocated' : 'plain', owner, name, 7 * MiB);
        const { bytes } = memory;
        child.send({ blob: owner.localMetadata(), name, secret: SECRET, places: usual } satisfies DeregisterRound);
        assert.equal((await nextMessage<DeregisterNews>(child)).is, 'busy');
        await someTurns(100, random);
        await owner.close();
        bytes.fill(SECRET);
        const news = await nextMessage<DeregisterNews>(child);
        assert.ok(news.is === 'over' && !news.hasSecret);
        assert.ok(Buffer.alloc(bytes.length, SECRET).equals(bytes), `round ${round}: the peer wrote after close()`);
      }
    } finally {
      child.kill('SIGKILL');
    }
  });

  test(`${title}: a peer that stands still holds deregister() up until its deadline at most`, { skip }, async () => {
    const random = seededRandom(seed + 14);
    const settings = { timeoutMs: 2_000 };
    await using owner = await Agent.create('owner', { ...common, settings });
    const child = fork(script, [peerOptions], { serialization: 'advanced' });
    try {
      await nextMessage(child);
      for (let round = 0; round < FEW_ROUNDS; round += 1) {
        const name = `region ${round}`;
        using memory = await bytesOf(round % 2 === 0 ? 'allocated' : 'plain', owner, name, 7 * MiB);
        const { registration, bytes } = memory;
        child.send({ blob: owner.localMetadata(), name, secret: SECRET, places: usual } satisfies DeregisterRound);
        assert.equal((await nextMessage<DeregisterNews>(child)).is, 'busy');
        await someTurns(100, random);
        child.kill('SIGSTOP');
        try {
          await registration.close();
        } catch (error) {
          assert.equal((error as WeftlineError).code, 'WL_TIMEOUT');
        } finally {
          child.kill('SIGCONT');
        }
        await untilClosed(registration);
        bytes.fill(SECRET);
        const news = await nextMessage<DeregisterNews>(child);
        assert.ok(news.is === 'over' && !news.hasSecret);
        assert.ok(
          Buffer.alloc(bytes.length, SECRET).equals(bytes),
          `round ${round}: the peer wrote after deregister()`,
        );
      }
    } finally {
      child.kill('SIGKILL');
    }
  });

  test(`${title}: own reads write nothing after release() or deregister()`, { skip }, async () => {
    const random = seededRandom(seed + 13);
    const length = 24 * MiB;
    await using pair = await openPair(configuration, length);
    const { agent } = pair;
    const memory = agent.remoteMemory('there').find(({ name }) => name === 'plain');
    assert.ok(memory);
    const unchanged = Buffer.alloc(length, SECRET);
    const small = await agent.allocate(64);
    for (let round = 0; round < 2 * FEW_ROUNDS; round += 1) {
      const into = new Uint8Array(new SharedArrayBuffer(length));
      const back = await agent.register(into);
      const lists = { local: DescriptorList.of(back), remote: DescriptorList.of(memory) };
      const transfer = await agent.prepare({ operation: 'read', peer: 'there', ...lists });
      transfer.post();
      await someTurns(20, random);
      if (round % 2 === 0) await transfer.close();
      else await back.close();
      into.fill(SECRET);
      const one = { local: DescriptorList.of(small), remote: DescriptorList.of(memory, 0, 64) };
      await using later = await agent.prepare({ operation: 'read', peer: 'there', ...one });
      for (let reads = 0; reads < 20; reads += 1) {
        later.post();
        await later.wait();
      }
      assert.ok(unchanged.equals(into), `round ${round}: the read went on`);
      await transfer.close();
      await back.close();
    }
  });
}
