// The low-latency bench on CPU ranks: dispatch, combine, chained pairs, and the parts before and behind a hook.
import type { CpuDevice } from '../../../device/cpu/cpu-device.ts';
import type { CudaDevice } from '../../../device/cuda/cuda-device.ts';
import type { Tensor } from '../../../device/tensor.ts';
import {
  EpLowLatency,
  type LowLatencyConfig,
  type LowLatencyDispatchResult,
  type PendingCombine,
  type PendingDispatch,
} from '../../../ep/index.ts';
import type { World } from '../../../world/index.ts';
import { type BenchCase, measureInTurn, monotonicMicroseconds, percentilesOf, type Progress } from '../harness.ts';
import { recordRun } from '../machine.ts';
import { makeEpInputs } from './ep-calls.ts';
import { checkEpWorkload, type EpWorkload, generateBf16Rows } from './ep-workload.ts';

/** Written into every document, so that a number can be read without this source. */
const method = {
  slowest: 'Each sample is the longest time of any rank; percentiles are of the samples, in microseconds.',
  dispatch: 'From the call to its result, after a barrier.',
  combine: 'From the call to its result, after a barrier. In variants other than rank-sums x lies in combineInput.',
  pair: 'Chained: period of dispatch and combine in a chain without barriers; the experts between them compute nothing.',
  parts:
    'Send: the call with returnRecvHook, after a barrier. Receive: the hook, after another barrier, so that it waits for nobody.',
} as const;

/** How rows stand, and what of them travels back: see LowLatencyConfig. */
export const lowLatencyVariants = ['rank-sums', 'choices', 'rank-major'] as const;
type LowLatencyVariant = (typeof lowLatencyVariants)[number];

type RowDtype = EpWorkload['dtype'];

export interface LowLatencyBenchOptions {
  readonly workload: Omit<EpWorkload, 'dtype'>;
  readonly variant: LowLatencyVariant;
  readonly dtypes: readonly RowDtype[];
  readonly iterations: number;
  readonly warmup: number;
  /** Pairs of a chain; a chain runs in each iteration. */
  readonly pairs: number;
  /** On GPUs: SMs of calls and bare copies; 0: all. */
  readonly numSms: number;
}

export type LowLatencyBenchReport = NonNullable<Awaited<ReturnType<typeof runLowLatencyBench>>>;

/**
 * Collective. Returns the result document on rank 0 and undefined elsewhere. Fails with WL_INVALID_ARGUMENT, and with
 * WL_MEMORY or WL_SHARED_MEMORY when windows or results do not fit.
 */
export async function runLowLatencyBench(
  world: World,
  device: CpuDevice,
  options: LowLatencyBenchOptions,
  progress?: Progress,
) {
  const { workload, variant, dtypes, iterations, warmup, pairs } = options;
  const full: EpWorkload = { ...workload, dtype: 'bf16' };
  checkEpWorkload(full);
  const inputs = await makeEpInputs(world, device, full);
  await using calls = await LowLatencyCalls.create(world, device, options, inputs);
  await calls.writeOutput(full);
  const cases = dtypes.flatMap((dtype) => [
    ...singleCases(calls, dtype, dtype === dtypes.at(-1)),
    { name: `pair ${dtype}, chained`, dtype, run: () => chain(calls, dtype, pairs) },
  ]);
  const [samples, record] = await recordRun(world, () =>
    measureInTurn(world, cases, { warmup, iterations, progress }, async ({ prepare, run, after }) => {
      await prepare?.();
      await calls.settle();
      const begin = monotonicMicroseconds();
      const times = await run();
      const end = monotonicMicroseconds();
      await after?.();
      return { time: Array.isArray(times) ? (times as number[]) : end - begin };
    }),
  );
  if (record === undefined) return undefined;
  return {
    schema: 'weftline.bench.ep.low-latency/1' as const,
    method,
    variant,
    workload,
    warmup,
    iterations,
    pairs,
    ...record,
    windowsBytes: calls.ll.size.addressSpaceBytes,
    cases: cases.map(({ name, dtype }, index) => ({
      name,
      dtype,
      microseconds: percentilesOf(samples[index]!.slowest('time')),
    })),
  };
}

/** Microseconds of each pair. */
async function chain(calls: LowLatencyCalls, dtype: RowDtype, pairs: number): Promise<number[]> {
  const times: number[] = [];
  let last = monotonicMicroseconds();
  for (let pair = 0; pair < pairs; pair += 1) {
    await calls.pair(dtype);
    const now = monotonicMicroseconds();
    times.push(now - last);
    last = now;
  }
  return times;
}

/** Rows of an expert in the variant 'choices', which takes them all in the window: so many times the mean. */
const ROOM_PER_EXPERT = 4;

function configOf({ workload, variant, numSms }: LowLatencyBenchOptions): LowLatencyConfig {
  const { ranks, tokens, hidden, topk, experts } = workload;
  const config: LowLatencyConfig = { maxTokensPerRank: tokens, hidden, numExperts: experts, maxTopk: topk, numSms };
  if (variant === 'rank-major') return { ...config, layout: variant };
  const most = ranks * tokens;
  const room = Math.min(most, Math.ceil((ROOM_PER_EXPERT * most * topk) / experts));
  const overflow = 'drop' as const;
  return { ...config, combineTravels: variant, ...(variant === 'choices' && { maxTokensPerExpert: room, overflow }) };
}

export interface LowLatencyCase extends BenchCase {
  readonly dtype: RowDtype;
  /** How many calls one run makes, if not one. */
  readonly calls?: number;
  /** The bare copy of the same rows. */
  readonly copy?: string;
}

/** One call or its parts, each from a barrier on. Combine is of bf16 rows, whatever was dispatched. */
export function singleCases(calls: LowLatencyCalls, dtype: RowDtype, withCombine: boolean): LowLatencyCase[] {
  let result: LowLatencyDispatchResult | undefined;
  let dispatching: PendingDispatch | undefined;
  let combining: PendingCombine | undefined;
  const dispatch = async (): Promise<void> => void (result = await calls.dispatch(dtype));
  const send = async (): Promise<void> => void (dispatching = await calls.sendDispatch(dtype));
  const receive = async (): Promise<void> => void (await dispatching!.hook());
  const sendSums = async (): Promise<void> => void (combining = await calls.sendCombine(result!));
  const receiveSums = (): Promise<unknown> => combining!.hook();
  const dispatches: LowLatencyCase[] = [
    { name: `dispatch ${dtype}`, dtype, run: dispatch },
    { name: `dispatch ${dtype}, send`, dtype, run: send, after: receive },
    { name: `dispatch ${dtype}, receive`, dtype, prepare: send, run: receive },
    { name: `pair ${dtype}`, dtype, run: () => calls.pair(dtype) },
  ];
  if (!withCombine) return dispatches;
  const combine = { dtype: 'bf16', prepare: dispatch } as const;
  return [
    ...dispatches,
    { ...combine, name: 'combine bf16', run: () => calls.combine(result!) },
    { ...combine, name: 'combine bf16, send', run: sendSums, after: receiveSums },
    {
      ...combine,
      name: 'combine bf16, receive',
      prepare: () => dispatch().then(sendSums),
      run: receiveSums,
    },
  ];
}

interface LowLatencyInputs {
  readonly bf16: Tensor<'bf16'>;
  readonly topkIdx: Tensor<'i32'>;
  readonly topkWeights: Tensor<'f32'>;
  readonly out: Tensor<'bf16'>;
}

/** The object under test with its inputs; the experts between dispatch and combine compute nothing. */
export class LowLatencyCalls implements AsyncDisposable {
  readonly ll: EpLowLatency;
  readonly #inputs: LowLatencyInputs;
  readonly #variant: LowLatencyVariant;
  /** The experts' output where it need not lie in the window: one tensor serves all calls. */
  readonly #y: Tensor<'bf16'> | undefined;

  /** Collective. */
  static async create(
    world: World,
    device: CpuDevice | CudaDevice,
    options: LowLatencyBenchOptions,
    inputs: LowLatencyInputs,
  ): Promise<LowLatencyCalls> {
    const { experts, ranks, tokens, hidden } = options.workload;
    const isAnywhere = options.variant === 'rank-sums';
    const y = isAnywhere ? device.empty('bf16', [experts / ranks, ranks * tokens, hidden]) : undefined;
    if (y && device.kind === 'cuda') device.setBytes(y, 0);
    const ll = await EpLowLatency.create(world, device, configOf(options));
    return new LowLatencyCalls(ll, inputs, options.variant, y);
  }

  private constructor(
    ll: EpLowLatency,
    inputs: LowLatencyInputs,
    variant: LowLatencyVariant,
    y: Tensor<'bf16'> | undefined,
  ) {
    this.ll = ll;
    this.#inputs = inputs;
    this.#variant = variant;
    this.#y = y;
  }

  dispatch(dtype: RowDtype): Promise<LowLatencyDispatchResult> {
    return this.ll.dispatch({ ...this.#dispatchArgs(dtype), returnRecvHook: false });
  }

  sendDispatch(dtype: RowDtype): Promise<PendingDispatch> {
    return this.ll.dispatch({ ...this.#dispatchArgs(dtype), returnRecvHook: true });
  }

  async combine(result: LowLatencyDispatchResult): Promise<unknown> {
    return this.ll.combine({ ...(await this.#combineArgs(result)), returnRecvHook: false });
  }

  async sendCombine(result: LowLatencyDispatchResult): Promise<PendingCombine> {
    return this.ll.combine({ ...(await this.#combineArgs(result)), returnRecvHook: true });
  }

  async pair(dtype: RowDtype): Promise<void> {
    await this.combine(await this.dispatch(dtype));
  }

  /** Nothing of earlier calls runs on any rank afterwards. */
  settle(): Promise<void> {
    return this.ll.barrier();
  }

  /** Of CPU ranks: writes the rows that combine reads, so that no sum meets what no call touched. */
  async writeOutput(workload: EpWorkload): Promise<void> {
    for (let dispatch = 0; dispatch < 2; dispatch += 1) {
      const result = await this.dispatch('bf16');
      const { x: y } = await this.#combineArgs(result);
      for (const [block, count] of result.recvCount.view().entries()) {
        const values = generateBf16Rows(workload, count, this.ll.group.rank);
        y.view().set(values, block * y.shape[1]! * workload.hidden);
      }
    }
    await this.settle();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.ll.close();
  }

  #dispatchArgs(dtype: RowDtype) {
    const { bf16, topkIdx, topkWeights } = this.#inputs;
    return { x: bf16, topkIdx, ...(this.#variant !== 'choices' && { topkWeights }), dtype };
  }

  async #combineArgs({ handle }: LowLatencyDispatchResult) {
    const { topkWeights, out } = this.#inputs;
    const y = this.#y ?? (await this.ll.combineInput(handle));
    return { x: y, handle, out, ...(this.#variant === 'choices' && { topkWeights }) };
  }
}
