// What a connection between two transports promises, whatever carries its packets: sizes, order, signals behind data,
// back-pressure, refusals. Both ends are in this process.
import assert from 'node:assert/strict';
import type { Settings } from 'weftline';
import { type Connection, type MemoryRegion, Transport } from 'weftline/transport';

export interface TransportPair extends AsyncDisposable {
  readonly near: Transport;
  readonly far: Transport;
  /** The end of `near`, and that of `far`. */
  readonly here: Connection;
  readonly there: Connection;
}

export interface SettingsOfTwo {
  readonly near?: Partial<Settings>;
  readonly far?: Partial<Settings>;
}

const CONNECT_MS = 120_000;

export async function openPair(
  shared: Partial<Settings>,
  { near: ofNear, far: ofFar }: SettingsOfTwo = {},
): Promise<TransportPair> {
  const near = await Transport.create({ name: 'near', settings: { ...shared, ...ofNear } });
  const far = await Transport.create({ name: 'far', settings: { ...shared, ...ofFar } });
  const close = async (): Promise<void> => {
    await near.close();
    await far.close();
  };
  try {
    using listener = await far.listen({ host: '127.0.0.1', port: 0 });
    const [there, here] = await Promise.all([
      listener.accept({ timeoutMs: CONNECT_MS }),
      near.connect({ host: '127.0.0.1', port: listener.port }, { timeoutMs: CONNECT_MS }),
    ]);
    return { near, far, here, there, [Symbol.asyncDispose]: close };
  } catch (error) {
    await close();
    throw error;
  }
}

export function memoryOf(transport: Transport, bytes: number): Promise<MemoryRegion> {
  return transport.register(new Uint8Array(new SharedArrayBuffer(bytes)), { read: true, write: true });
}

export function fillPattern(bytes: Uint8Array, seed: number): void {
  let state = seed * 2_654_435_761 + 1;
  for (let index = 0; index < bytes.length; index += 1) {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) | 0;
    bytes[index] = state >>> 24;
  }
}

export function haveSame(one: Uint8Array, other: Uint8Array): void {
  assert.ok(Buffer.compare(one, other) === 0, `${one.length} bytes differ`);
}

async function everySize({ near, far, here, there }: TransportPair): Promise<void> {
  const most = 600_000;
  const out = await memoryOf(near, most);
  const back = await memoryOf(far, most + 4096);
  const payload = here.segmentBytes - 64;
  fillPattern(out.bytes, 7);
  for (const bytes of [0, 1, 2, 63, 64, 65, payload - 1, payload, payload + 1, 3 * payload, 100_003, most]) {
    const offset = bytes < 1000 ? 7 : 0;
    back.bytes.fill(0);
    const receive = there.receive({ region: back, offset });
    const send = here.send({ region: out, offset, bytes: Math.min(bytes, most - offset) });
    const [got] = await Promise.all([far.wait(receive), near.wait(send)]);
    assert.equal(got, bytes);
    haveSame(back.bytes.subarray(offset, offset + bytes), out.bytes.subarray(offset, offset + bytes));
    assert.ok(
      back.bytes.subarray(offset + bytes).every((byte) => byte === 0),
      'bytes behind the message',
    );
  }
}

async function orderAndBackPressure({ near, far, here, there }: TransportPair): Promise<void> {
  const count = 60;
  const most = 9000;
  const out = await memoryOf(near, most + count);
  const back = await memoryOf(far, count * most);
  fillPattern(out.bytes, 5);
  const sizeOf = (index: number): number => 2000 + ((index * 977) % (most - 2000));
  const sends = Array.from({ length: count }, (_, index) =>
    here.send({ region: out, offset: index, bytes: sizeOf(index), flow: index % 3 }),
  );
  // Nobody has offered memory for messages of this size: they wait.
  await new Promise((resolve) => setTimeout(resolve, 50));
  far.progress();
  near.progress();
  for (const send of sends) assert.equal(near.state(send), 'pending');
  const receives = Array.from({ length: count }, (_, index) =>
    there.receive({ region: back, offset: index * most, bytes: most, flow: index % 3 }),
  );
  const [got] = await Promise.all([
    Promise.all(receives.map((receive) => far.wait(receive))),
    Promise.all(sends.map((send) => near.wait(send))),
  ]);
  for (const [index, bytes] of got.entries()) {
    assert.equal(bytes, sizeOf(index));
    haveSame(back.bytes.subarray(index * most, index * most + bytes), out.bytes.subarray(index, index + bytes));
  }
}

async function signalsBehindData({ near, far, here }: TransportPair): Promise<void> {
  const source = await memoryOf(near, 100_000);
  const target = await memoryOf(far, 100_008);
  const cell = new BigInt64Array(target.bytes.buffer, target.bytes.byteOffset, 1);
  const rounds = 4;
  for (let round = 1; round <= rounds; round += 1) {
    fillPattern(source.bytes, round);
    const requests: number[] = [];
    for (let at = 0; at < 100_000; at += 5000) {
      requests.push(
        here.write({ region: source, offset: at, bytes: 5000, ...target.remote, remoteOffset: 8 + at, flow: 2 }),
      );
    }
    requests.push(here.signal({ ...target.remote, remoteOffset: 0, add: 3, flow: 2 }));
    // When the counter has moved, all bytes are there, whether this side knows it or not.
    const moved = async (): Promise<void> => {
      const until = performance.now() + 60_000;
      while (Atomics.load(cell, 0) !== BigInt(3 * round)) {
        assert.ok(performance.now() < until, 'the counter does not move');
        far.progress();
        await new Promise((resolve) => setImmediate(resolve));
      }
      haveSame(target.bytes.subarray(8), source.bytes);
    };
    await Promise.all([moved(), ...requests.map((request) => near.wait(request))]);
  }
  const copy = await memoryOf(near, 100_000);
  const reads = near.wait(here.read({ region: copy, ...target.remote, remoteOffset: 8 }));
  await driven(reads, far);
  haveSame(copy.bytes, source.bytes);
}

async function refusals({ near, far, here, there }: TransportPair): Promise<void> {
  const region = await memoryOf(near, 10_000);
  const target = await memoryOf(far, 1000);
  const { remote } = target;
  const fails = (request: number, code: string): Promise<void> =>
    driven(assert.rejects(near.wait(request), { code }), far);
  await fails(
    here.write({ region, bytes: 100, ...remote, remoteKey: (remote.remoteKey ^ 1) >>> 0, remoteOffset: 0 }),
    'WL_UNAUTHORIZED',
  );
  await fails(here.write({ region, bytes: 100, ...remote, remoteOffset: 990 }), 'WL_INVALID_ARGUMENT');
  await fails(here.send({ region, offset: 9990, bytes: 20 }), 'WL_INVALID_ARGUMENT');
  const small = there.receive({ region: target, bytes: 1000 });
  const large = here.send({ region, bytes: 10_000 });
  await Promise.all([
    assert.rejects(near.wait(large), { code: 'WL_CAPACITY' }),
    assert.rejects(far.wait(small), { code: 'WL_CAPACITY' }),
  ]);
  const unmet = here.send({ region, bytes: 10_000 });
  here.cancel(unmet);
  await assert.rejects(near.wait(unmet), { code: 'WL_CLOSED' });
  const held = here.send({ region, bytes: 10_000 });
  await region.close();
  await assert.rejects(near.wait(held), { code: 'WL_CLOSED' });
  assert.ok(target.bytes.every((byte) => byte === 0));
}

/** Memory that is given back while its bytes are on their way: the next use of it must not be seen by the peer. */
async function releasedOnTheWay({ near, far, here, there }: TransportPair): Promise<void> {
  const back = await memoryOf(far, 400_000);
  for (let round = 0; round < 5; round += 1) {
    const memory = new Uint8Array(new SharedArrayBuffer(400_000));
    const region = await near.register(memory);
    fillPattern(memory, round);
    const expected = memory.slice();
    const receive = there.receive({ region: back });
    const send = here.send({ region });
    const ends = { received: false };
    const got = far.wait(receive).then(
      () => (ends.received = true),
      () => {
        ends.received = true;
        return false;
      },
    );
    const sent = near.wait(send).then(
      () => true,
      () => false,
    );
    for (let turn = 0; turn < round * 3; turn += 1) {
      near.progress();
      far.progress();
      await new Promise((resolve) => setImmediate(resolve));
    }
    await region.close();
    memory.fill(0xff);
    // A message that was withdrawn before it met the receive leaves it pending.
    if (!(await driven(sent, far)) && !ends.received) there.cancel(receive);
    if (await driven(got, near)) haveSame(back.bytes, expected);
  }
}

/** Waits for what one side does, while the other, which may have no thread, works as well. */
export async function driven<T>(work: Promise<T>, other: Transport): Promise<T> {
  const state = { isOver: false };
  const ended = work.finally(() => (state.isOver = true));
  while (!state.isOver) {
    other.progress();
    await new Promise((resolve) => setImmediate(resolve));
  }
  return ended;
}

/** By what they show. Each leaves the connection as good as it found it. */
export const transportPromises: Readonly<Record<string, (pair: TransportPair) => Promise<void>>> = {
  'messages of every size come intact, and nothing behind them is touched': everySize,
  'messages of a flow keep their order, and wait for memory': orderAndBackPressure,
  'a signal comes behind the data of earlier writes, and reads bring it back': signalsBehindData,
  'what is not allowed is refused, and what is withdrawn ends': refusals,
  'memory that is released on the way is not read any more': releasedOnTheWay,
};
