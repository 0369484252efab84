// What the peer is told of copies on a GPU, which go on after the call that enqueued them.
import assert from 'node:assert/strict';
import test from 'node:test';
import { mailboxBytes } from '#lib/agent/backends/local/mailbox-layout.js';
import { CudaCopies, type CudaWay } from '#lib/agent/backends/local/local-transfer.js';
import { DeviceWork } from '#lib/agent/backends/local/peer-mailbox.js';
import { planned } from '../../../../local/support/planned-transfer.ts';

/** A GPU whose work is done when the test says so. */
function pretendDevice(): {
  readonly device: CudaWay['device'];
  readonly stream: CudaWay['stream'];
  readonly gpu: { isDone: boolean; error: Error | undefined; copies: number };
} {
  const gpu = { isDone: true, error: undefined as Error | undefined, copies: 0 };
  const event = {
    isDone: () => {
      if (gpu.error !== undefined) throw gpu.error;
      return gpu.isDone;
    },
    record: () => (gpu.isDone = false),
    wait: async () => {
      gpu.isDone = true;
    },
  };
  const context = {
    enter: () => {},
    workCount: 0,
    check: () => {},
    driver: { cuMemcpyAsync: () => (gpu.copies += 1) },
  };
  const device = { createEvent: () => event, context } as unknown as CudaWay['device'];
  return { device, stream: { handle: 1 } as unknown as CudaWay['stream'], gpu };
}

function openCopies() {
  const { device, stream, gpu } = pretendDevice();
  const work = new DeviceWork(new ArrayBuffer(mailboxBytes(1)), 0);
  const { parts } = planned([{ local: 0, localOffset: 0, remote: 0, remoteOffset: 0, bytes: 10 }]);
  const ways = [{ device, stream, locals: [4096], remotes: [8192] }];
  return { copies: new CudaCopies({ parts, ways, isRead: false, work }), work, gpu };
}

test('a post is under way until its event is done', () => {
  const { copies, work, gpu } = openCopies();
  copies.begin();
  assert.equal(copies.advance(), false);
  const ticket = work.latest;
  assert.deepEqual([gpu.copies, copies.isOver(), work.hasEnded(ticket)], [1, false, false]);
  gpu.isDone = true;
  assert.equal(copies.advance(), true);
  assert.deepEqual([copies.isOver(), work.hasEnded(ticket)], [true, true]);
});

test('a post that was given up is under way until the GPU has ended it, also behind another post', async () => {
  const { copies, work, gpu } = openCopies();
  copies.begin();
  copies.advance();
  const ticket = work.latest;
  copies.begin();
  assert.equal(copies.advance(), false);
  assert.deepEqual([gpu.copies, work.latest, work.hasEnded(ticket)], [2, ticket, false]);
  await copies.over();
  assert.deepEqual([copies.isOver(), work.hasEnded(ticket)], [true, true]);
});

test('a GPU that has failed touches nothing more', () => {
  const { copies, work, gpu } = openCopies();
  copies.begin();
  copies.advance();
  gpu.error = new Error('illegal address');
  assert.throws(() => copies.advance(), /illegal address/);
  assert.ok(copies.isOver());
  assert.ok(work.hasEnded(work.latest));
});

test('copies of two GPUs are over when both are done', async () => {
  const [one, other] = [pretendDevice(), pretendDevice()];
  const work = new DeviceWork(new ArrayBuffer(mailboxBytes(1)), 0);
  const { parts } = planned([
    { local: 0, localOffset: 0, remote: 0, remoteOffset: 0, bytes: 10 },
    { local: 1, localOffset: 0, remote: 0, remoteOffset: 16, bytes: 10 },
    { local: 1, localOffset: 10, remote: 0, remoteOffset: 32, bytes: 10 },
  ]);
  const ways = [
    { ...one, locals: [4096, Number.NaN], remotes: [8192] },
    { ...other, locals: [Number.NaN, 4096], remotes: [8192] },
  ];
  const copies = new CudaCopies({ parts, ways, isRead: false, work });
  assert.equal(copies.bytes, 30);
  copies.begin();
  assert.equal(copies.advance(), false);
  assert.deepEqual([one.gpu.copies, other.gpu.copies], [1, 2]);
  one.gpu.isDone = true;
  assert.deepEqual([copies.advance(), copies.isOver(), work.hasEnded(work.latest)], [false, false, false]);
  await copies.over();
  assert.deepEqual([copies.advance(), copies.isOver(), work.hasEnded(work.latest)], [true, true, true]);
});
