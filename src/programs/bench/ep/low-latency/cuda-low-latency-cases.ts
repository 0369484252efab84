// The cases of the low-latency bench on GPUs: what is enqueued between two events on the device.
import type { CudaDevice } from '../../../../device/cuda/cuda-device.ts';
import type { CudaGraph } from '../../../../device/cuda/cuda-graph.ts';
import type { Tensor } from '../../../../device/tensor.ts';
import type { EpLowLatency, LowLatencyDispatchResult, PendingCombine, PendingDispatch } from '../../../../ep/index.ts';
import { pullName, pushName } from '../cuda/ep-case.ts';
import type { CudaEpInputs, RowDtype } from '../cuda/ep-inputs.ts';
import type { LowLatencyVariant } from './low-latency-results.ts';

export interface CudaLowLatencyCase {
  readonly name: string;
  readonly dtype: RowDtype;
  /** What the time is divided by. */
  readonly calls: number;
  /** The bare copy of the same rows. */
  readonly copy?: string;
  /** Not timed. */
  readonly prepare?: () => Promise<unknown>;
  readonly run: () => unknown;
  readonly finish?: () => Promise<unknown>;
}

export interface CudaLowLatencyTools {
  readonly ll: EpLowLatency;
  readonly device: CudaDevice;
  readonly inputs: CudaEpInputs;
  readonly variant: LowLatencyVariant;
}

export interface CudaLowLatencyCases extends Disposable {
  readonly cases: readonly CudaLowLatencyCase[];
}

/** Collective: makes calls, so that all memory is there and all graphs can be recorded. */
export async function makeCudaLowLatencyCases(
  tools: CudaLowLatencyTools,
  { dtypes, pairs }: { readonly dtypes: readonly RowDtype[]; readonly pairs: number },
): Promise<CudaLowLatencyCases> {
  const calls = new Calls(tools);
  const cases: CudaLowLatencyCase[] = [];
  const graphs: CudaGraph[] = [];
  for (const dtype of dtypes) {
    for (let parity = 0; parity < 2; parity += 1) await calls.pair(dtype);
  }
  const record = async (work: () => Promise<unknown>): Promise<() => void> => {
    const graph = await tools.device.capture(async () => {
      for (let at = 0; at < pairs; at += 1) await work();
    });
    graphs.push(graph);
    return () => graph.launch();
  };
  for (const dtype of dtypes) {
    cases.push(...singleCases(calls, dtype));
    const chain = { dtype, calls: pairs };
    const dispatches = await record(() => calls.dispatch(dtype));
    cases.push({ ...chain, name: `dispatch ${dtype}, chained`, copy: pushName(dtype), run: dispatches });
    cases.push({ ...chain, name: `pair ${dtype}, chained`, run: await record(() => calls.pair(dtype)) });
  }
  const last = await calls.dispatch('bf16');
  const combines = await record(() => calls.combine(last));
  // The chain combines the result of whichever dispatch came last into that memory: rows of the same shape.
  cases.push({ name: 'combine bf16, chained', dtype: 'bf16', calls: pairs, copy: pullName, run: combines });
  await tools.ll.barrier();
  return {
    cases,
    [Symbol.dispose]: () => {
      for (const graph of graphs) graph[Symbol.dispose]();
    },
  };
}

function singleCases(calls: Calls, dtype: RowDtype): CudaLowLatencyCase[] {
  let result: LowLatencyDispatchResult | undefined;
  let dispatching: PendingDispatch | undefined;
  let combining: PendingCombine | undefined;
  const of = { dtype, calls: 1 };
  const dispatch = async (): Promise<void> => {
    result = await calls.dispatch(dtype);
    await calls.settle();
  };
  const send = async (): Promise<void> => void (dispatching = await calls.sendDispatch(dtype));
  const receive = async (): Promise<void> => void (await dispatching?.hook());
  const sendSums = async (): Promise<void> => void (combining = await calls.sendCombine(result!));
  const receiveSums = (): Promise<unknown> => combining!.hook();
  const dispatches: CudaLowLatencyCase[] = [
    { ...of, name: `dispatch ${dtype}`, copy: pushName(dtype), run: () => calls.dispatch(dtype) },
    { ...of, name: `dispatch ${dtype}, send`, run: send, finish: receive },
    { ...of, name: `dispatch ${dtype}, receive`, prepare: () => send().then(() => calls.settle()), run: receive },
    { ...of, name: `pair ${dtype}`, run: () => calls.pair(dtype) },
  ];
  if (dtype !== 'bf16') return dispatches;
  return [
    ...dispatches,
    { ...of, name: 'combine bf16', copy: pullName, prepare: dispatch, run: () => calls.combine(result!) },
    { ...of, name: 'combine bf16, send', prepare: dispatch, run: sendSums, finish: receiveSums },
    {
      ...of,
      name: 'combine bf16, receive',
      prepare: () =>
        dispatch()
          .then(sendSums)
          .then(() => calls.settle()),
      run: receiveSums,
    },
  ];
}

/** The object under test with its inputs; the experts between dispatch and combine compute nothing. */
class Calls {
  readonly #tools: CudaLowLatencyTools;
  readonly #y: Tensor<'bf16'> | undefined;

  constructor(tools: CudaLowLatencyTools) {
    const { device, variant, inputs } = tools;
    const { experts, ranks, tokens, hidden } = inputs.workload;
    this.#tools = tools;
    // Where experts' rows are read in place, they lie there.
    const isAnywhere = variant === 'rank-sums';
    this.#y = isAnywhere ? device.empty('bf16', [experts / ranks, ranks * tokens, hidden]) : undefined;
    if (this.#y) device.setBytes(this.#y, 0);
  }

  dispatch(dtype: RowDtype): Promise<LowLatencyDispatchResult> {
    return this.#tools.ll.dispatch({ ...this.#dispatchArgs(dtype), returnRecvHook: false });
  }

  sendDispatch(dtype: RowDtype): Promise<PendingDispatch> {
    return this.#tools.ll.dispatch({ ...this.#dispatchArgs(dtype), returnRecvHook: true });
  }

  async combine(result: LowLatencyDispatchResult): Promise<unknown> {
    return this.#tools.ll.combine({ ...(await this.#combineArgs(result)), returnRecvHook: false });
  }

  async sendCombine(result: LowLatencyDispatchResult): Promise<PendingCombine> {
    return this.#tools.ll.combine({ ...(await this.#combineArgs(result)), returnRecvHook: true });
  }

  async pair(dtype: RowDtype): Promise<unknown> {
    return this.combine(await this.dispatch(dtype));
  }

  /** Nothing of earlier calls runs on any rank afterwards. */
  settle(): Promise<void> {
    return this.#tools.ll.barrier();
  }

  #dispatchArgs(dtype: RowDtype) {
    const { inputs, variant } = this.#tools;
    const { bf16, topkIdx, topkWeights } = inputs;
    return { x: bf16, topkIdx, ...(variant !== 'choices' && { topkWeights }), dtype };
  }

  async #combineArgs({ handle }: LowLatencyDispatchResult) {
    const { inputs, variant, ll } = this.#tools;
    const { topkWeights, out } = inputs;
    const y = this.#y ?? (await ll.nextCombineBuffer(handle));
    return { y, handle, out, ...(variant === 'choices' && { topkWeights }) };
  }
}
