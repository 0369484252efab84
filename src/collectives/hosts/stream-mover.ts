// Moves and adds up the bytes of calls on a stream of a GPU: copies by its copy engines, reductions by a kernel.
import { reductionFormats, reductions } from '../../abi/element-formats.ts';
import type { runArguments } from '../../abi/collectives.ts';
import type { CudaDevice } from '../../device/cuda/cuda-device.ts';
import type { CudaEvent } from '../../device/cuda/cuda-event.ts';
import type { CudaStream } from '../../device/cuda/cuda-stream.ts';
import { collectiveRunKernels } from '../../device/cuda/kernels/collectives.ts';
import type { LaunchPlan } from '../../device/cuda/kernel.ts';
import type { PinnedRange } from '../../device/cuda/host-memory.ts';
import type { CollectiveCall, ReducedDType } from '../collective-call.ts';
import type { Mover } from '../cpu/mover.ts';

type RunPlan = LaunchPlan<keyof typeof runArguments.offset>;

/** By dtype. */
export type RunPlans = Readonly<Record<ReducedDType, RunPlan>>;

const THREADS = 512;
/** What one block adds up before others share the work. */
const BLOCK_BYTES = 8192;

/** Compiles. Fails with WL_COMPILE, WL_UNSUPPORTED or WL_CUDA. */
export async function loadRunPlans(device: CudaDevice): Promise<RunPlans> {
  const plan = async (FORMAT: number): Promise<RunPlan> => {
    const { collectiveRuns } = await device.loadKernels(collectiveRunKernels, { FORMAT });
    return collectiveRuns.plan({ grid: 1, block: THREADS });
  };
  const { bf16, f32, i32 } = reductionFormats;
  const plans = await Promise.all([plan(bf16), plan(f32), plan(i32)]);
  return { bf16: plans[0], f32: plans[1], i32: plans[2] };
}

interface StreamMoverParts {
  readonly plans: RunPlans;
  /** Multiprocessors that a reduction may use. */
  readonly numSms: number;
  /** Of the host, from which and to which it moves bytes; owned by the mover. */
  readonly memory: PinnedRange;
}

export class StreamMover implements Mover {
  readonly isImmediate = false;
  readonly sources: number[] = [];
  /** Of the present call. */
  stream: CudaStream;
  readonly #device: CudaDevice;
  readonly #plans: RunPlans;
  readonly #numSms: number;
  readonly #memory: PinnedRange;
  readonly #end: CudaEvent;

  constructor(device: CudaDevice, { plans, numSms, memory }: StreamMoverParts) {
    this.stream = device.stream;
    this.#device = device;
    this.#plans = plans;
    this.#numSms = numSms;
    this.#memory = memory;
    this.#end = device.createEvent();
  }

  copy(to: number, from: number, bytes: number): void {
    if (bytes > 0) this.#device.copyAsync(to, from, bytes, this.stream);
  }

  reduce({ dtype, reduction }: CollectiveCall, count: number, out: number, bytes: number): void {
    if (bytes === 0) return;
    const plan = this.#plans[dtype as ReducedDType];
    const set = plan.arguments;
    for (let place = 0; place < count; place++) set.set('sources', this.sources[place]!, place);
    set.set('target', out);
    set.set('bytes', bytes);
    set.set('count', count);
    set.set('reduction', reductions[reduction]);
    plan.setGrid(Math.max(1, Math.min(this.#numSms, Math.ceil(bytes / BLOCK_BYTES))));
    plan.launch(this.stream);
  }

  mark(): void {
    this.#end.record(this.stream);
  }

  isSettled(): boolean {
    return this.#end.isDone();
  }

  [Symbol.dispose](): void {
    this.#end[Symbol.dispose]();
    this.#memory[Symbol.dispose]();
  }
}
