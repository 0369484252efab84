// The expert-parallel benches on GPUs: for each SM count, cases and bare copies timed in turn on all ranks; many shapes of launches;
// and low latency.
import { invalidArgument } from '../../../core/errors.ts';
import { median } from '../../../core/quantile.ts';
import type { CudaDevice } from '../../../device/cuda/cuda-device.ts';
import { type DispatchHandle, EpBuffer } from '../../../ep/index.ts';
import type { World } from '../../../world/index.ts';
import {
  type BenchCase,
  type BenchEffort,
  measureInTurn,
  type Progress,
  type Rounds,
  type Samples,
  summarize,
  summarizeDifferences,
  summarizeRatios,
  percentilesOf,
} from '../harness.ts';
import { recordRun } from '../machine.ts';
import {
  type CudaTools,
  inputRows,
  makeBareCopies,
  makeCudaTools,
  pullName,
  pushName,
  type RowDtype,
} from './cuda-copies.ts';
import { type CaseTraffic, summarizeMoved } from './ep-bench.ts';
import { makeLayerCalls } from './ep-calls.ts';
import { benchBufferConfig, combineRowBytes, dispatchRowBytes, type EpWorkload } from './ep-workload.ts';
import { type TriedShapes, tryShapes } from '../../../group/cuda-shapes.ts';
import type { CudaGraph } from '../../../device/cuda/cuda-graph.ts';
import {
  type LowLatencyBenchOptions,
  type LowLatencyCalls,
  makeLowLatencyCalls,
  type LowLatencyCase,
  singleCases,
} from './low-latency.ts';

/** Written into every document, so that a number can be read without this source. */
const method = {
  time: 'Microseconds between two events on the device around one call, opening and closing barrier of the ranks included, of the slowest rank. All devices meet before the first event, and pause until the call has enqueued its kernels.',
  returned:
    'Microseconds of the host until the call returned, from idle devices that have just met; of the slowest rank.',
  ready:
    'Microseconds of the host from the call until its results were ready and the host had noticed; of the slowest rank.',
  logical:
    'Bytes of every received row, own rows included (fp8 rows with their scales), of all ranks; GB/s are 1e9 bytes over the time of the slowest rank.',
  wire: 'Bytes of rows that came from another rank.',
  copies:
    'The ceiling: kernels with as many SMs that move the same rows between the same memory through shared memory by bulk copies, places known before, nothing counted, told or summed; the ranks meet before and after as in the library. Push loads a row once and stores it to each rank; pull loads all rows of a token and stores one. Before the timing each shape that fits (warps, parts in flight, bytes of a part) is tried, and the fastest is kept.',
  ratioToCopy:
    'Time of the bare copies of the same rows over that of the case, in the same iteration. For layer combine, which pulls a row per (token, expert), the time of the copy is multiplied by how many more rows cross.',
  beyondCached:
    'Time of the case less that of the same case with a cached handle, in the same iteration: what counts and their exchange cost.',
} as const;

interface EpCudaBenchOptions extends Omit<BenchEffort, 'pairs'> {
  readonly workload: Omit<EpWorkload, 'dtype'>;
  readonly dtypes: readonly RowDtype[];
  /** False leaves EPAll2AllLayer out. */
  readonly layer: boolean;
}

export type EpCudaBenchReport = NonNullable<Awaited<ReturnType<typeof runEpCudaBench>>>;

/**
 * Collective. Returns the result document on rank 0 and undefined elsewhere. Fails with WL_INVALID_ARGUMENT, with
 * WL_CUDA when the memory does not suffice, and with WL_CHECK when a bare copy leaves other rows than dispatch.
 */
export async function runEpCudaBench(
  world: World,
  device: CudaDevice,
  options: EpCudaBenchOptions,
  progress?: Progress,
) {
  const { workload, dtypes, sms, iterations, warmup } = options;
  const most = device.properties.multiprocessors;
  for (const numSms of sms) {
    if (numSms > most) throw invalidArgument('sms', numSms, `1 to ${most}, the SMs of this GPU`);
  }
  using tools = await makeCudaTools(world, device, workload, options.isOneShape);
  const { gpuMachine } = tools;
  const schema = 'weftline.bench.ep.cuda/1' as const;
  return await recordRun(world, { schema, method, workload, dtypes, warmup, iterations, gpuMachine }, async () => {
    const runs = [];
    for (const numSms of sms) {
      await using made = await makeCases(tools, numSms, options);
      const done = runs.length;
      const samples = await timeCudaCases(tools, made.cases, {
        warmup,
        iterations,
        progress: progress && ((round, total) => progress(done * total + round, sms.length * total)),
      });
      // Nobody releases its window while others still use it.
      await world.barrier('bench-done');
      runs.push({ ...made.facts, numSms, cases: summarizeCudaCases(samples, made.cases, world.size) });
    }
    return { runs };
  });
}

export interface CudaCase extends BenchCase, CaseTraffic {
  /** The bare copies of the same rows; together they are the ceiling. None for a copy. */
  readonly copies: readonly string[];
  /** How many of the case's rows cross for each of theirs; 1 by default. */
  readonly copyScale?: number;
  /** The case that does the same without counts and exchange. */
  readonly cached?: string | undefined;
}

export type CudaSamples = Samples<'device' | 'returned' | 'ready'>;

/** Collective. In every iteration each case once for the device and once for the host. */
function timeCudaCases(
  { world, stopwatch }: CudaTools,
  cases: readonly CudaCase[],
  rounds: Rounds,
): Promise<CudaSamples[]> {
  return measureInTurn(world, cases, rounds, async ({ prepare, run }) => {
    await prepare?.();
    const device = await stopwatch.onDevice(run);
    await prepare?.();
    return { device, ...(await stopwatch.onHost(run)) };
  });
}

export function summarizeCudaCases(samples: readonly CudaSamples[], cases: readonly CudaCase[], ranks: number) {
  const samplesOf = (name: string): CudaSamples => samples[cases.findIndex((other) => other.name === name)]!;
  return cases.map((one, index) => {
    const of = samples[index]!;
    const [device, ready] = [of.slowest('device'), of.slowest('ready')];
    const copies = one.copies.map((name) => samplesOf(name).slowest('device'));
    const copying = device.map((_, iteration) =>
      copies.reduce((sum, times) => sum + (one.copyScale ?? 1) * times[iteration]!, 0),
    );
    const cached = one.cached === undefined ? undefined : samplesOf(one.cached);
    return {
      ...summarizeMoved(one, device, ranks),
      microsecondsOfRanks: of.ranks.map((rank) => median(rank.device)),
      returnedMicroseconds: summarize(of.slowest('returned')),
      readyMicroseconds: summarize(ready),
      ...(copies.length > 0 && {
        ratioToCopy: summarizeRatios(copying, device),
        beyondCopyMicroseconds: summarizeDifferences(device, copying),
      }),
      ...(cached && {
        beyondCached: {
          microseconds: summarizeDifferences(device, cached.slowest('device')),
          readyMicroseconds: summarizeDifferences(ready, cached.slowest('ready')),
        },
      }),
    };
  });
}

/** Collective. Makes a buffer with so many SMs, finds and checks the bare copies, and dispatches once. */
async function makeCases(tools: CudaTools, numSms: number, { dtypes, layer }: EpCudaBenchOptions) {
  const { world, device, workload, rows, bf16, topkIdx, topkWeights, out } = tools;
  const buffer = await EpBuffer.create(world, device, { ...benchBufferConfig(workload), numSms });
  // The layer's rows are always bf16.
  const copies = await makeBareCopies(tools, buffer, layer ? ['bf16', ...dtypes] : dtypes);
  // The routing never changes, so this handle serves all cached calls.
  const { handle } = await buffer.dispatch({ x: bf16, topkIdx, topkWeights });
  const cases: CudaCase[] = [...copies].map(([name, { launch }]) => ({
    name,
    description:
      name === pullName
        ? "each row loaded once from where combine reads it, one of a token's rows stored"
        : 'each row loaded once and stored to where dispatch puts it',
    rows,
    rowBytes: dispatchRowBytes({ ...workload, dtype: name === pushName('fp8') ? 'fp8' : 'bf16' }),
    copies: [],
    run: launch,
  }));
  for (const dtype of dtypes) cases.push(...dispatchCases(tools, buffer, handle, dtype));
  cases.push({
    name: 'combine bf16',
    description: 'EpBuffer.combine of rows that lie in the window (combineInput)',
    rows,
    rowBytes: combineRowBytes(workload),
    copies: [pullName],
    run: () => buffer.combine({ x: buffer.combineInput(handle), handle, out }),
  });
  const layers = layer ? await makeLayerCases(tools, numSms) : undefined;
  cases.push(...(layers?.cases ?? []));
  return {
    cases,
    facts: {
      /** What the bare copies are, by their cases' names. */
      copyShapes: Object.fromEntries(
        [...copies].map(([name, { shape, shapesTried }]) => [name, { ...shape, shapesTried }]),
      ),
      /** Bytes of one rank, and of each of the two layers. */
      bufferWindowBytes: buffer.size.bytes,
      layerWindowBytes: layers?.windowBytes,
    },
    async [Symbol.asyncDispose](): Promise<void> {
      await layers?.[Symbol.asyncDispose]();
      handle.close();
      await buffer[Symbol.asyncDispose]();
    },
  };
}

function dispatchCases(tools: CudaTools, buffer: EpBuffer, handle: DispatchHandle, dtype: RowDtype): CudaCase[] {
  const { topkIdx, topkWeights, workload, out, rows } = tools;
  const x = inputRows(tools, dtype);
  const cached = `dispatch ${dtype} cached`;
  const counted = { x, topkIdx, topkWeights };
  const bounded = { ...counted, numWorstTokens: buffer.size.maxRecvTokens };
  const made: DispatchHandle[] = [];
  const prepare = (): void => {
    for (const old of made.splice(0)) old.close();
  };
  const rowBytes = dispatchRowBytes({ ...workload, dtype });
  return (
    [
      [`dispatch ${dtype}`, counted, 'with choices and weights: counts, exchange, rows'],
      [
        `dispatch ${dtype} bounded`,
        bounded,
        'the same with a bound on the rows (numWorstTokens), so that the host need not know how many came',
      ],
      [cached, { x, handle }, 'with the handle of an earlier one: rows only'],
    ] as const
  ).flatMap(([name, args, how]): CudaCase[] => {
    const dispatch = async (): Promise<DispatchHandle> => {
      const result = await buffer.dispatch(args);
      if (result.handle !== handle) made.push(result.handle);
      return result.handle;
    };
    return [
      {
        name,
        description: `EpBuffer.dispatch ${how}`,
        rows,
        rowBytes,
        copies: [pushName(dtype)],
        cached: name === cached ? undefined : cached,
        prepare,
        run: dispatch,
      },
      {
        name: `${name} + combine`,
        description: `EpBuffer.dispatch ${how}; then combine of the rows that came`,
        rows,
        rowBytes: rowBytes + combineRowBytes(workload),
        copies: [pushName(dtype), pullName],
        cached: name === cached ? undefined : `${cached} + combine`,
        prepare,
        run: async () => {
          const of = await dispatch();
          return buffer.combine({ x: buffer.combineInput(of), handle: of, out });
        },
      },
    ];
  });
}

/**
 * Collective. Over two layers, one of which sums a token's rows where they lie first. Rows are always bf16; they cross once
 * per (token, rank) and stand once per (token, expert).
 */
async function makeLayerCases(tools: CudaTools, numSms: number) {
  const { workload, rows } = tools;
  const plain = await makeLayerCalls(tools, { numSms });
  const local = await makeLayerCalls(tools, { numSms, enableLocalCombine: true });
  const rowBytes = combineRowBytes(workload);
  const { pairs } = plain;
  /** What a layer holds; what crosses are the rows that EpBuffer moves. */
  const once = { rowBytes, rows: { logical: pairs.logical, wire: rows.wire } };
  const cases: CudaCase[] = [
    {
      ...once,
      name: 'layer dispatch',
      description:
        'EPAll2AllLayer.dispatch with weights: a row sent once per rank, copied there to each of its experts',
      copies: [pushName('bf16')],
      prepare: plain.tidy,
      run: plain.dispatch.run,
    },
    {
      name: 'layer combine',
      description: 'EPAll2AllLayer.combine of rows that lie in the window: one pulled per (token, expert)',
      rows: pairs,
      rowBytes,
      copies: [pullName],
      // The copy brings one row per (token, rank).
      copyScale: pairs.wire === 0 ? pairs.logical / rows.logical : pairs.wire / rows.wire,
      run: plain.combine.run,
    },
    {
      ...once,
      name: 'layer dispatch, local',
      description: 'the same with what local combine needs to know',
      copies: [pushName('bf16')],
      prepare: local.tidy,
      run: local.dispatch.run,
    },
    {
      ...once,
      name: 'layer combine, local',
      description: "EPAll2AllLayer.combine with enableLocalCombine: a token's rows of one rank are summed there first",
      copies: [pullName],
      run: local.combine.run,
    },
  ];
  return {
    cases,
    windowBytes: plain.layer.context.outputSize.bytes,
    async [Symbol.asyncDispose](): Promise<void> {
      await plain[Symbol.asyncDispose]();
      await local[Symbol.asyncDispose]();
    },
  };
}

// Cached dispatch and combine of EpBuffer in many shapes beside the bare copies, to find the rule that chooses one.

const SENDING_BLOCKS = [7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 20, 24] as const;
const SENDING_WARPS = [1, 2, 3, 4, 5, 6, 8, 12] as const;
/** Parts of rows of 7168 elements. Larger ones would leave room for fewer warps than are asked for. */
const SENDING_PARTS = [8192, 4096, 2048] as const;
const GATHER_BLOCKS = [7, 8, 10, 12, 14, 16, 20, 24] as const;
/** The kernel takes at most 16. */
const GATHER_WARPS = [3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 16] as const;

/** The shapes that the rules choose come first; then each with at most so many blocks. */
export function sweptShapes(numSms: number): TriedShapes[] {
  const fits = (blocks: number): boolean => blocks <= numSms;
  const sending = SENDING_PARTS.flatMap((mostPartBytes) =>
    SENDING_WARPS.flatMap((warps) =>
      SENDING_BLOCKS.filter(fits).map((blocks) => ({ sending: { blocks, warps, mostPartBytes } })),
    ),
  );
  const gather = GATHER_WARPS.flatMap((warps) =>
    GATHER_BLOCKS.filter(fits).map((blocks) => ({ gather: { blocks, warps } })),
  );
  return [{}, ...sending, ...gather];
}

interface ShapeSweepOptions {
  readonly workload: Omit<EpWorkload, 'dtype'>;
  readonly dtypes: readonly RowDtype[];
  readonly numSms: number;
  readonly iterations: number;
  readonly warmup: number;
}

export type ShapeSweepReport = NonNullable<Awaited<ReturnType<typeof runShapeSweep>>>;

/** Collective. Returns the result document on rank 0 and undefined elsewhere. */
export async function runShapeSweep(world: World, device: CudaDevice, options: ShapeSweepOptions, progress?: Progress) {
  const { workload, dtypes, numSms, warmup, iterations } = options;
  using tools = await makeCudaTools(world, device, workload, false);
  const { gpuMachine, stopwatch, bf16, topkIdx, topkWeights, out } = tools;
  const config = { ...benchBufferConfig(workload), numSms };
  await using first = await EpBuffer.create(world, device, config);
  const copies = await makeBareCopies(tools, first, dtypes);
  const copyTimes: Record<string, { readonly copy: string; readonly times: number[] }> = {};
  const shapes = sweptShapes(numSms);
  const schema = 'weftline.bench.ep.cuda.shapes/1' as const;
  return await recordRun(world, { schema, workload, numSms, warmup, iterations, gpuMachine }, async () => {
    const results = [];
    for (const [index, shape] of shapes.entries()) {
      tryShapes(device, shape);
      await using buffer = await EpBuffer.create(world, device, config);
      tryShapes(device, {});
      const { handle } = await buffer.dispatch({ x: bf16, topkIdx, topkWeights });
      const dispatches = dtypes.map((dtype) => ({
        name: `dispatch ${dtype} cached`,
        copy: pushName(dtype),
        run: (): unknown => buffer.dispatch({ x: inputRows(tools, dtype), handle }),
      }));
      const combine = {
        name: 'combine bf16',
        copy: pullName,
        run: (): unknown => buffer.combine({ x: buffer.combineInput(handle), handle, out }),
      };
      const calls = [...(shape.gather ? [] : dispatches), ...(shape.sending ? [] : [combine])];
      const sides = calls.flatMap(({ run, copy }) => [run, copies.get(copy)!.launch]);
      const samples = await measureInTurn(world, sides, { warmup, iterations }, async (run) => ({
        time: await stopwatch.onDevice(run),
      }));
      results.push({
        /** Empty for the shapes that the rules choose. */
        shape,
        calls: calls.map(({ name, copy }, at) => {
          const [own, bare] = [samples[at * 2]!.slowest('time'), samples[at * 2 + 1]!.slowest('time')];
          (copyTimes[name] ??= { copy, times: [] }).times.push(...bare);
          return { name, microseconds: summarize(own), ratioToCopy: summarizeRatios(bare, own) };
        }),
      });
      progress?.(index + 1, shapes.length);
      handle.close();
      // Nobody releases its window while others still use it.
      await world.barrier('bench-shape');
    }
    const bare = Object.entries(copyTimes).map(([name, { copy, times }]) => {
      return [name, { shape: copies.get(copy)!.shape, microseconds: summarize(times) }] as const;
    });
    return { copies: Object.fromEntries(bare), results };
  });
}

// Low latency: calls, their parts and chains in a graph, beside the bare copies of the same rows.

/** Written into every document, so that a number can be read without this source. */
const lowLatencyMethod = {
  time: 'Microseconds between two events on the device around one call, of the slowest rank; percentiles are of the samples. All devices meet before the first event, and pause until the call has enqueued its kernels.',
  parts: 'Send: the call with returnRecvHook. Receive: the hook, when the rows of all ranks are there.',
  chained:
    'Period of so many calls in a row in one CUDA graph, without any barrier between them. A sample is the mean of one launch. The experts between dispatch and combine compute nothing.',
  ratio:
    'Time of the bare copy over that of the case, median of the same iterations. Copies: kernels with as many SMs that move one row for each (token, rank) between the same memory in the fastest shape of those tried, places known before; the ranks meet before and after. Dispatch also quantises, counts, and writes a row to each of its experts.',
} as const;

export type CudaLowLatencyBenchReport = NonNullable<Awaited<ReturnType<typeof runCudaLowLatencyBench>>>;

/**
 * Collective. Returns the result document on rank 0 and undefined elsewhere. Fails with WL_INVALID_ARGUMENT, with WL_MEMORY
 * when windows or results do not fit, and with WL_CHECK when a bare copy leaves other rows than dispatch.
 */
export async function runCudaLowLatencyBench(
  world: World,
  device: CudaDevice,
  options: LowLatencyBenchOptions & { readonly isOneShape: boolean },
  progress?: Progress,
) {
  const { workload, variant, dtypes, iterations, warmup, pairs, numSms } = options;
  using tools = await makeCudaTools(world, device, workload, options.isOneShape);
  const { gpuMachine } = tools;
  await using buffer = await EpBuffer.create(world, device, {
    ...benchBufferConfig(workload),
    numSms: numSms || device.properties.multiprocessors,
  });
  const copies = await makeBareCopies(tools, buffer, dtypes);
  await using calls = await makeLowLatencyCalls(world, device, options, tools);
  using made = await makeLowLatencyCases(device, calls, dtypes, pairs);
  const cases: LowLatencyCase[] = [
    ...[...copies].map(([name, { launch }]) => ({ name, dtype: dtypeOf(name), run: launch })),
    ...made.cases,
  ];
  const schema = 'weftline.bench.ep.low-latency.cuda/1' as const;
  const head = { schema, method: lowLatencyMethod, variant, workload, warmup, iterations, pairs, gpuMachine };
  const report = await recordRun(world, head, async () => {
    const samples = await measureInTurn(world, cases, { warmup, iterations, progress }, async (one) => {
      await one.prepare?.();
      if (one.prepare !== undefined) await calls.settle();
      const time = await tools.stopwatch.onDevice(one.run);
      await one.after?.();
      return { time: time / (one.calls ?? 1) };
    });
    const timesOf = samples.map((of) => of.slowest('time'));
    return {
      windowBytes: calls.ll.size.bytes,
      cases: cases.map(({ name, dtype, copy }, index) => {
        const bare = timesOf[cases.findIndex((other) => other.name === copy)];
        const times = timesOf[index]!;
        const ratio = bare && { ratioToCopy: median(bare.map((time, at) => time / times[at]!)) };
        return { name, dtype, microseconds: percentilesOf(times), ...ratio };
      }),
    };
  });
  await world.barrier('bench-done');
  return report;
}

function dtypeOf(copy: string): RowDtype {
  return copy === pushName('fp8') ? 'fp8' : 'bf16';
}

/** Collective: makes calls, so that all memory is there and all graphs can be recorded. */
async function makeLowLatencyCases(
  device: CudaDevice,
  calls: LowLatencyCalls,
  dtypes: readonly RowDtype[],
  pairs: number,
): Promise<Disposable & { readonly cases: readonly LowLatencyCase[] }> {
  const cases: LowLatencyCase[] = [];
  const graphs: CudaGraph[] = [];
  for (const dtype of dtypes) {
    for (let parity = 0; parity < 2; parity += 1) await calls.pair(dtype);
  }
  const record = async (work: () => Promise<unknown>): Promise<() => void> => {
    const graph = await device.capture(async () => {
      for (let at = 0; at < pairs; at += 1) await work();
    });
    graphs.push(graph);
    return () => graph.launch();
  };
  for (const dtype of dtypes) {
    for (const one of singleCases(calls, dtype, dtype === dtypes.at(-1))) {
      if (one.name === `dispatch ${dtype}`) cases.push({ ...one, copy: pushName(dtype) });
      else cases.push(one.name === 'combine bf16' ? { ...one, copy: pullName } : one);
    }
    const chained = { dtype, calls: pairs };
    const dispatches = await record(() => calls.dispatch(dtype));
    cases.push({ ...chained, name: `dispatch ${dtype}, chained`, copy: pushName(dtype), run: dispatches });
    cases.push({ ...chained, name: `pair ${dtype}, chained`, run: await record(() => calls.pair(dtype)) });
  }
  const last = await calls.dispatch('bf16');
  const combines = await record(() => calls.combine(last));
  // The chain combines the result of whichever dispatch came last into that memory: rows of the same shape.
  cases.push({ name: 'combine bf16, chained', dtype: 'bf16', calls: pairs, copy: pullName, run: combines });
  await calls.settle();
  return {
    cases,
    [Symbol.dispose]: () => {
      for (const graph of graphs) graph[Symbol.dispose]();
    },
  };
}
