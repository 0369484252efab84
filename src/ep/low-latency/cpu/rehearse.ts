// A process that joins makes calls by itself first: the code of a call is then compiled before other ranks wait for it.
import { withoutCounts } from '../../../core/counts.ts';
import { Deadline } from '../../../core/deadline.ts';
import { withoutTrace } from '../../../core/trace.ts';
import type { CpuDevice } from '../../../device/cpu/cpu-device.ts';
import { TensorSet } from '../../../device/tensor-set.ts';
import { checkLowLatencyCombine, checkLowLatencyDispatch, rowShape } from '../low-latency-arguments.ts';
import type { LowLatencyEngine } from '../low-latency-engine.ts';
import type { LowLatencyScope } from '../low-latency-scope.ts';
import type { LowLatencyConfig } from '../low-latency-size.ts';

/** Of each data type. With 40 the first calls afterwards still take longer; with 400 they take no less. */
const ROUNDS = 200;
/** Few and short rows run the same code, and take next to no time. */
const [TOKENS, HIDDEN] = [4, 256];
/** Nobody is waited for. */
const TIMEOUT_MS = 60_000;

/** Of the object that rehearses for one with that configuration. */
export function rehearsalConfig(given: LowLatencyConfig, ranks: number): LowLatencyConfig {
  const numExperts = given.numExperts / ranks;
  const { maxTokensPerExpert: _, ...config } = given;
  return {
    ...config,
    numExperts,
    maxTokensPerRank: TOKENS,
    hidden: HIDDEN,
    maxTopk: Math.min(given.maxTopk, numExperts),
  };
}

/** `engine`: of this rank alone, used for nothing else. What it counts and traces is not told to anybody. */
export function rehearse(scope: LowLatencyScope<CpuDevice>, engine: LowLatencyEngine): Promise<void> {
  return withoutTrace(() => withoutCounts(() => makeCalls(scope, engine)));
}

async function makeCalls(scope: LowLatencyScope<CpuDevice>, engine: LowLatencyEngine): Promise<void> {
  const { device, config } = scope;
  const k = config.maxTopk;
  const wait = { deadline: new Deadline(TIMEOUT_MS), signal: undefined };
  const { set, made } = TensorSet.make(device, (tensors) => ({
    x: tensors.empty('bf16', [TOKENS, HIDDEN]),
    topkIdx: tensors.empty('i32', [TOKENS, k]),
    weights: tensors.empty('f32', [TOKENS, k]),
    y: tensors.empty('bf16', rowShape(scope)),
    out: tensors.empty('bf16', [TOKENS, HIDDEN]),
  }));
  try {
    const { x, topkIdx, weights, y, out } = made;
    for (const tensor of [x, weights, y]) device.kernels.fillBytes(tensor.address, 0, tensor.bytes);
    topkIdx.view().forEach((_, at, choices) => (choices[at] = at % k));
    const weighted = { topkWeights: weights };
    const isByChoice = config.layout === 'expert-major' && config.combineTravels === 'choices';
    for (let sequence = 1; sequence <= 2 * ROUNDS; sequence++) {
      const dtype = sequence % 2 === 0 ? 'fp8' : 'bf16';
      const input = checkLowLatencyDispatch(
        { x, topkIdx, dtype, ...(isByChoice ? {} : weighted) },
        scope,
        engine.mapped,
      );
      await engine.prepareDispatch(input, sequence);
      const { handle } = await engine.dispatch(input, sequence, wait);
      const buffer = (): number => engine.combineBufferAddress(handle);
      const sums = { y, handle, out, ...(isByChoice ? weighted : {}) };
      await engine.combine(checkLowLatencyCombine(sums, scope, { window: engine.mapped, buffer }), wait);
      engine.membership?.shortfall(handle);
    }
  } finally {
    set[Symbol.dispose]();
  }
}
