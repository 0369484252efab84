// In the guest: messages, writes, reads and atomics over real queue pairs of each kind.
import assert from 'node:assert/strict';
import test from 'node:test';
import {
  completionFlag,
  completionOpcode,
  ROUTING_HEADER_BYTES,
  sendFlag,
  sendOpcode,
} from '#lib/native/verbs/c-structs.js';
import { AddressHandle, SharedReceiveQueue } from '#lib/native/verbs/queue-pair.js';
import { connectPair, doOne, fill, nextCompletions, QUEUE_KEY, Side } from './support/pair.ts';

const BYTES = 10_000;

function twoSides(): readonly [Side, Side] {
  return [new Side('rxe0'), new Side('rxe1')];
}

for (const service of ['rc', 'uc'] as const) {
  test(`${service}: messages arrive with their bytes, length and immediate`, () => {
    using a = new Side('rxe0');
    using b = new Side('rxe1');
    const [one, other] = connectPair(service, [a, b]);
    for (let round = 0; round < 4; round += 1) {
      fill(a.memory.bytes.subarray(0, BYTES), round);
      b.receive(other, 0, 65_536, 100 + round);
      const bytes = BYTES - round;
      const immediate = 0xdead_0000 + round;
      assert.equal(doOne(one, a, { opcode: sendOpcode.sendWithImmediate, bytes, immediate }), 0);
      assert.equal(nextCompletions(b.receiveCompletions), 1);
      const queue = b.receiveCompletions;
      assert.ok(queue.isSuccess(0));
      assert.deepEqual(
        [queue.opcodeAt(0), queue.bytesAt(0), queue.tagAt(0), queue.immediateAt(0), queue.queuePairAt(0)],
        [completionOpcode.receive, bytes, 100 + round, immediate, other.number],
      );
      assert.ok((queue.flagsAt(0) & completionFlag.immediate) !== 0);
      other.receives.done();
      assert.deepEqual(b.memory.bytes.subarray(0, bytes), a.memory.bytes.subarray(0, bytes));
    }
  });

  test(`${service}: writes, and a write with an immediate that takes a receive of the peer`, () => {
    using a = new Side('rxe0');
    using b = new Side('rxe1');
    const [one, other] = connectPair(service, [a, b]);
    fill(a.memory.bytes.subarray(0, BYTES), 3);
    const target = { remoteAddress: b.memory.address + 4096, remoteKey: b.region.remoteKey };
    assert.equal(doOne(one, a, { bytes: BYTES, ...target }), 0);
    b.receive(other, 0, 64, 9);
    const last = { opcode: sendOpcode.writeWithImmediate, bytes: 8, immediate: 0x0102_0304, from: BYTES };
    assert.equal(doOne(one, a, { ...last, ...target, remoteAddress: target.remoteAddress + BYTES }), 0);
    nextCompletions(b.receiveCompletions);
    assert.equal(b.receiveCompletions.opcodeAt(0), completionOpcode.receiveWriteWithImmediate);
    assert.equal(b.receiveCompletions.immediateAt(0), 0x0102_0304);
    assert.equal(b.receiveCompletions.bytesAt(0), 8);
    // The immediate comes after the write before it.
    assert.deepEqual(b.memory.bytes.subarray(4096, 4096 + BYTES), a.memory.bytes.subarray(0, BYTES));
  });
}

test('rc: a read takes the bytes of the peer, an atomic adds to them and brings the old value', () => {
  const [a, b] = twoSides();
  try {
    const [one] = connectPair('rc', [a, b]);
    fill(b.memory.bytes.subarray(0, BYTES), 5);
    const target = { remoteAddress: b.memory.address, remoteKey: b.region.remoteKey };
    assert.equal(doOne(one, a, { opcode: sendOpcode.read, bytes: BYTES, ...target }), 0);
    assert.deepEqual(a.memory.bytes.subarray(0, BYTES), b.memory.bytes.subarray(0, BYTES));

    const counter = new DataView(b.memory.bytes.buffer, b.memory.bytes.byteOffset + 16_384, 8);
    const old = new DataView(a.memory.bytes.buffer, a.memory.bytes.byteOffset, 8);
    counter.setBigUint64(0, 0xffff_ffffn, true);
    for (const [add, before, after] of [
      [3n, 0xffff_ffffn, 0x1_0000_0002n],
      [-4n, 0x1_0000_0002n, 0xffff_fffen],
    ] as const) {
      const bits = BigInt.asUintN(64, add);
      assert.ok(one.sends.start(sendOpcode.fetchAdd, sendFlag.signaled, 0));
      one.sends.add(a.memory.address, 8, a.region.localKey);
      one.sends.addend(b.memory.address + 16_384, b.region.remoteKey, Number(bits & 0xffff_ffffn), Number(bits >> 32n));
      one.sends.post();
      nextCompletions(a.completions);
      assert.ok(a.completions.isSuccess(0), a.completions.errorAt(0, 'the atomic').message);
      assert.equal(a.completions.opcodeAt(0), completionOpcode.fetchAdd);
      one.sends.doneUntil(a.completions.sequenceAt(0));
      assert.equal(old.getBigUint64(0, true), before);
      assert.equal(counter.getBigUint64(0, true), after);
    }
  } finally {
    b.context.close();
    a.context.close();
  }
});

test('ud: datagrams reach any queue pair whose key they have, behind a routing header', () => {
  using a = new Side('rxe0');
  using b = new Side('rxe1');
  const [one, other] = [a.queuePair('ud'), b.queuePair('ud')];
  one.open();
  other.open();
  using handle = new AddressHandle(a.domain, a.pathTo(b));
  const post = (bytes: number, key: number): void => {
    assert.ok(one.sends.start(sendOpcode.send, sendFlag.signaled, 0));
    one.sends.add(a.memory.address, bytes, a.region.localKey);
    one.sends.datagram(handle.address, other.number, key);
    one.sends.post();
    nextCompletions(a.completions);
    assert.ok(a.completions.isSuccess(0));
    one.sends.doneUntil(a.completions.sequenceAt(0));
  };
  b.receive(other, 0, 2048, 1);
  fill(a.memory.bytes.subarray(0, 1000), 8);
  // The first has another key, and is dropped.
  post(999, QUEUE_KEY + 1);
  post(1000, QUEUE_KEY);
  nextCompletions(b.receiveCompletions);
  assert.equal(b.receiveCompletions.bytesAt(0), ROUTING_HEADER_BYTES + 1000);
  assert.equal(b.receiveCompletions.sourceAt(0), one.number);
  assert.ok((b.receiveCompletions.flagsAt(0) & completionFlag.routingHeader) !== 0);
  const got = b.memory.bytes.subarray(ROUTING_HEADER_BYTES, ROUTING_HEADER_BYTES + 1000);
  assert.deepEqual(got, a.memory.bytes.subarray(0, 1000));
});

test('a shared receive queue serves several queue pairs', () => {
  using a = new Side('rxe0');
  using b = new Side('rxe1');
  const shared = new SharedReceiveQueue(b.domain, { depth: 16, elements: 1 });
  const pairs = [0, 1].map(() => {
    const [one, other] = [a.queuePair('rc'), b.queuePair('rc', { sharedReceives: shared })];
    one.connect({ number: other.number, firstSequence: 0, path: a.pathTo(b) }, { mtu: 1024 });
    other.connect({ number: one.number, firstSequence: 0, path: b.pathTo(a) }, { mtu: 1024 });
    return [one, other] as const;
  });
  for (let tag = 0; tag < 4; tag += 1) {
    assert.ok(shared.receives.start(tag));
    shared.receives.add(b.memory.address + tag * 4096, 4096, b.region.localKey);
  }
  shared.receives.post();
  assert.equal(shared.receives.room, 12);
  for (const turn of [0, 1, 1, 0]) {
    const [one, other] = pairs[turn]!;
    fill(a.memory.bytes.subarray(0, 100), turn);
    assert.equal(doOne(one, a, { opcode: sendOpcode.send, bytes: 100 }), 0);
    nextCompletions(b.receiveCompletions);
    shared.receives.done();
    assert.equal(b.receiveCompletions.queuePairAt(0), other.number);
    const at = b.receiveCompletions.tagAt(0) * 4096;
    assert.deepEqual(b.memory.bytes.subarray(at, at + 100), a.memory.bytes.subarray(0, 100));
  }
  assert.equal(shared.receives.room, 16);
});

test('data that a request carries itself may be overwritten at once', () => {
  using a = new Side('rxe0');
  using b = new Side('rxe1');
  const [one] = connectPair('rc', [a, b], { maxInlineBytes: 64 });
  assert.ok(one.maxInlineBytes >= 64);
  fill(a.memory.bytes.subarray(0, 64), 1);
  const sent = a.memory.bytes.slice(0, 64);
  assert.ok(one.sends.start(sendOpcode.write, sendFlag.signaled | sendFlag.inline, 0));
  // No region is needed.
  one.sends.add(a.memory.address, 64, 0);
  one.sends.target(b.memory.address, b.region.remoteKey);
  one.sends.post();
  a.memory.bytes.fill(0, 0, 64);
  nextCompletions(a.completions);
  assert.ok(a.completions.isSuccess(0));
  assert.deepEqual(b.memory.bytes.slice(0, 64), sent);
});
