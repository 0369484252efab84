// In the guest: requests that fail, and how each says why.
import assert from 'node:assert/strict';
import test from 'node:test';
import { completionStatuses, qpState, sendFlag, sendOpcode } from '#lib/native/verbs/c-structs.js';
import { completionError } from '#lib/native/verbs/completion-queue.js';
import { connectPair, doOne, nextCompletions, type OneRequest, Side } from './support/pair.ts';

function nameOf(status: number): string {
  return completionStatuses[status]?.[0] ?? String(status);
}

interface Wrong {
  readonly title: string;
  readonly status: string;
  readonly words: RegExp;
  readonly request: (b: Side) => OneRequest;
}

const cases: readonly Wrong[] = [
  {
    title: 'a wrong remote key',
    status: 'IBV_WC_REM_ACCESS_ERR',
    words: /wrong remote key/,
    request: (b) => ({ bytes: 8, remoteAddress: b.memory.address, remoteKey: b.region.remoteKey ^ 0x55 }),
  },
  {
    title: 'a write beyond the region',
    status: 'IBV_WC_REM_ACCESS_ERR',
    words: /outside of the region/,
    request: (b) => ({
      bytes: 4096,
      remoteAddress: b.memory.address + b.memory.bytes.length - 4095,
      remoteKey: b.region.remoteKey,
    }),
  },
  {
    title: 'a read beyond the region',
    status: 'IBV_WC_REM_ACCESS_ERR',
    words: /outside of the region/,
    request: (b) => ({
      opcode: sendOpcode.read,
      bytes: 4096,
      remoteAddress: b.memory.address - 1,
      remoteKey: b.region.remoteKey,
    }),
  },
];

for (const { title, status, words, request } of cases) {
  test(`rc: ${title} fails with ${status}, and the queue pair takes nothing more`, () => {
    using a = new Side('rxe0');
    using b = new Side('rxe1');
    const [one] = connectPair('rc', [a, b]);
    assert.equal(nameOf(doOne(one, a, request(b))), status);
    const error = a.completions.errorAt(0, 'a request');
    assert.equal(error.code, 'WL_NATIVE');
    assert.match(error.message, words);
    assert.equal(one.queryState(), qpState.error);
    const later = { bytes: 8, remoteAddress: b.memory.address, remoteKey: b.region.remoteKey };
    assert.equal(nameOf(doOne(one, a, later)), 'IBV_WC_WR_FLUSH_ERR');
  });
}

test('rc: what the region or the queue pair does not allow is refused', () => {
  using a = new Side('rxe0');
  using b = new Side('rxe1', { remoteRead: true });
  const [one] = connectPair('rc', [a, b]);
  const target = { remoteAddress: b.memory.address, remoteKey: b.region.remoteKey };
  assert.equal(doOne(one, a, { opcode: sendOpcode.read, bytes: 8, ...target }), 0);
  assert.equal(nameOf(doOne(one, a, { bytes: 8, ...target })), 'IBV_WC_REM_ACCESS_ERR');
});

test('rc: a message longer than its receive fails on both sides', () => {
  using a = new Side('rxe0');
  using b = new Side('rxe1');
  const [one, other] = connectPair('rc', [a, b]);
  b.receive(other, 0, 64, 1);
  // Adapters say IBV_WC_REM_INV_REQ_ERR, rxe that the operation failed.
  assert.match(nameOf(doOne(one, a, { opcode: sendOpcode.send, bytes: 65 })), /^IBV_WC_REM_(?:INV_REQ|OP)_ERR$/);
  nextCompletions(b.receiveCompletions);
  assert.ok(!b.receiveCompletions.isSuccess(0));
});

test('rc: a local key of nothing fails here', () => {
  using a = new Side('rxe0');
  using b = new Side('rxe1');
  const [one] = connectPair('rc', [a, b]);
  assert.ok(one.sends.start(sendOpcode.write, sendFlag.signaled, 0));
  one.sends.add(a.memory.address, 8, 0x7777_7777);
  one.sends.target(b.memory.address, b.region.remoteKey);
  one.sends.post();
  nextCompletions(a.completions);
  // Adapters say IBV_WC_LOC_PROT_ERR, rxe that the request is inconsistent.
  assert.match(a.completions.errorAt(0, 'a write').message, /^a write failed with IBV_WC_LOC_(?:PROT|QP_OP)_ERR: /);
});

test('rc: a peer that is gone is lost, and all that was under way is flushed', () => {
  using a = new Side('rxe0');
  using b = new Side('rxe1');
  const [one, other] = connectPair('rc', [a, b]);
  other.close();
  for (let index = 0; index < 5; index += 1) {
    assert.ok(one.sends.start(sendOpcode.write, sendFlag.signaled, index));
    one.sends.add(a.memory.address, 8, a.region.localKey);
    one.sends.target(b.memory.address, b.region.remoteKey);
  }
  one.sends.post();
  const seen: string[] = [];
  while (seen.length < 5) {
    const count = nextCompletions(a.completions);
    for (let index = 0; index < count; index += 1) seen.push(nameOf(a.completions.statusAt(index)));
    if (seen.length === count) {
      const error = a.completions.errorAt(0, 'a write');
      assert.equal(error.code, 'WL_PEER_LOST');
      assert.match(error.message, /did not acknowledge/);
    }
    one.sends.doneUntil(a.completions.sequenceAt(count - 1));
  }
  assert.deepEqual(seen, ['IBV_WC_RETRY_EXC_ERR', ...Array.from({ length: 4 }, () => 'IBV_WC_WR_FLUSH_ERR')]);
  assert.equal(one.sends.room, one.sends.depth);
});

test('a queue pair that is failed by its owner flushes receives too', () => {
  using a = new Side('rxe0');
  using b = new Side('rxe1');
  const [one] = connectPair('rc', [a, b]);
  for (const tag of [4, 5, 6]) a.receive(one, 0, 64, tag);
  one.fail();
  const tags: number[] = [];
  while (tags.length < 3) {
    const count = nextCompletions(a.receiveCompletions);
    for (let index = 0; index < count; index += 1) {
      assert.equal(nameOf(a.receiveCompletions.statusAt(index)), 'IBV_WC_WR_FLUSH_ERR');
      tags.push(a.receiveCompletions.tagAt(index));
    }
  }
  assert.deepEqual(tags, [4, 5, 6]);
});

test('every status has words', () => {
  for (const status of completionStatuses.keys())
    assert.match(completionError(status, 'x', {}).message, /^x failed with IBV_WC_\w+: \w/);
  assert.match(completionError(99, 'x', {}).message, /ibv_wc_status 99: a status that weftline does not know/);
});
