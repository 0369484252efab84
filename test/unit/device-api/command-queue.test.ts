// The command queue: every part of a command survives its 16 bytes, slots come back when delivered, failures are told.
import assert from 'node:assert/strict';
import test from 'node:test';
import fc from '../../support/fast-check.ts';
import { queueCommandKinds, MAX_COMMAND_BYTES, MAX_COMMAND_OFFSET } from '#lib/abi/device-api.js';
import { WeftlineError } from 'weftline';
import {
  CommandReader,
  CommandWriter,
  decodeCommand,
  emptyQueueCommand,
  encodeCommand,
  queueBytes,
  type QueueCommand,
} from '#lib/device-api/service/command-queue.js';
import { CpuKernelApi } from '#lib/device-api/host/cpu-kernel-api.js';
import { type CommandRoute, CommandServer } from '#lib/device-api/service/command-server.js';

const offset = fc.oneof(
  fc.constantFrom(0, 1, 2 ** 31 - 1, 2 ** 31, 2 ** 32 - 1, 2 ** 32, MAX_COMMAND_OFFSET - 1),
  fc.integer({ min: 0, max: MAX_COMMAND_OFFSET - 1 }),
);
const common = { request: fc.nat(4095), remote: fc.nat(63), target: offset, isDeferred: fc.boolean() };
const put = fc.record({
  ...common,
  kind: fc.constant<number>(queueCommandKinds.put),
  source: offset,
  bytes: fc.oneof(
    fc.constantFrom(0, 2 ** 32, MAX_COMMAND_BYTES - 1),
    fc.integer({ min: 0, max: MAX_COMMAND_BYTES - 1 }),
  ),
  low: fc.constant(0),
  high: fc.constant(0),
});
const half = fc.oneof(fc.constantFrom(0, 1, 2 ** 31, 2 ** 32 - 1), fc.nat(2 ** 32 - 1));
const numbered = fc.record({
  ...common,
  kind: fc.constantFrom<number>(queueCommandKinds.signal, queueCommandKinds.store, queueCommandKinds.set),
  source: fc.constant(0),
  bytes: fc.constant(0),
  low: half,
  high: half,
});

test('a command survives its slot, and a slot of the other phase holds none', () => {
  const words = new Uint32Array(8);
  fc.assert(
    fc.property(fc.oneof(put, numbered), fc.constantFrom(0, 1), (command, phase) => {
      encodeCommand(words, 4, phase, command);
      const seen = emptyQueueCommand();
      assert.equal(decodeCommand(words, 4, phase ^ 1, seen), false);
      assert.equal(decodeCommand(words, 4, phase, seen), true);
      assert.deepEqual(seen, { ...command });
    }),
  );
});

function makeQueue(capacity: number): { reader: CommandReader; writer: CommandWriter } {
  const memory = { buffer: new SharedArrayBuffer(queueBytes(capacity)), byteOffset: 0, capacity };
  return { reader: new CommandReader(memory), writer: new CommandWriter(memory) };
}

function signalOf(request: number, add: number): QueueCommand {
  return { ...emptyQueueCommand(), kind: queueCommandKinds.signal, request, low: add };
}

test('a slot is free when its command is delivered, not when it was taken', () => {
  const { reader, writer } = makeQueue(4);
  const command = emptyQueueCommand();
  for (let number = 0; number < 4; number += 1) assert.ok(writer.push(signalOf(0, number)));
  assert.equal(writer.push(signalOf(0, 4)), false);
  for (let number = 0; number < 4; number += 1) {
    assert.ok(reader.take(command));
    assert.equal(command.low, number);
  }
  assert.equal(reader.take(command), false);
  assert.equal(writer.push(signalOf(0, 4)), false);
  reader.deliver(1);
  assert.ok(writer.push(signalOf(0, 4)));
  assert.equal(writer.isDelivered(1), true);
  assert.equal(writer.isDelivered(2), false);
  assert.ok(reader.take(command));
  assert.equal(command.low, 4);
});

/** A peer that remembers what it is told and delivers when the test says so. */
class PretendedPeer implements CommandRoute {
  readonly channel = { posted: 0, delivered: 0, error: undefined as WeftlineError | undefined };
  readonly log: string[] = [];
  room = Number.POSITIVE_INFINITY;
  /** What puts throw. */
  refusal: string | undefined;

  put(source: number, target: number, bytes: number): boolean {
    if (this.refusal !== undefined) throw new WeftlineError('WL_UNAUTHORIZED', this.refusal);
    return this.#post(`put ${source} ${target} ${bytes}`);
  }

  signal(target: number, add: number): boolean {
    return this.#post(`signal ${target} ${add}`);
  }

  store(target: number, low: number, high: number): boolean {
    return this.#post(`store ${target} ${low} ${high}`);
  }

  set(target: number, low: number, high: number): boolean {
    return this.#post(`set ${target} ${low} ${high}`);
  }

  #post(what: string): boolean {
    if (this.channel.posted - this.channel.delivered >= this.room) return false;
    this.channel.posted += 1;
    this.log.push(what);
    return true;
  }
}

function serve(capacity: number, options: { readonly ignoresClosed?: boolean } = {}) {
  const queue = makeQueue(capacity);
  const [one, two] = [new PretendedPeer(), new PretendedPeer()];
  const failures: WeftlineError[] = [];
  const requests = [
    { peer: 'one', remotes: [one] },
    { peer: 'two', remotes: [two, two] },
  ];
  return {
    ...queue,
    one,
    two,
    failures,
    server: new CommandServer(queue.reader, requests, { ...options, onFailure: (e) => failures.push(e) }),
  };
}

test('commands are counted in their order, whichever peer is faster', () => {
  const { writer, server, one, two } = serve(8);
  writer.push({ ...emptyQueueCommand(), kind: queueCommandKinds.put, source: 8, target: 16, bytes: 24 });
  writer.push(signalOf(1, 5));
  writer.push(signalOf(0, 6));
  assert.ok(server.step());
  assert.deepEqual([one.log, two.log], [['put 8 16 24', 'signal 0 6'], ['signal 0 5']]);
  two.channel.delivered = 1;
  assert.equal(server.step(), false);
  assert.equal(writer.isDelivered(1), false);
  one.channel.delivered = 1;
  assert.ok(server.step());
  assert.deepEqual(
    [1, 2, 3].map((count) => writer.isDelivered(count)),
    [true, true, false],
  );
});

test('a peer without room holds its command back, and nothing is lost over many laps', () => {
  const { writer, server, one } = serve(4);
  one.room = 2;
  let pushed = 0;
  for (let turn = 0; turn < 1000; turn += 1) {
    while (writer.push(signalOf(0, pushed))) pushed += 1;
    server.step();
    if (turn % 3 === 0) one.channel.delivered = one.channel.posted;
  }
  assert.ok(pushed > 600, `${pushed} pushed`);
  assert.deepEqual(
    one.log,
    Array.from({ length: one.log.length }, (_, number) => `signal 0 ${number}`),
  );
});

test('when a peer is lost its commands end as failed, which the device sees, and the others go on', () => {
  const { writer, server, one, two, failures } = serve(8);
  writer.push(signalOf(1, 1));
  writer.push(signalOf(0, 2));
  server.step();
  two.channel.error = new WeftlineError('WL_PEER_LOST', 'two is gone');
  one.channel.delivered = 1;
  assert.ok(server.step());
  assert.deepEqual(
    failures.map((error) => error.message),
    ['two is gone'],
  );
  assert.equal(writer.depth, 0);
  assert.throws(() => writer.isDelivered(2), { code: 'WL_PEER_FAILED', message: /request 1/ });
  writer.push(signalOf(1, 3));
  two.channel.delivered = two.channel.posted;
  assert.ok(server.step());
  assert.equal(two.log.length, 1, 'nothing is posted to a lost peer');
});

test('what a peer that has closed its side did not take counts as delivered, where that is wanted', () => {
  for (const [code, fails] of [
    ['WL_CLOSED', false],
    ['WL_PEER_LOST', true],
  ] as const) {
    const { writer, server, two, failures } = serve(8, { ignoresClosed: true });
    writer.push(signalOf(1, 1));
    server.step();
    assert.ok(!server.isIdle);
    two.channel.error = new WeftlineError(code, 'two has ended');
    writer.push(signalOf(1, 2));
    server.step();
    assert.ok(server.isIdle);
    assert.deepEqual(failures, [two.channel.error, two.channel.error], 'told all the same');
    if (fails) assert.throws(() => writer.isDelivered(2), { code: 'WL_PEER_FAILED' });
    else assert.ok(writer.isDelivered(2));
  }
});

test('a command that names no request fails alone', () => {
  const { writer, server, one, failures } = serve(8);
  writer.push(signalOf(77, 1));
  writer.push(signalOf(0, 1));
  server.step();
  one.channel.delivered = 1;
  server.step();
  assert.equal(writer.depth, 0);
  assert.match(failures[0]?.message ?? '', /request 77, remote range 0/);
});

test('no signal tells of bytes that were refused, until the failure was told', () => {
  const { writer, server, one, two, failures } = serve(8);
  one.refusal = 'the memory is gone';
  for (let turn = 0; turn < 2; turn += 1)
    writer.push({ ...emptyQueueCommand(), kind: queueCommandKinds.put, bytes: 8 });
  writer.push(signalOf(0, 1));
  writer.push({ ...signalOf(0, 1), kind: queueCommandKinds.set });
  writer.push(signalOf(1, 2));
  server.step();
  assert.deepEqual([one.log, two.log], [[], ['signal 0 2']]);
  assert.deepEqual(
    failures.map((error) => error.message),
    ['the memory is gone'],
    'told once',
  );
  two.channel.delivered = 1;
  server.step();
  assert.equal(writer.depth, 0);
  assert.throws(() => writer.isDelivered(5), { code: 'WL_PEER_FAILED', message: /request 0/ });
  writer.forgetFailure();
  writer.push(signalOf(0, 3));
  server.step();
  assert.deepEqual(one.log, ['signal 0 3']);
});

function deferred(add: number): QueueCommand {
  return { ...signalOf(0, add), isDeferred: true };
}

test('deferred commands stay until one that is not follows, and go with it in their order', () => {
  const { writer, server, one } = serve(8);
  for (const add of [1, 2]) writer.push(deferred(add));
  for (let turn = 0; turn < 3; turn += 1) assert.equal(server.step(), false);
  assert.deepEqual(one.log, []);
  writer.push(signalOf(0, 3));
  writer.push(deferred(4));
  assert.ok(server.step());
  assert.deepEqual(one.log, ['signal 0 1', 'signal 0 2', 'signal 0 3']);
  one.channel.delivered = 3;
  assert.ok(server.step());
  assert.equal(server.step(), false);
  assert.equal(writer.isDelivered(3), true);
  assert.equal(writer.isDelivered(4), false);
});

test('a ring that is full of deferred commands goes, over many laps, and nothing is lost', () => {
  const { writer, server, one } = serve(4);
  let pushed = 0;
  for (let turn = 0; turn < 50; turn += 1) {
    while (writer.push(deferred(pushed))) pushed += 1;
    assert.ok(server.step());
    assert.equal(one.log.length, pushed);
    one.channel.delivered = one.channel.posted;
    server.step();
  }
  assert.deepEqual(
    one.log,
    Array.from({ length: pushed }, (_, number) => `signal 0 ${number}`),
  );
});

test('deferred commands go when they leave no room for a push of two, which waits before it writes either', () => {
  for (const capacity of [2, 4, 8]) {
    const { writer, server, one } = serve(capacity);
    let pushed = 0;
    for (let turn = 0; turn < 20; turn += 1) {
      for (let free = capacity; free > 1; free -= 1) assert.ok(writer.push(deferred(pushed++)));
      assert.ok(server.step());
      assert.equal(one.log.length, pushed, `a ring of ${capacity}, turn ${turn}`);
      one.channel.delivered = one.channel.posted;
      server.step();
      assert.equal(writer.depth, 0);
    }
  }
});

test('a room that is missing holds deferred commands back without changing their order', () => {
  fc.assert(
    fc.property(fc.array(fc.boolean(), { maxLength: 60 }), fc.integer({ min: 1, max: 5 }), (kinds, room) => {
      const { writer, server, one } = serve(8);
      one.room = room;
      let number = 0;
      const expected = kinds.map((_, index) => `signal 0 ${index}`);
      for (let turn = 0; one.log.length < kinds.lastIndexOf(false) + 1 || number < kinds.length; turn += 1) {
        assert.ok(turn < 1000, `${one.log.length} of ${kinds.length} went`);
        while (number < kinds.length && writer.push({ ...signalOf(0, number), isDeferred: kinds[number]! }))
          number += 1;
        server.step();
        if (turn % 2 === 1) one.channel.delivered = one.channel.posted;
      }
      assert.deepEqual(one.log, expected.slice(0, one.log.length));
    }),
  );
});

/** Kernels of the CPU whose one request goes between so many bytes, and their queue, which nobody serves yet. */
function makeApi(bytes: number, timeoutMs = 120_000) {
  const queue = { buffer: new SharedArrayBuffer(queueBytes(4)), byteOffset: 0, capacity: 4 };
  const shape = { number: 0, peer: 0, inlines: false, local: { address: 0, bytes }, remotes: [{ direct: 0, bytes }] };
  const api = new CpuKernelApi({
    agent: 'one',
    queues: [queue],
    timeoutMs,
    requests: [shape],
    peerName: () => 'two',
    failure: () => undefined,
    wake: () => {},
  });
  return { api, queue };
}

test('what a command cannot hold is refused, and nothing is pushed', () => {
  const { api, queue } = makeApi(2 ** 35);
  const wrong = { code: 'WL_INVALID_ARGUMENT' };
  assert.throws(() => api.put(0, { target: 0, source: 0, bytes: MAX_COMMAND_BYTES }), wrong);
  for (const add of [-1, 1.5, 2 ** 53, Number.NaN]) {
    assert.throws(() => api.signal(0, { target: 0, add }), wrong);
    assert.throws(() => api.putWord(0, { target: 0, value: 1n, epoch: add }), wrong);
  }
  assert.equal(new CommandReader(queue).take(emptyQueueCommand()), false);
  api.put(0, { target: 0, source: 0, bytes: MAX_COMMAND_BYTES - 1 });
  api.signal(0, { target: 0, add: Number.MAX_SAFE_INTEGER });
});

test('a wait whose host is closed ends before it looks again', async () => {
  const { api } = makeApi(64);
  const looks = { count: 0 };
  const counter = new BigUint64Array(1);
  api.readSignal = () => {
    looks.count += 1;
    return 0;
  };
  const waiting = api.wait(counter, 1);
  const before = looks.count;
  api.close();
  await assert.rejects(waiting, { code: 'WL_CLOSED' });
  assert.equal(looks.count, before);
  assert.throws(() => api.signal(0, { target: 0, add: 1 }), { code: 'WL_CLOSED' });
});

test('what is deferred goes with a flush', async () => {
  const { api, queue } = makeApi(64);
  const two = new PretendedPeer();
  const server = new CommandServer(new CommandReader(queue), [{ peer: 'two', remotes: [two] }], {
    onFailure: assert.fail,
  });
  api.put(0, { target: 0, source: 8, bytes: 16 }, { isDeferred: true });
  assert.equal(server.step(), false);
  const flushed = api.flush(0);
  assert.ok(server.step());
  assert.deepEqual(two.log, ['put 8 0 16', 'put 0 0 0']);
  two.channel.delivered = two.channel.posted;
  server.step();
  await flushed;
});

test('a push that finds no room until its deadline leaves no trace: the queue goes on when the host does', () => {
  const { api, queue } = makeApi(64, 20);
  const two = new PretendedPeer();
  const server = new CommandServer(new CommandReader(queue), [{ peer: 'two', remotes: [two] }], {
    onFailure: assert.fail,
  });
  for (let turn = 0; turn < 3; turn += 1) {
    for (let add = 0; add < 4; add += 1) api.signal(0, { target: 8, add });
    assert.throws(() => api.signal(0, { target: 8, add: 99 }), {
      code: 'WL_TIMEOUT',
      message: /room in its queue of 4/,
    });
    two.channel.delivered += 4;
    server.step();
    two.channel.delivered = two.channel.posted;
    server.step();
  }
  api.putWord(0, { target: 16, value: -2n, epoch: 2 ** 33 });
  server.step();
  const round = [0, 1, 2, 3].map((add) => `signal 8 ${add}`);
  assert.deepEqual(two.log, [...round, ...round, ...round, 'store 16 4294967294 4294967295', 'set 24 0 2']);
});
