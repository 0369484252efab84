// The low-latency bench on CPU ranks: dispatch, combine, chained pairs, and the parts before and behind a hook.
import type { CpuDevice } from '../../../../device/cpu/cpu-device.ts';
import type { Tensor } from '../../../../device/tensor.ts';
import { EpLowLatency, type LowLatencyDispatchArguments, type LowLatencyDispatchResult } from '../../../../ep/index.ts';
import type { World } from '../../../../world/index.ts';
import { monotonicMicroseconds } from '../../clock.ts';
import { loadAverage, machineDocument } from '../../machine.ts';
import { checkEpWorkload, type EpWorkload, generateBf16Rows, generateRouting } from '../ep-workload.ts';
import { sampleMachine } from '../sample-machine.ts';
import { lowLatencyConfigOf } from './low-latency-config.ts';
import {
  type LowLatencyBenchReport,
  type LowLatencyCaseResult,
  lowLatencyMethod,
  type LowLatencyVariant,
  slowestRank,
} from './low-latency-results.ts';

export interface LowLatencyBenchOptions {
  readonly workload: Omit<EpWorkload, 'dtype'>;
  readonly variant: LowLatencyVariant;
  readonly dtypes: readonly ('fp8' | 'bf16')[];
  readonly iterations: number;
  readonly warmup: number;
  /** Pairs of a chain; a chain runs in each iteration. */
  readonly pairs: number;
  /** On GPUs: SMs of calls and bare copies; 0: all. */
  readonly numSms: number;
}

/**
 * Collective. Returns the result document on rank 0 and undefined elsewhere. Fails with WL_INVALID_ARGUMENT, and with
 * WL_MEMORY or WL_SHARED_MEMORY when windows or results do not fit.
 */
export async function runLowLatencyBench(
  world: World,
  device: CpuDevice,
  options: LowLatencyBenchOptions,
  progress?: (done: number, total: number) => void,
): Promise<LowLatencyBenchReport | undefined> {
  const { workload, variant, dtypes, iterations, warmup, pairs } = options;
  checkEpWorkload({ ...workload, dtype: 'bf16' });
  await using calls = await LowLatencyCalls.create(world, device, workload, variant);
  const before = await sampleMachine(world);
  const loadBefore = loadAverage();
  const samples = new Map<string, { dtype: 'fp8' | 'bf16'; name: string; times: number[] }>();
  for (let iteration = -warmup; iteration < iterations; iteration += 1) {
    for (const dtype of dtypes) {
      const times = await calls.round(dtype, pairs);
      if (iteration < 0) continue;
      for (const [name, more] of Object.entries(times)) {
        const of = samples.get(`${dtype} ${name}`) ?? { dtype, name, times: [] };
        samples.set(`${dtype} ${name}`, of);
        of.times.push(...more);
      }
    }
    progress?.(iteration + warmup + 1, warmup + iterations);
  }
  const loadAfter = loadAverage();
  const after = await sampleMachine(world);
  const cases: LowLatencyCaseResult[] = [];
  for (const { dtype, name, times } of samples.values()) {
    const byRank = await world.allGather('bench-samples', times);
    cases.push({ name, dtype, microseconds: slowestRank(byRank) });
  }
  await world.barrier('bench-done');
  if (before === undefined || after === undefined) return undefined;
  return {
    schema: 'weftline.bench.ep.low-latency/1',
    date: new Date().toISOString(),
    method: lowLatencyMethod,
    variant,
    workload,
    warmup,
    iterations,
    pairs,
    machine: machineDocument(),
    settings: world.settings,
    loadAverage: { before: loadBefore, after: loadAfter },
    placement: { before, after },
    windowsBytes: calls.windowsBytes,
    cases,
  };
}

interface BenchInputs {
  readonly x: Tensor<'bf16'>;
  readonly topkIdx: Tensor<'i32'>;
  readonly topkWeights: Tensor<'f32'>;
  /** What combine returns. */
  readonly out: Tensor<'bf16'>;
  /** The experts' output where it is read in place: one tensor serves all calls. */
  readonly y: Tensor<'bf16'> | undefined;
}

/** One object under test and its inputs. */
class LowLatencyCalls implements AsyncDisposable {
  readonly #ll: EpLowLatency;
  readonly #inputs: BenchInputs;
  readonly #variant: LowLatencyVariant;

  static async create(
    world: World,
    device: CpuDevice,
    workload: Omit<EpWorkload, 'dtype'>,
    variant: LowLatencyVariant,
  ): Promise<LowLatencyCalls> {
    const full: EpWorkload = { ...workload, dtype: 'bf16' };
    const { tokens, hidden, topk, ranks, experts } = workload;
    const routing = generateRouting(full, world.rank);
    const inputs = {
      x: await device.tensor('bf16', [tokens, hidden], generateBf16Rows(full, tokens, world.rank)),
      topkIdx: await device.tensor('i32', [tokens, topk], routing.topkIdx),
      topkWeights: await device.tensor('f32', [tokens, topk], routing.topkWeights),
      out: device.empty('bf16', [tokens, hidden]),
      y: variant === 'rank-sums' ? device.empty('bf16', [experts / ranks, ranks * tokens, hidden]) : undefined,
    };
    const ll = await EpLowLatency.create(world, device, lowLatencyConfigOf(workload, variant));
    const calls = new LowLatencyCalls(ll, inputs, variant);
    await calls.#writeOutput(full, world.rank);
    return calls;
  }

  private constructor(ll: EpLowLatency, inputs: BenchInputs, variant: LowLatencyVariant) {
    this.#ll = ll;
    this.#inputs = inputs;
    this.#variant = variant;
  }

  get windowsBytes(): number {
    return this.#ll.size.addressSpaceBytes;
  }

  /** Microseconds on this rank, by case. */
  async round(dtype: 'fp8' | 'bf16', pairs: number): Promise<Record<string, number[]>> {
    const ll = this.#ll;
    const dispatchArgs = { ...this.#dispatchArgs(), dtype };
    await ll.barrier();
    const t0 = monotonicMicroseconds();
    const result = await ll.dispatch({ ...dispatchArgs, returnRecvHook: false });
    const t1 = monotonicMicroseconds();
    const combineArgs = await this.#combineArgs(result);
    await ll.barrier();
    const t2 = monotonicMicroseconds();
    await ll.combine({ ...combineArgs, returnRecvHook: false });
    const t3 = monotonicMicroseconds();
    await ll.barrier();
    const t4 = monotonicMicroseconds();
    const dispatching = await ll.dispatch({ ...dispatchArgs, returnRecvHook: true });
    const t5 = monotonicMicroseconds();
    await ll.barrier();
    const t6 = monotonicMicroseconds();
    const received = await dispatching.hook();
    const t7 = monotonicMicroseconds();
    const sums = await this.#combineArgs(received);
    await ll.barrier();
    const t8 = monotonicMicroseconds();
    const combining = await ll.combine({ ...sums, returnRecvHook: true });
    const t9 = monotonicMicroseconds();
    await ll.barrier();
    const t10 = monotonicMicroseconds();
    await combining.hook();
    const t11 = monotonicMicroseconds();
    await ll.barrier();
    return {
      dispatch: [t1 - t0],
      combine: [t3 - t2],
      'chained pair': await this.#chain(dispatchArgs, pairs),
      'dispatch, send': [t5 - t4],
      'dispatch, receive': [t7 - t6],
      'combine, send': [t9 - t8],
      'combine, receive': [t11 - t10],
    };
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#ll.close();
  }

  async #chain(args: LowLatencyDispatchArguments, pairs: number): Promise<number[]> {
    const times: number[] = [];
    let last = monotonicMicroseconds();
    for (let pair = 0; pair < pairs; pair += 1) {
      const result = await this.#ll.dispatch({ ...args, returnRecvHook: false });
      await this.#ll.combine({ ...(await this.#combineArgs(result)), returnRecvHook: false });
      const now = monotonicMicroseconds();
      times.push(now - last);
      last = now;
    }
    return times;
  }

  #dispatchArgs(): LowLatencyDispatchArguments {
    const { x, topkIdx, topkWeights } = this.#inputs;
    return { x, topkIdx, ...(this.#variant !== 'choices' && { topkWeights }) };
  }

  async #combineArgs({ handle }: LowLatencyDispatchResult) {
    const { topkWeights, out } = this.#inputs;
    const y = this.#inputs.y ?? (await this.#ll.nextCombineBuffer(handle));
    return { y, handle, out, ...(this.#variant === 'choices' && { topkWeights }) };
  }

  /** Writes the rows that combine reads, so that no sum meets what no call touched. */
  async #writeOutput(workload: EpWorkload, rank: number): Promise<void> {
    for (let dispatch = 0; dispatch < 2; dispatch += 1) {
      const result = await this.#ll.dispatch({ ...this.#dispatchArgs(), dtype: 'bf16', returnRecvHook: false });
      const { y } = await this.#combineArgs(result);
      const rows = y.shape[1]!;
      const counts = result.recvCount.view();
      for (const [block, count] of counts.entries()) {
        const values = generateBf16Rows(workload, count, rank);
        y.view().set(values, block * rows * workload.hidden);
      }
    }
    await this.#ll.barrier();
  }
}
