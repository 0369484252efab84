// The bytes that a prepared launch hands to the driver, as cuda.h lays them out.
import assert from 'node:assert/strict';
import test from 'node:test';
import { defineLayout } from '#lib/abi/layout.js';
import { CudaContext } from '#lib/device/cuda/cuda-context.js';
import { CudaStream } from '#lib/device/cuda/cuda-stream.js';
import { LaunchPlan, type LaunchShape } from '#lib/device/cuda/kernel.js';
import type { CudaDriver } from '#lib/native/cuda-driver.js';
import { viewAt } from '#lib/native/library.js';

const layout = defineLayout('SampleArguments', { base: 'ptr', count: 'u32', ratio: 'f32' });

interface Launch {
  readonly grid: readonly number[];
  readonly block: readonly number[];
  readonly sharedBytes: number;
  readonly stream: number;
  /** Number and first three words of each attribute. */
  readonly attributes: readonly (readonly number[])[];
  readonly kernel: number;
  readonly arguments: DataView;
}

function words(from: DataView, at: number): number[] {
  return [0, 4, 8].map((step) => from.getUint32(at + step, true));
}

function decode(configuration: number, kernel: number, parameters: number): Launch {
  const view = new DataView(viewAt(configuration, 56));
  const attributes = new DataView(viewAt(Number(view.getBigUint64(40, true)), 3 * 72));
  const first = Number(new DataView(viewAt(parameters, 8)).getBigUint64(0, true));
  return {
    grid: words(view, 0),
    block: words(view, 12),
    sharedBytes: view.getUint32(24, true),
    stream: Number(view.getBigUint64(32, true)),
    attributes: Array.from({ length: view.getUint32(48, true) }, (_, index) => [
      attributes.getUint32(index * 72, true),
      ...words(attributes, index * 72 + 8),
    ]),
    kernel,
    arguments: new DataView(viewAt(first, layout.size)),
  };
}

interface Pretended {
  readonly launches: Launch[];
  readonly context: CudaContext;
  readonly stream: CudaStream;
  readonly plan: (shape: LaunchShape) => LaunchPlan<'base' | 'count' | 'ratio'>;
}

/** A driver that decodes launches; handles count up from 1001. */
function pretend(status = 0): Pretended {
  const launches: Launch[] = [];
  let next = 1000;
  const driver = new Proxy({} as CudaDriver, {
    get: (_target, name) => {
      return (...parameters: [[number], ...number[]] | number[]): number => {
        if (name === 'cuLaunchKernelEx') {
          launches.push(decode(...(parameters as [number, number, number])));
          return status;
        }
        if (Array.isArray(parameters[0])) parameters[0][0] = next += 1;
        return 0;
      };
    },
  });
  const context = CudaContext.retain(0, driver);
  const stream = new CudaStream(context, { priority: 'normal', timeoutMs: 30_000 }, () => undefined);
  const target = {
    context,
    handle: 77,
    label: 'sample.cu:sample',
    options: { arguments: layout, passing: 'structure', stream },
  } as const;
  return { launches, context, stream, plan: (shape) => new LaunchPlan(target, shape) };
}

test('the configuration, the attributes and the arguments are where the driver reads them', () => {
  const { launches, stream, plan } = pretend();
  const prepared = plan({ grid: [5, 2], block: 96, sharedBytes: 4096, cooperative: true, cluster: [2, 1, 1] });
  prepared.arguments.set('base', 2 ** 47 + 16);
  prepared.arguments.set('count', 9);
  prepared.arguments.set('ratio', 0.5);
  prepared.launch();
  const [launch] = launches;
  assert.ok(launch);
  assert.deepEqual([launch.grid, launch.block, launch.sharedBytes], [[5, 2, 1], [96, 1, 1], 4096]);
  assert.deepEqual([launch.stream, launch.kernel], [stream.handle, 77]);
  assert.deepEqual(launch.attributes, [
    [2, 1, 0, 0],
    [4, 2, 1, 1],
  ]);
  assert.equal(launch.arguments.getBigUint64(0, true), 2n ** 47n + 16n);
  assert.equal(launch.arguments.getUint32(8, true), 9);
  assert.equal(launch.arguments.getFloat32(12, true), 0.5);
});

test('grid, stream and arguments may change between launches; each launch is counted and remembered', () => {
  const { launches, context, plan } = pretend();
  const other = new CudaStream(context, { priority: 'high', timeoutMs: 30_000 }, () => undefined);
  const prepared = plan({ grid: 1, block: 32, overlapPredecessor: true });
  const before = context.workCount;
  prepared.launch();
  prepared.setGrid([7, 8, 9]);
  prepared.launch(other);
  prepared.launch();
  assert.deepEqual(
    launches.map((launch) => launch.stream),
    [launches[0]?.stream, other.handle, launches[0]?.stream],
  );
  assert.deepEqual(launches[1]?.grid, [7, 8, 9]);
  assert.deepEqual(launches[1]?.attributes, [[6, 1, 0, 0]]);
  assert.equal(context.workCount - before, 3);
  assert.equal(context.lastLaunch, 'sample.cu:sample');
});

test('extents are checked, and a refused launch says what was launched', () => {
  const { plan } = pretend(1);
  for (const grid of [0, -1, 1.5, [1, 0]] as LaunchShape['grid'][]) {
    assert.throws(() => plan({ grid, block: 32 }), { code: 'WL_INVALID_ARGUMENT', message: /grid/ });
  }
  assert.throws(() => plan({ grid: 3, block: 64, sharedBytes: 16 }).launch(), {
    code: 'WL_CUDA',
    message: /launching sample\.cu:sample with 3x1x1 blocks of 64x1x1 threads and 16 bytes of shared memory each/,
  });
});
