// EpBuffer and EPAll2AllLayer under test, their inputs and calls, whatever the device.
import type { CpuDevice } from '../../../device/cpu/cpu-device.ts';
import type { CudaDevice } from '../../../device/cuda/cuda-device.ts';
import {
  type DispatchHandle,
  EPAll2AllLayer,
  type EPAllToAllLayoutDesc,
  EpBuffer,
  type RowsLike,
} from '../../../ep/index.ts';
import type { World } from '../../../world/index.ts';
import type { BenchGroup } from '../harness.ts';
import {
  benchBufferConfig,
  type EpWorkload,
  generateBf16Rows,
  generateFp8Rows,
  generateRouting,
  countPairs,
  countRows,
} from './ep-workload.ts';

export type EpTensors = Omit<Awaited<ReturnType<typeof makeEpInputs>>, 'routing'>;

/** Tokens of a rank on its device, the choices of each, and room for what combine returns. */
export async function makeEpInputs(world: World, device: CpuDevice | CudaDevice, workload: EpWorkload) {
  const { tokens, hidden, topk } = workload;
  const routing = generateRouting(workload, world.rank);
  return {
    routing,
    topkIdx: await device.tensor('i32', [tokens, topk], routing.topkIdx),
    topkWeights: await device.tensor('f32', [tokens, topk], routing.topkWeights),
    bf16: await device.tensor('bf16', [tokens, hidden], generateBf16Rows(workload, tokens, world.rank)),
    /** bf16 [T, H] */
    out: device.empty('bf16', [tokens, hidden]),
  };
}

export async function makeFp8Rows(device: CpuDevice | CudaDevice, workload: EpWorkload, rank: number) {
  const { tokens, hidden } = workload;
  const { data, scales } = generateFp8Rows(workload, tokens, rank);
  return {
    data: await device.tensor('fp8e4m3', [tokens, hidden], data),
    scales: await device.tensor('f32', [tokens, scales.length / tokens], scales),
  };
}

/** Collective. Makes the buffer and its inputs, and dispatches once. A call is over when its results are there. */
export async function makeBufferCalls(
  world: World,
  device: CpuDevice | CudaDevice,
  workload: EpWorkload,
  options: { readonly numSms?: number } = {},
) {
  const inputs = await makeEpInputs(world, device, workload);
  const { topkIdx, topkWeights, out } = inputs;
  const x: RowsLike = workload.dtype === 'bf16' ? inputs.bf16 : await makeFp8Rows(device, workload, world.rank);
  const buffer = await EpBuffer.create(world, device, { ...benchBufferConfig(workload), ...options });
  const first = await buffer.dispatch({ x, topkIdx, topkWeights });
  const handles = [first.handle];
  const handle = (): DispatchHandle => handles[0]!;
  // The experts' output: the routing never changes, so one tensor serves all iterations.
  const outputRows = generateBf16Rows(workload, handle().rows, world.rank);
  const expertOutput = await device.tensor('bf16', [handle().rows, workload.hidden], outputRows);
  const done = async (): Promise<void> => (device.kind === 'cuda' ? device.stream.idle() : undefined);
  /** The group's barrier is the buffer's own, which lets ranks go at nearly the same time. */
  const group: BenchGroup = {
    rank: world.rank,
    size: world.size,
    barrier: () => buffer.barrier(),
    allGather: (name, value) => world.allGather(name, value),
  };
  /** Disposes the handles of all dispatches but the newest. */
  const tidy = (): void => {
    for (const old of handles.splice(1)) old.close();
  };
  /** Brings the experts' output to where combine reads it; on GPUs, what dispatch left there serves. */
  const writeExpertOutput = (): void => {
    if (device.kind === 'cuda') return;
    const target = buffer.combineInput(handle());
    device.kernels.copyBytes(target.address, expertOutput.address, expertOutput.bytes);
  };
  return {
    ...inputs,
    group,
    buffer,
    x,
    /** Rows of the first dispatch. */
    recvX: first.recvX,
    tidy,
    writeExpertOutput,
    dispatch: {
      name: 'dispatch',
      description: 'EpBuffer.dispatch with choices and weights: counts, exchange, rows',
      prepare: tidy,
      run: async (): Promise<void> => {
        handles.unshift((await buffer.dispatch({ x, topkIdx, topkWeights })).handle);
        await done();
      },
    },
    dispatchCached: {
      name: 'dispatch cached',
      description: 'EpBuffer.dispatch with the handle of an earlier one: rows only',
      run: async (): Promise<void> => {
        await buffer.dispatch({ x, handle: handle() });
        await done();
      },
    },
    combine: {
      name: 'combine',
      description: 'EpBuffer.combine of rows that were written into the window (combineInput)',
      prepare: writeExpertOutput,
      run: async (): Promise<void> => {
        await buffer.combine({ x: buffer.combineInput(handle()), handle: handle(), out });
        await done();
      },
    },
    combineStaged: {
      name: 'combine staged',
      description: 'EpBuffer.combine of rows elsewhere, which it copies into the window first',
      run: async (): Promise<void> => {
        await buffer.combine({ x: expertOutput, handle: handle(), out });
        await done();
      },
    },
    [Symbol.asyncDispose]: (): Promise<void> => buffer[Symbol.asyncDispose](),
  };
}

interface LayerInputs extends EpTensors {
  readonly world: World;
  readonly device: CpuDevice | CudaDevice;
  readonly workload: EpWorkload;
}

export type LayerCalls = Awaited<ReturnType<typeof makeLayerCalls>>;

/** Collective. Makes the layer, and dispatches once. */
export async function makeLayerCalls(
  { world, device, workload, bf16, topkIdx, topkWeights, out }: LayerInputs,
  options: { readonly numSms?: number; readonly enableLocalCombine?: boolean } = {},
) {
  const { tokens, hidden, topk, experts } = workload;
  const choices = await topkIdx.toHost();
  const pairs = await world.allGather('bench-pairs', countPairs(choices, experts / world.size, world.size));
  const received = pairs.map((_, rank) => pairs.reduce((sum, row) => sum + row[rank]!, 0));
  const layer = await EPAll2AllLayer.create(world, device, {
    ...options,
    maxTokensPerRank: tokens,
    hidden,
    maxTopk: topk,
    numExperts: experts,
    // Just what this routing needs, so that the output never grows while it is timed.
    capacity: (Math.max(...received) + 1) / (tokens * topk),
  });
  const descriptors: EPAllToAllLayoutDesc[] = [];
  const descriptor = (): EPAllToAllLayoutDesc => descriptors[0]!;
  const dispatch = async (): Promise<void> => {
    descriptors.unshift((await layer.dispatch({ x: bf16, topkIdx, topkWeights })).handle);
  };
  await dispatch();
  /** Disposes the descriptors of all dispatches but the newest. */
  const tidy = (): void => {
    for (const old of descriptors.splice(1)) old.close();
  };
  return {
    layer,
    /** Rows are bf16, one per (token, expert); [source][destination], and of all together. */
    pairsOfRanks: pairs,
    pairs: countRows(pairs),
    /** What the newest dispatch returned. */
    descriptor,
    tidy,
    dispatch: {
      name: 'layer dispatch',
      description: 'EPAll2AllLayer.dispatch with weights: one row per (token, expert), grouped by expert',
      prepare: tidy,
      run: dispatch,
    },
    combine: {
      name: 'layer combine',
      description: 'EPAll2AllLayer.combine of rows that were written into the window (combineInput)',
      run: async (): Promise<void> => {
        const handle = descriptor();
        await layer.combine({ x: layer.combineInput(handle), handle, out });
      },
    },
    [Symbol.asyncDispose]: (): Promise<void> => layer.close(),
  };
}
