// One EpBuffer under test, its inputs and its calls, whatever the device: a call is over when its results are there.
import type { CpuDevice } from '../../../device/cpu/cpu-device.ts';
import type { CudaDevice } from '../../../device/cuda/cuda-device.ts';
import type { Tensor } from '../../../device/tensor.ts';
import { type DispatchHandle, EpBuffer, type RowsLike } from '../../../ep/index.ts';
import type { World } from '../../../world/index.ts';
import type { BenchGroup } from '../interleaved.ts';
import { benchBufferConfig } from './ep-memory.ts';
import { type EpRouting, type EpWorkload, generateBf16Rows, generateFp8Rows, generateRouting } from './ep-workload.ts';

export interface BufferCalls extends AsyncDisposable {
  /** Its barrier is the buffer's own, which lets ranks go at nearly the same time. */
  readonly group: BenchGroup;
  readonly buffer: EpBuffer;
  readonly routing: EpRouting;
  readonly topkIdx: Tensor<'i32'>;
  readonly topkWeights: Tensor<'f32'>;
  /** The tokens as combine knows them, and as dispatch carries them. */
  readonly bf16: Tensor<'bf16'>;
  readonly x: RowsLike;
  /** bf16 [T, H]: what combine returns. */
  readonly out: Tensor<'bf16'>;
  /** The experts' output: the routing never changes, so one tensor serves all iterations. */
  readonly expertOutput: Tensor<'bf16'>;
  /** Rows of the first dispatch. */
  readonly recvX: RowsLike;
  /** Of the newest dispatch. */
  readonly handle: () => DispatchHandle;
  /** Disposes the handles of all dispatches but the newest. */
  readonly tidy: () => void;
  readonly dispatch: () => Promise<void>;
  readonly dispatchCached: () => Promise<void>;
  /** Brings the experts' output to where combine reads it; on GPUs, what dispatch left there serves. */
  readonly writeExpertOutput: () => void;
  /** Of rows that lie in the window. */
  readonly combine: () => Promise<void>;
  /** Of rows elsewhere. */
  readonly combineStaged: () => Promise<void>;
}

/** Collective. Makes the buffer and its inputs, and dispatches once. */
export async function makeBufferCalls(
  world: World,
  device: CpuDevice | CudaDevice,
  workload: EpWorkload,
  options: { readonly numSms?: number } = {},
): Promise<BufferCalls> {
  const { tokens, hidden, topk } = workload;
  const routing = generateRouting(workload, world.rank);
  const topkIdx = await device.tensor('i32', [tokens, topk], routing.topkIdx);
  const topkWeights = await device.tensor('f32', [tokens, topk], routing.topkWeights);
  const bf16 = await device.tensor('bf16', [tokens, hidden], generateBf16Rows(workload, tokens, world.rank));
  const x: RowsLike = workload.dtype === 'bf16' ? bf16 : await fp8Input(device, workload, world.rank);
  const buffer = await EpBuffer.create(world, device, { ...benchBufferConfig(workload), ...options });
  const group: BenchGroup = {
    rank: world.rank,
    size: world.size,
    barrier: () => buffer.barrier(),
    allGather: (name, value) => world.allGather(name, value),
  };
  const first = await buffer.dispatch({ x, topkIdx, topkWeights });
  const handles = [first.handle];
  const handle = (): DispatchHandle => handles[0] as DispatchHandle;
  const outputRows = generateBf16Rows(workload, handle().rows, world.rank);
  const expertOutput = await device.tensor('bf16', [handle().rows, hidden], outputRows);
  const done = async (): Promise<void> => (device.kind === 'cuda' ? device.stream.idle() : undefined);
  const out = device.empty('bf16', [tokens, hidden]);
  return {
    group,
    buffer,
    routing,
    topkIdx,
    topkWeights,
    bf16,
    x,
    out,
    expertOutput,
    recvX: first.recvX,
    handle,
    tidy: () => {
      for (const old of handles.splice(1)) old.dispose();
    },
    dispatch: async () => {
      handles.unshift((await buffer.dispatch({ x, topkIdx, topkWeights })).handle);
      await done();
    },
    dispatchCached: async () => {
      await buffer.dispatch({ x, handle: handle() });
      await done();
    },
    writeExpertOutput: () => {
      if (device.kind === 'cuda') return;
      const target = buffer.combineInput(handle());
      device.kernels.copyBytes(target.address, expertOutput.address, expertOutput.bytes);
    },
    combine: async () => {
      await buffer.combine({ x: buffer.combineInput(handle()), handle: handle(), out });
      await done();
    },
    combineStaged: async () => {
      await buffer.combine({ x: expertOutput, handle: handle(), out });
      await done();
    },
    [Symbol.asyncDispose]: () => buffer[Symbol.asyncDispose](),
  };
}

async function fp8Input(device: CpuDevice | CudaDevice, workload: EpWorkload, rank: number): Promise<RowsLike> {
  const { tokens, hidden } = workload;
  const { data, scales } = generateFp8Rows(workload, tokens, rank);
  return {
    data: await device.tensor('fp8e4m3', [tokens, hidden], data),
    scales: await device.tensor('f32', [tokens, scales.length / tokens], scales),
  };
}
