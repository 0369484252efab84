// A Communicator of one rank: what it refuses, what it returns, and the order of its calls.
import assert from 'node:assert/strict';
import { EventEmitter, once } from 'node:events';
import test, { after } from 'node:test';
import { CpuDevice } from 'weftline';
import { Communicator } from 'weftline/collectives';
import { referenceReduction } from 'weftline/reference';
import { join } from 'weftline/world';
import type { CollectiveEngine } from '#lib/collectives/collective-call.js';
import { collectiveRegions } from '#lib/collectives/cpu/window-regions.js';
import { withCode } from '../../support/with-code.ts';

const world = await join({ environment: {} });
const device = await CpuDevice.create();
const other = await CpuDevice.create();
const communicator = await Communicator.create(world, device);
after(async () => {
  await communicator.close();
  await world.close();
});
const tensor = device.empty('f32', [8]);
const half = tensor.slice(0, 4);
const invalid = withCode('WL_INVALID_ARGUMENT');

test('a call that ends at once returns one and the same promise, with asyncFinish one with an event', async () => {
  assert.equal(communicator.allReduce({ output: tensor }), Communicator.done);
  assert.equal((await communicator.barrier()).event, undefined);
  const { event } = await communicator.barrier({ asyncFinish: true });
  assert.equal(event?.isDone(), true);
  event?.close();
  assert.deepEqual(communicator.routes, ['self']);
});

test('wrong arguments fail before anything moves', async () => {
  const gone = device.empty('f32', [8]);
  gone.close();
  const calls: Readonly<Record<string, () => Promise<unknown>>> = {
    'no tensor': () => communicator.allReduce({ output: [1] as never }),
    'a closed tensor': () => communicator.allReduce({ output: gone }),
    'another device': () => communicator.allReduce({ output: other.empty('f32', [8]) }),
    'another length': () => communicator.allReduce({ input: half, output: tensor }),
    'another dtype': () => communicator.allReduce({ input: device.empty('i32', [8]), output: tensor }),
    'a dtype that cannot be reduced': () => communicator.allReduce({ output: device.empty('f16', [8]) }),
    'an unknown reduction': () => communicator.allReduce({ output: tensor, op: 'product' as never }),
    'an unknown option': () => communicator.allReduce({ output: tensor, operation: 'max' } as never),
    'tensors that overlap': () => communicator.allReduce({ input: tensor.slice(1, 5), output: half }),
    'a root beyond the group': () => communicator.broadcast({ output: tensor, root: 1 }),
    'no root': () => communicator.reduce({ output: tensor } as never),
    'a time that no timer holds': () => communicator.barrier({ timeoutMs: Number.NaN }),
    'counts of other ranks': () =>
      communicator.allToAllv({ input: half, output: tensor.slice(4, 8), sendCounts: [1, 1], recvCounts: [1, 1] }),
    'counts beyond the tensor': () =>
      communicator.allToAllv({ input: half, output: tensor.slice(4, 8), sendCounts: [5], recvCounts: [5] }),
    'an event that is none': () => communicator.barrier({ previousEvent: {} as never }),
    'an end without a group': () => communicator.groupEnd(),
    'a message to itself without its counterpart': () => communicator.send({ input: half, peer: 0 }),
  };
  for (const [name, call] of Object.entries(calls)) await assert.rejects(call(), invalid, name);
  assert.equal(communicator.allReduce({ output: tensor }), Communicator.done);
});

test('a signal that was aborted ends a call with its reason, and nothing else', async () => {
  const reason = new Error('enough');
  await assert.rejects(communicator.barrier({ signal: AbortSignal.abort(reason) }), reason);
  await communicator.barrier();
});

/** An event that passes, or fails, when told to. */
function heldEvent() {
  const gate = new EventEmitter();
  const passed = once(gate, 'pass').then(() => undefined);
  return {
    gate,
    event: { isDone: () => false, wait: () => passed, close: () => undefined, [Symbol.dispose]: () => undefined },
  };
}

test('what is called while an earlier call waits is checked at once and takes its turn', async () => {
  const held = heldEvent();
  const order: string[] = [];
  const note = (name: string) => () => void order.push(name);
  communicator.groupStart();
  const calls = [communicator.groupEnd({ previousEvent: held.event }).then(note('groupEnd'))];
  const wrong = communicator.broadcast({ output: tensor, root: 1 });
  calls.push(
    communicator.barrier().then(note('barrier')),
    communicator.allReduce({ output: tensor }).then(note('sum')),
  );
  await assert.rejects(wrong, invalid);
  communicator.groupStart();
  await assert.rejects(communicator.barrier(), invalid);
  calls.push(communicator.groupEnd().then(note('second groupEnd')));
  assert.deepEqual(order, []);
  held.gate.emit('pass');
  await Promise.all(calls);
  assert.deepEqual(order, ['groupEnd', 'barrier', 'sum', 'second groupEnd']);
  assert.equal(communicator.allReduce({ output: tensor }), Communicator.done);
});

test('what is posted while a call that had waited runs comes behind all that still wait, close() too', async () => {
  const window = await Communicator.create(world, device);
  const [first, second] = [heldEvent(), heldEvent()];
  const order: string[] = [];
  const note = (name: string) => () => void order.push(name);
  const calls = [
    window.barrier({ previousEvent: first.event }).then(note('first')),
    window.barrier({ previousEvent: second.event }).then(note('second')),
    window.allReduce({ output: tensor }).then(note('third')),
  ];
  first.gate.emit('pass');
  await calls[0];
  calls.push(window.allReduce({ output: tensor }).then(note('fourth')), window.close().then(note('close')));
  second.gate.emit('pass');
  await Promise.all(calls);
  assert.deepEqual(order, ['first', 'second', 'third', 'fourth', 'close']);
});

test('a call that waits takes options that its arguments inherit, and no tensor that was closed meanwhile', async () => {
  const held = heldEvent();
  const [source, target] = [device.empty('f32', [4]), device.empty('f32', [4])];
  source.view().fill(3);
  const before = communicator.barrier({ previousEvent: held.event });
  const inherited = communicator.allReduce(Object.create({ input: source, output: target }));
  const [sent, received] = [device.empty('f32', [4]), device.empty('f32', [4])];
  communicator.groupStart();
  void communicator.send({ input: sent, peer: 0 });
  void communicator.recv({ output: received, peer: 0 });
  const refused = assert.rejects(communicator.groupEnd(), withCode('WL_INVALID_ARGUMENT', /input.*closed/));
  sent.close();
  held.gate.emit('pass');
  await Promise.all([before, inherited, refused]);
  assert.deepEqual(new Set(target.view()), new Set([3]));
});

test('where calls are enqueued when they are posted, none waits: behind register() they are refused', async () => {
  const gate = new EventEmitter();
  const enqueued: string[] = [];
  const engine: CollectiveEngine = {
    guardLaunches: () => undefined,
    routes: ['self'],
    ordersCalls: true,
    lastEvent: undefined,
    throwIfUnusable: () => undefined,
    run: ({ kind }) => void enqueued.push(kind),
    exchange: () => void enqueued.push('messages'),
    register: () => once(gate, 'registered').then(() => undefined),
    close: () => Promise.resolve(),
  };
  await using pretended = Reflect.construct(Communicator, [world, device, engine]) as Communicator;
  const exchange = (): Promise<unknown> => {
    pretended.groupStart();
    return pretended.groupEnd();
  };
  const calls = Array.from({ length: 40 }, (_, at) => (at % 2 === 0 ? exchange() : pretended.barrier()));
  assert.deepEqual(enqueued.splice(0), Array.from({ length: 20 }, () => ['messages', 'barrier']).flat());
  await Promise.all(calls);
  const registered = pretended.register(tensor);
  const refused = withCode('WL_INVALID_ARGUMENT', /register has not ended; await it first/);
  await assert.rejects(pretended.barrier(), refused);
  await assert.rejects(exchange(), refused);
  gate.emit('registered');
  await registered;
  await pretended.barrier();
  assert.deepEqual(enqueued, ['barrier']);
});

test('calls that wait for one that fails end with its error, and later ones go on', async () => {
  const held = heldEvent();
  const calls = [communicator.barrier({ previousEvent: held.event }), communicator.allReduce({ output: tensor })];
  const reason = new Error('enough');
  held.gate.emit('error', reason);
  for (const { reason: found } of (await Promise.allSettled(calls)) as PromiseRejectedResult[]) {
    assert.equal(found, reason);
  }
  await communicator.barrier();
});

test('a loop of calls that end at once lets timers run', async () => {
  const over = new AbortController();
  const timer = setTimeout(() => over.abort(), 20);
  const empty = device.empty('f32', [4]);
  for (let call = 0; call < 1e7 && !over.signal.aborted; call++) {
    await communicator.allReduce({ output: empty });
    if (call % 3 !== 0) continue;
    communicator.groupStart();
    await communicator.groupEnd();
  }
  clearTimeout(timer);
  assert.ok(over.signal.aborted);
});

test('a group moves messages of a rank to itself in order, and takes no other calls', async () => {
  const source = await device.tensor('i32', [4], Int32Array.of(1, 2, 3, 4));
  const target = device.empty('i32', [4]);
  communicator.groupStart();
  communicator.groupStart();
  await communicator.recv({ output: target.slice(0, 3), peer: 0 });
  await communicator.recv({ output: target.slice(3, 4), peer: 0 });
  await communicator.groupEnd();
  await communicator.send({ input: source.slice(1, 4), peer: 0 });
  await communicator.send({ input: source.slice(0, 1), peer: 0 });
  await assert.rejects(communicator.barrier(), invalid);
  await communicator.groupEnd();
  assert.deepEqual([...target.view()], [2, 3, 4, 1]);
});

test('after close() every call fails with WL_CLOSED', async () => {
  const closed = await Communicator.create(world, device);
  await closed.close();
  await closed.close();
  await assert.rejects(closed.barrier(), withCode('WL_CLOSED'));
  assert.throws(() => closed.groupStart(), withCode('WL_CLOSED'));
});

test('pieceBytes is a multiple of 64 within its range', async () => {
  for (const pieceBytes of [0, 65_535, 65_600.5, 1 << 25]) {
    await assert.rejects(Communicator.create(world, device, { pieceBytes }), invalid);
  }
});

test('windows of many ranks stay small', () => {
  assert.ok(collectiveRegions(8, 1 << 19).bytes < 4 << 20);
  assert.ok(collectiveRegions(256, 65_536).bytes < 6 << 20);
});

test('referenceReduction() refuses what it cannot reduce', () => {
  const run = Float32Array.of(1, 2);
  for (const [words, ...args] of [
    [/dtype: expected one of f32, bf16, i32/, 'f16', 'sum', [run]],
    [/op: expected one of sum, max, min/, 'f32', 'toString', [run]],
    [/runs: expected an array of one run or more/, 'f32', 'sum', []],
    [/runs\[1\]: expected a Float32Array/, 'f32', 'sum', [run, [1, 2]]],
    [/runs\[1\]\.length: expected 2, as of the first run, got 1/, 'f32', 'sum', [run, run.subarray(1)]],
  ] as const) {
    assert.throws(
      () => referenceReduction(...(args as never as [never, never, never])),
      withCode('WL_INVALID_ARGUMENT', words),
    );
  }
});

test('referenceReduction() computes in the order of the runs and rounds bf16 once', () => {
  const runs = [2 ** 24, 1, 1].map((value) => Float32Array.of(value));
  assert.deepEqual([...referenceReduction('f32', 'sum', runs)], [2 ** 24]);
  const ones = [0x4380, 0x3f80, 0x3f80].map((bits) => Uint16Array.of(bits));
  assert.deepEqual([...referenceReduction('bf16', 'sum', ones)], [0x4381]);
  assert.deepEqual([...referenceReduction('i32', 'sum', [Int32Array.of(2 ** 31 - 1), Int32Array.of(1)])], [-(2 ** 31)]);
});
