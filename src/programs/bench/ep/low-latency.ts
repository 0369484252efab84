// The low-latency bench on CPU ranks: dispatch, combine, chained pairs, and the parts before and behind a hook.
import type { CpuDevice } from '../../../device/cpu/cpu-device.ts';
import type { CudaDevice } from '../../../device/cuda/cuda-device.ts';
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
import { type EpTensors, makeEpInputs } from './ep-calls.ts';
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
  /** SMs of calls and bare copies on GPUs; 0: all. */
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
  await using calls = await makeLowLatencyCalls(world, device, options, inputs);
  await calls.writeOutput(full);
  const cases = dtypes.flatMap((dtype) => [
    ...singleCases(calls, dtype, dtype === dtypes.at(-1)),
    { name: `pair ${dtype}, chained`, dtype, run: () => chain(calls, dtype, pairs) },
  ]);
  const rounds = { warmup, iterations, progress };
  const schema = 'weftline.bench.ep.low-latency/1' as const;
  const head = { schema, method, variant, workload, warmup, iterations, pairs };
  return await recordRun(world, head, async () => {
    const samples = await measureInTurn(world, cases, rounds, async ({ prepare, run, after }) => {
      await prepare?.();
      await calls.settle();
      const begin = monotonicMicroseconds();
      const times = await run();
      const end = monotonicMicroseconds();
      await after?.();
      return { time: Array.isArray(times) ? (times as number[]) : end - begin };
    });
    const microseconds = samples.map((of) => percentilesOf(of.slowest('time')));
    return {
      windowsBytes: calls.ll.size.addressSpaceBytes,
      cases: cases.map(({ name, dtype }, index) => ({ name, dtype, microseconds: microseconds[index]! })),
    };
  });
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

export type LowLatencyCalls = Awaited<ReturnType<typeof makeLowLatencyCalls>>;

/** Collective. The object under test and its calls; the experts between dispatch and combine compute nothing. */
export async function makeLowLatencyCalls(
  world: World,
  device: CpuDevice | CudaDevice,
  options: LowLatencyBenchOptions,
  { bf16, topkIdx, topkWeights, out }: EpTensors,
) {
  const { experts, ranks, tokens, hidden } = options.workload;
  const weights = { topkWeights };
  const [ofDispatch, ofCombine] = options.variant === 'choices' ? [{}, weights] : [weights, {}];
  // The experts' output where it need not lie in the window: one tensor serves all calls.
  const isAnywhere = options.variant === 'rank-sums';
  const anywhere = isAnywhere ? device.empty('bf16', [experts / ranks, ranks * tokens, hidden]) : undefined;
  if (anywhere && device.kind === 'cuda') device.setBytes(anywhere, 0);
  const ll = await EpLowLatency.create(world, device, configOf(options));
  const dispatchArgs = (dtype: RowDtype) => ({ x: bf16, topkIdx, ...ofDispatch, dtype });
  const combineArgs = async ({ handle }: LowLatencyDispatchResult) => {
    return { x: anywhere ?? (await ll.combineInput(handle)), handle, out, ...ofCombine };
  };
  const calls = {
    ll,
    dispatch: (dtype: RowDtype): Promise<LowLatencyDispatchResult> =>
      ll.dispatch({ ...dispatchArgs(dtype), returnRecvHook: false }),
    sendDispatch: (dtype: RowDtype): Promise<PendingDispatch> =>
      ll.dispatch({ ...dispatchArgs(dtype), returnRecvHook: true }),
    combine: async (result: LowLatencyDispatchResult): Promise<unknown> =>
      ll.combine({ ...(await combineArgs(result)), returnRecvHook: false }),
    sendCombine: async (result: LowLatencyDispatchResult): Promise<PendingCombine> =>
      ll.combine({ ...(await combineArgs(result)), returnRecvHook: true }),
    pair: async (dtype: RowDtype): Promise<void> => void (await calls.combine(await calls.dispatch(dtype))),
    /** Nothing of earlier calls runs on any rank afterwards. */
    settle: (): Promise<void> => ll.barrier(),
    /** Writes the rows that combine reads, so that no sum meets what no call touched; CPU ranks alone. */
    writeOutput: async (workload: EpWorkload): Promise<void> => {
      for (let dispatch = 0; dispatch < 2; dispatch += 1) {
        const result = await calls.dispatch('bf16');
        const { x: y } = await combineArgs(result);
        for (const [block, count] of result.recvCount.view().entries()) {
          const values = generateBf16Rows(workload, count, ll.group.rank);
          y.view().set(values, block * y.shape[1]! * workload.hidden);
        }
      }
      await ll.barrier();
    },
    [Symbol.asyncDispose]: (): Promise<void> => ll.close(),
  };
  return calls;
}
