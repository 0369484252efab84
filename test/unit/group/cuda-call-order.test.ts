// On which stream calls run, what they wait for, and that nothing is released under them; with a pretended driver.
import assert from 'node:assert/strict';
import test from 'node:test';
import type { CudaDevice } from 'weftline';
import { CudaContext } from '#lib/device/cuda/cuda-context.js';
import { CudaEvent } from '#lib/device/cuda/cuda-event.js';
import { CudaStream } from '#lib/device/cuda/cuda-stream.js';
import { CudaCallOrder, numberAfter } from '#lib/group/cuda-calls.js';
import { pretendDriver } from '../support/pretended-driver.ts';

interface Pretended {
  readonly context: CudaContext;
  readonly device: CudaDevice;
  readonly order: CudaCallOrder;
  /** Streams that are not idle. */
  readonly busy: Set<number>;
  /** How often a busy stream was asked whether it is idle. */
  readonly looks: () => number;
  /** "event recorded on stream", "stream waits for event", by handles. */
  readonly steps: string[];
}

function pretend(): Pretended {
  const { driver, status } = pretendDriver();
  const context = CudaContext.retain(0, driver);
  const busy = new Set<number>();
  const steps: string[] = [];
  let looks = 0;
  status.cuStreamQuery = (stream) => {
    if (!busy.has(stream as number)) return 0;
    looks += 1;
    return 600;
  };
  status.cuEventRecord = (event, stream) => (steps.push(`${String(event)} recorded on ${String(stream)}`), 0);
  status.cuStreamWaitEvent = (stream, event) => (steps.push(`${String(stream)} waits for ${String(event)}`), 0);
  const makeStream = (): CudaStream => new CudaStream(context, { priority: 'normal', timeoutMs: 30_000 }, () => {});
  const device = {
    stream: makeStream(),
    createStream: makeStream,
    createEvent: () => new CudaEvent(context, { timing: false, timeoutMs: 30_000 }),
  } as unknown as CudaDevice;
  return { context, device, order: new CudaCallOrder(device), busy, looks: () => looks, steps };
}

test('calls without options run on the stream of the device and record nothing', () => {
  const { device, order, steps } = pretend();
  assert.equal(order.begin({}), device.stream);
  assert.equal(order.end({}), undefined);
  assert.deepEqual(steps, []);
});

test('an overlapping call begins after its event alone, and others wait for it only if they must', () => {
  const { device, order, steps } = pretend();
  const first = order.begin({ asyncFinish: true });
  assert.notEqual(first, device.stream);
  const event = order.end({ asyncFinish: true });
  assert.ok(event !== undefined && steps.at(-1) === `${event.handle} recorded on ${first.handle}`);

  steps.length = 0;
  assert.equal(order.begin({ previousEvent: event, asyncFinish: true }), first);
  assert.deepEqual(steps, [`${first.handle} waits for ${event.handle}`]);
  order.end({ asyncFinish: true });
  assert.ok(!steps.some((step) => step.startsWith(`${device.stream.handle} waits`)));

  order.begin({ previousEvent: event });
  order.end({});
  assert.ok(steps.at(-1)?.startsWith(`${device.stream.handle} waits for`));
  order.begin({ asyncFinish: true });
  order.end({ asyncFinish: true });
  steps.length = 0;
  assert.equal(order.begin({}), device.stream);
  assert.equal(steps.length, 1, 'a call on the other stream comes after the call before');
  assert.ok(steps[0]?.startsWith(`${device.stream.handle} waits for`));
});

test('an event that was disposed is refused before anything is enqueued', () => {
  const { device, order, steps } = pretend();
  const event = device.createEvent();
  event[Symbol.dispose]();
  assert.throws(() => order.begin({ previousEvent: event }), { code: 'WL_INVALID_ARGUMENT' });
  assert.deepEqual(steps, []);
});

test('drained() waits for every stream of the calls, and leaves it to others to hear what failed', async () => {
  const { context, order, busy, looks } = pretend();
  context.judgeWaits(() => {
    throw new Error('a kernel left early');
  });
  const own = order.begin({ asyncFinish: true });
  order.end({ asyncFinish: true });
  await assert.rejects(order.idle(), /a kernel left early/);
  busy.add(own.handle);
  let released = false;
  const drained = order.drained().then(() => (released = true));
  // The wait must have found it busy several times.
  const seen = looks();
  while (looks() < seen + 3) await new Promise((resolve) => setImmediate(resolve));
  assert.equal(released, false);
  busy.delete(own.handle);
  await drained;
});

test('numbers of calls are even and odd in turn and never 0', () => {
  assert.deepEqual(
    [0, 1, 0xffff_fffe, 0xffff_ffff].map((number) => numberAfter(number)),
    [1, 2, 0xffff_ffff, 2],
  );
});
