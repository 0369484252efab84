// What the peer is told of copies on a GPU, which go on after the call that enqueued them.
import assert from 'node:assert/strict';
import test from 'node:test';
import { copyRow } from '#lib/abi/copy-ranges.js';
import { Block } from '#lib/abi/layout.js';
import { mailboxBytes } from '#lib/agent/backends/local/mailbox-layout.js';
import { GpuCopies, type GpuWay, type RangeKernel } from '#lib/agent/backends/local/gpu-copies.js';
import { LocalTransfer } from '#lib/agent/backends/local/local-transfer.js';
import { DeviceWork } from '#lib/agent/backends/local/peer-mailbox.js';
import { planned } from '../../../../local/support/planned-transfer.ts';

/** A GPU whose work is done when the test says so. */
function pretendDevice(): {
  readonly device: GpuWay['device'];
  readonly stream: GpuWay['stream'];
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
    [Symbol.dispose]() {},
  };
  const context = {
    enter: () => {},
    workCount: 0,
    check: () => {},
    driver: { cuMemcpyAsync: () => (gpu.copies += 1) },
  };
  const device = { createEvent: () => event, context } as unknown as GpuWay['device'];
  return { device, stream: { handle: 1 } as unknown as GpuWay['stream'], gpu };
}

function openCopies() {
  const { device, stream, gpu } = pretendDevice();
  const work = new DeviceWork(new ArrayBuffer(mailboxBytes(1)), 0);
  const { parts } = planned([{ local: 0, localOffset: 0, remote: 0, remoteOffset: 0, bytes: 10 }]);
  const ways = [{ device, stream, locals: [4096], remotes: [8192], kernel: undefined }];
  return { copies: new GpuCopies({ parts, ways, isRead: false, isBySelection: false, work }), work, gpu };
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

test('a transfer that was cancelled is under way until the GPU has ended it, and sends no message', async () => {
  const { copies, gpu } = openCopies();
  const busy = new Set<LocalTransfer>();
  const link = {
    peerName: 'x',
    isQuiet: true,
    steps: { begin() {}, end() {}, mayTouch: () => true },
    requireUsable() {},
    requireRoom() {},
    push: () => assert.fail('a message'),
    enqueue: (transfer: LocalTransfer) => busy.add(transfer),
    drop(transfer: LocalTransfer, error: Error) {
      busy.delete(transfer);
      transfer.fail(error as never);
    },
    drain: () => assert.fail('it has ended before its copies'),
  };
  const parts = { plan: copies, host: undefined, locals: [], remotes: [], isBySelection: false };
  const transfer = new LocalTransfer(link as never, parts);
  transfer.post(new Uint8Array(3));
  transfer.cancel();
  assert.deepEqual([transfer.state, transfer.advance(), transfer.state], ['pending', false, 'pending']);
  gpu.isDone = true;
  assert.equal(transfer.advance(), true);
  assert.deepEqual([transfer.state, transfer.error?.code], ['failed', 'WL_CLOSED']);
  busy.clear();
  transfer.post(new Uint8Array(3));
  await transfer.release();
  assert.deepEqual([transfer.state, busy.size], ['failed', 0]);
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
    { ...one, locals: [4096, Number.NaN], remotes: [8192], kernel: undefined },
    { ...other, locals: [Number.NaN, 4096], remotes: [8192], kernel: undefined },
  ];
  const copies = new GpuCopies({ parts, ways, isRead: false, isBySelection: false, work });
  assert.equal(copies.bytes, 30);
  copies.begin();
  assert.equal(copies.advance(), false);
  assert.deepEqual([one.gpu.copies, other.gpu.copies], [1, 2]);
  one.gpu.isDone = true;
  assert.deepEqual([copies.advance(), copies.isOver(), work.hasEnded(work.latest)], [false, false, false]);
  await copies.over();
  assert.deepEqual([copies.advance(), copies.isOver(), work.hasEnded(work.latest)], [true, true, true]);
});

/** Copies with a kernel that keeps what each launch would copy: address, address and bytes of every range. */
function openManyCopies(ranges: readonly (readonly [local: number, remote: number, bytes: number])[], isRead: boolean) {
  const { device, stream, gpu } = pretendDevice();
  const work = new DeviceWork(new ArrayBuffer(mailboxBytes(1)), 0);
  const { parts } = planned(
    ranges.map(([localOffset, remoteOffset, bytes]) => ({ local: 0, localOffset, remote: 0, remoteOffset, bytes })),
  );
  const memory = { buffer: new ArrayBuffer(parts.capacity * copyRow.size), hostAddress: 0, [Symbol.dispose]() {} };
  const launches: (readonly [number, number, number])[][] = [];
  const uploads: number[] = [];
  Object.assign(device.context.driver, {
    cuMemcpyHtoDAsync: (_to: number, _from: number, bytes: number) => {
      uploads.push(bytes);
      return 0;
    },
  });
  Object.assign(device, { allocateHost: () => memory, empty: () => ({ address: 0, close() {} }) });
  const kernel = {
    device,
    launch: (_rows: number, { count }: { readonly count: number }) => {
      const launched: (readonly [number, number, number])[] = [];
      for (let row = 0; row < count; row++) {
        const block = new Block(copyRow, memory.buffer, row * copyRow.size);
        launched.push([block.get('from'), block.get('to'), block.get('bytes')]);
      }
      launches.push(launched);
    },
  } as unknown as RangeKernel;
  const ways = [{ device, stream, locals: [2 ** 40], remotes: [2 ** 41], kernel }];
  const copies = new GpuCopies({ parts, ways, isRead, isBySelection: true, work });
  const pieces = (): number[] =>
    ranges.map((_, row) => new Block(copyRow, memory.buffer, row * copyRow.size).get('piecesOfRange'));
  return { copies, parts, gpu, launches, uploads, pieces };
}

for (const isRead of [false, true]) {
  test(`many small ranges are one launch of the kernel, whose rows are sent once (${isRead ? 'read' : 'write'})`, () => {
    const ranges = Array.from({ length: 20 }, (_, index) => [index * 1000, (20 - index) * 2000, index + 1] as const);
    const { copies, gpu, launches, uploads } = openManyCopies(ranges, isRead);
    for (let post = 0; post < 2; post++) {
      copies.begin();
      copies.advance();
      gpu.isDone = true;
      assert.equal(copies.advance(), true);
    }
    const expected = ranges.map(([local, remote, bytes]) => {
      const [here, there] = [2 ** 40 + local, 2 ** 41 + remote];
      return isRead ? [there, here, bytes] : [here, there, bytes];
    });
    assert.deepEqual(launches, [expected, expected]);
    assert.deepEqual([uploads, gpu.copies], [[20 * copyRow.size], 0]);
  });
}

test('rows that the kernel of a cancelled post may still read are not changed: copy engines make the next copies', () => {
  const ranges = Array.from({ length: 9 }, (_, index) => [index * 100, index * 100, 10] as const);
  const { copies, parts, gpu, launches } = openManyCopies(ranges, false);
  copies.begin();
  copies.advance();
  const first = structuredClone(launches[0]);
  parts.remoteOffset.fill(7);
  copies.measure();
  copies.begin();
  copies.advance();
  assert.deepEqual([launches.length, gpu.copies], [1, 9]);
  assert.deepEqual(launches[0], first);
  gpu.isDone = true;
  assert.equal(copies.advance(), true);
  copies.measure();
  copies.begin();
  copies.advance();
  assert.deepEqual([launches.length, launches[1]![8]![1]], [2, 2 ** 41 + 7]);
});

test('a range of no bytes is a piece, too: the kernel divides by the pieces of a range', () => {
  const sizes = [0, 20_000, 20_000, 0, 20_000, 20_000, 0, 20_000, 20_000];
  const { copies, pieces } = openManyCopies(
    sizes.map((bytes, index) => [index << 16, index << 16, bytes] as const),
    false,
  );
  copies.begin();
  copies.advance();
  assert.deepEqual(pieces(), [1, 2, 2, 1, 2, 2, 1, 2, 2]);
});

test("few ranges, and long ones, are the copy engines'", () => {
  for (const ranges of [
    Array.from({ length: 7 }, (_, index) => [index * 100, index * 100, 10] as const),
    Array.from({ length: 8 }, (_, index) => [index << 22, index << 22, 2 << 20] as const),
  ]) {
    const { copies, gpu, launches } = openManyCopies(ranges, false);
    copies.begin();
    copies.advance();
    assert.deepEqual([launches.length, gpu.copies], [0, ranges.length]);
  }
});
