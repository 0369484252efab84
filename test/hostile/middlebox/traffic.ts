// One of two processes that exchange known bytes through a bad network: by a transport, or by an agent over it.
// Arguments: the host, then JSON of what is to be done. Both derive from the seed what comes when.
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { setTimeout as sleep } from 'node:timers/promises';
import { type Settings } from 'weftline';
import { Agent, DescriptorList } from 'weftline/agent';
import { type Connection, type MemoryRegion, type RequestHandle, Transport } from 'weftline/transport';
import { Random } from '../fuzz/random.ts';
import { addresses, type Host } from './two-hosts.ts';
import { encodeError } from '#lib/core/errors.js';

export interface Traffic {
  readonly kind: 'transport' | 'agent';
  readonly seed: number;
  readonly rounds: number;
  readonly settings: Partial<Settings>;
}

/** What a process tells when it is through. */
export interface TrafficResult {
  readonly bytes: number;
  readonly drops: Readonly<Record<string, number>>;
  readonly retransmitted: number;
}

const host = process.argv[2] as Host;
const { kind, seed, rounds, settings } = JSON.parse(process.argv[3] ?? '') as Traffic;
const SLOT_BYTES = 300_000;
const SLOTS = 4;
const common = { token: 'a token of both hosts', settings } as const;
const random = new Random(seed);
const sizes = Array.from({ length: rounds }, () => Math.floor(random.next() ** 3 * SLOT_BYTES));

/** Byte `at` of round `round`, from either side. */
function fill(bytes: Uint8Array, round: number): Uint8Array {
  let word = Math.imul(round + 1, 0x9e37_79b9) ^ seed;
  for (let at = 0; at < bytes.length; at++) {
    word = (Math.imul(word, 1_664_525) + 1_013_904_223) | 0;
    bytes[at] = word >>> 24;
  }
  return bytes;
}

function check(bytes: Uint8Array, round: number): void {
  const isRight = Buffer.compare(bytes, fill(new Uint8Array(bytes.length), round)) === 0;
  assert.ok(isRight, `round ${round}: the ${bytes.length} bytes that came are others than those that were sent`);
}

async function told<T>(): Promise<T> {
  return ((await once(process, 'message')) as [T])[0];
}

function tell(words: unknown): void {
  process.send?.(words);
}

interface Meeting {
  readonly port: number;
  readonly name: MemoryRegion['remote'];
}

async function runTransport(): Promise<TrafficResult> {
  await using transport = await Transport.create({ ...common, name: host });
  // The last place is for what is written: the other side may not have checked its last messages by then.
  const memory = await transport.register(new Uint8Array(new SharedArrayBuffer((SLOTS + 1) * SLOT_BYTES)), {
    read: true,
    write: true,
  });
  const slot = (round: number): Uint8Array =>
    memory.bytes.subarray(offsetOf(round), offsetOf(round) + (sizes[round] ?? 0));
  let connection: Connection;
  let peer: Meeting | undefined;
  if (host === 'there') {
    using listener = await transport.listen({ host: addresses.there, port: 0 });
    tell({ port: listener.port, name: memory.remote } satisfies Meeting);
    connection = await listener.accept({ timeoutMs: 120_000 });
  } else {
    peer = await told<Meeting>();
    connection = await transport.connect({ host: addresses.there, port: peer.port }, { timeoutMs: 120_000 });
  }
  // Messages, in both directions by turns; several are under way.
  const open: { readonly request: RequestHandle; readonly round: number; readonly isReceive: boolean }[] = [];
  const settle = async (): Promise<void> => {
    const first = open.shift();
    if (first === undefined) return;
    await transport.wait(first.request);
    if (first.isReceive) check(slot(first.round), first.round);
  };
  for (const [round, bytes] of sizes.entries()) {
    if (open.length === SLOTS) await settle();
    const part = { region: memory, offset: offsetOf(round), bytes };
    const isReceive = (round % 2 === 0) === (host === 'there');
    if (!isReceive) fill(slot(round), round);
    open.push({ request: isReceive ? connection.receive(part) : connection.send(part), round, isReceive });
  }
  while (open.length > 0) await settle();
  // One side writes to the other, then reads it back.
  if (peer !== undefined) {
    const bytes = SLOT_BYTES - 3;
    fill(memory.bytes.subarray(0, bytes), rounds);
    await transport.wait(connection.write({ region: memory, bytes, ...peer.name, remoteOffset: SLOTS * SLOT_BYTES }));
    const back = { region: memory, offset: SLOT_BYTES, bytes };
    await transport.wait(connection.read({ ...back, ...peer.name, remoteOffset: SLOTS * SLOT_BYTES }));
    check(memory.bytes.subarray(SLOT_BYTES, SLOT_BYTES + bytes), rounds);
    await transport.wait(connection.send({ region: memory, bytes: 1 }));
  } else await transport.wait(connection.receive({ region: memory, bytes: 1 }));
  const { drops, connection: counts } = await connection.statistics();
  // The other side may still wait for an acknowledgement that was lost.
  tell('through');
  await told();
  const whole = sizes.reduce((sum, size) => sum + size, 0);
  return { bytes: whole, drops: { ...drops }, retransmitted: counts.retransmittedSegments };
}

function offsetOf(round: number): number {
  return (round % SLOTS) * SLOT_BYTES;
}

async function runAgent(): Promise<TrafficResult> {
  await using agent = await Agent.create(host, { ...common, host: addresses[host], backends: ['multipath'] });
  const memory = await agent.allocate(SLOTS * SLOT_BYTES, { name: 'memory' });
  tell(agent.localMetadata());
  const peer = await agent.loadRemoteMetadata(await told<Uint8Array>());
  const [remote] = agent.remoteMemory(peer);
  assert.ok(remote !== undefined);
  let bytes = 0;
  for (const [round, size] of sizes.entries()) {
    const offset = offsetOf(round);
    if (host === 'here') {
      // Blocks of one side go to the other in another order; the message comes behind them.
      const count = 1 + (size % 40);
      const blockBytes = Math.floor(size / count / 8) * 8 + 8;
      const options = { blockBytes, count, offset };
      const order = Array.from({ length: count }, (_, index) => (index * 7) % count).filter(
        (value, index, all) => all.indexOf(value) === index,
      );
      fill(memory.bytes.subarray(offset, offset + blockBytes * count), round);
      await using transfer = await agent.prepare({
        operation: 'write',
        peer,
        local: DescriptorList.blocks(memory, options).select(order),
        remote: DescriptorList.blocks(remote, options).select(order),
      });
      transfer.post(Buffer.from(JSON.stringify({ round, blockBytes, order })));
      await transfer.wait();
      bytes += blockBytes * order.length;
      const { message } = await agent.nextNotification();
      assert.equal(Buffer.from(message).toString(), `round ${round}`);
    } else {
      const { message } = await agent.nextNotification();
      const said = JSON.parse(Buffer.from(message).toString()) as {
        round: number;
        blockBytes: number;
        order: number[];
      };
      assert.equal(said.round, round);
      const expected = fill(new Uint8Array(said.blockBytes * (Math.max(...said.order) + 1)), round);
      for (const block of said.order) {
        const [from, to] = [block * said.blockBytes, (block + 1) * said.blockBytes];
        const isRight = Buffer.compare(memory.bytes.subarray(offset + from, offset + to), expected.subarray(from, to));
        assert.equal(isRight, 0, `round ${round}: block ${block} of ${said.blockBytes} bytes is wrong`);
        bytes += said.blockBytes;
      }
      await agent.notify(peer, Buffer.from(`round ${round}`));
    }
  }
  tell('through');
  await told();
  return { bytes, drops: {}, retransmitted: 0 };
}

try {
  const result = await (kind === 'transport' ? runTransport() : runAgent());
  tell({ result });
} catch (error) {
  tell({ error: encodeError(error) });
  // The channel sends it before it is closed.
  await sleep(100);
  process.exitCode = 1;
}
process.disconnect();
