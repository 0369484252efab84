// What a traced process tells the driver and the compiler, with a driver that is only pretended.
import assert from 'node:assert/strict';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import test from 'node:test';
import { kernelTraceTarget, traceClockArguments, traceClockCells } from '#lib/abi/kernel-trace.js';
import { Block } from '#lib/abi/layout.js';
import { addressOf, viewAt } from '#lib/native/library.js';
import { CudaContext } from '#lib/device/cuda/cuda-context.js';
import { CudaStream } from '#lib/device/cuda/cuda-stream.js';
import type { CudaKernel } from '#lib/device/cuda/kernel.js';
import { KernelTrace } from '#lib/device/cuda/kernel-trace.js';
import { readTracePart } from '#lib/tracing/read-part.js';
import { startTracing } from '#lib/tracing/start-tracing.js';
import { partsOf } from '#lib/tracing/trace-rings.js';
import { pretendDriver } from '../../support/pretended-driver.ts';

const memory = new SharedArrayBuffer(16 << 20);
let used = 0;
type NameOf = keyof typeof traceClockArguments.offset;

/** As the driver gives host memory. */
function allocate(out: unknown, bytes: number): number {
  (out as [number])[0] = Number(addressOf(new Uint8Array(memory))) + used;
  used += Math.ceil(bytes / 4096) * 4096;
  return 0;
}

test('modules are told where their records go, and clocks are compared by an answer of the GPU', (t) => {
  assert.equal(KernelTrace.begin(undefined as never), undefined, 'nothing is traced yet');
  const folder = mkdtempSync(join(tmpdir(), 'weftline-kernels-'));
  t.after(() => rmSync(folder, { recursive: true }));
  const file = join(folder, 't.json');
  startTracing({ trace: file });
  const { driver, calls, status } = pretendDriver();
  status.cuMemHostAlloc = (out, bytes) => allocate(out, bytes as number);
  status.cuMemHostGetDevicePointer = (out, host) => {
    (out as [number])[0] = host as number;
    return 0;
  };
  const copied: { readonly to: number; readonly label: number; readonly records: number }[] = [];
  status.cuMemcpyHtoDAsync = (to, from) => {
    const target = new Block(kernelTraceTarget, viewAt(from as number, kernelTraceTarget.size), 0);
    copied.push({ to: to as number, label: target.get('label'), records: target.get('records') });
    return 0;
  };
  using context = CudaContext.retain(1, driver);
  const trace = KernelTrace.begin(context)!;
  assert.ok(calls.includes('cuMemHostRegister'));
  status.cuModuleGetGlobal = (address) => {
    (address as [number])[0] = 77;
    return 0;
  };
  trace.attach(5, 'ep-dispatch.cu');
  trace.attach(6, 'ep-combine.cu');
  status.cuModuleGetGlobal = 500;
  trace.attach(7, 'untraced.cu');
  assert.deepEqual(
    copied.map(({ to, label }) => [to, label]),
    [
      [77, 1],
      [77, 2],
    ],
  );
  assert.ok(copied[0]!.records > 0);

  const argumentBytes = new SharedArrayBuffer(traceClockArguments.size);
  const answers = { count: 0 };
  const plan = {
    arguments: new Block(traceClockArguments, argumentBytes, 0),
    launch: () => {
      // This GPU has answered everything before it is asked.
      const cells = new Block(traceClockCells, viewAt(plan.arguments.get('cells'), traceClockCells.size), 0);
      cells.set('time', 5 * 2 ** 32 + 7);
      cells.set('answered', plan.arguments.get('rounds'));
      answers.count += 1;
    },
  };
  const stream = new CudaStream(context, { priority: 'high', timeoutMs: 30_000 }, () => undefined);
  trace.startClock({ plan: () => plan } as unknown as CudaKernel<NameOf>, stream);
  assert.ok(trace.hasClock);
  context.isCapturing = true;
  trace.stopClock();
  context.isCapturing = false;
  assert.equal(answers.count, 1, 'none while a graph is recorded');
  context[Symbol.dispose]();
  assert.ok(trace.disposed && calls.includes('cuMemHostUnregister'));
  assert.equal(readTracePart(partsOf(file)[0]!).gpuClocks.length, 0, 'no kernel has run');
});
