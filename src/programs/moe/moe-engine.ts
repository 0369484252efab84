// What a MoE block asks of its device besides carrying tokens; one implementation per kind of device.
import type { CpuDevice } from '../../device/cpu/cpu-device.ts';
import type { CudaDevice } from '../../device/cuda/cuda-device.ts';
import type { ScaledRows } from '../../device/formats/scaled-rows.ts';
import type { Tensor } from '../../device/tensor.ts';
import type { ExpertWeights, LocalExperts } from './experts.ts';
import type { MoeBlock } from './moe-block.ts';

export type MoeDevice = CpuDevice | CudaDevice;

/** What the router multiplies tokens by. */
export interface GateWeights {
  /** bf16 [experts, H] */
  readonly gate: Uint16Array;
  /** bf16 [experts, H] to add to it, where it stands in a finer type: what bf16 leaves off may change a choice. */
  readonly gateRest?: Uint16Array;
  /** f32 [experts], added to the scores by which experts are chosen. */
  readonly bias?: Float32Array;
  /** bf16 [1, H]: its sigmoid weights the shared expert. */
  readonly sharedGate?: Uint16Array;
}

export interface GateOptions {
  readonly block: MoeBlock;
  /** bf16 [T, H] on the device, and the same values in host memory. */
  readonly x: Tensor<'bf16'>;
  readonly xValues: Uint16Array;
  /** In host memory. */
  readonly weights: GateWeights;
}

/** The experts that a gate chose for tokens. */
export interface Routing extends Disposable {
  /** [T, K] */
  readonly topkIdx: Tensor<'i64'>;
  /** [T, K] */
  readonly topkWeights: Tensor<'f32'>;
  /** [T]: the weight of the shared expert for each token, where a gate gives it. */
  readonly sharedWeights?: Tensor<'f32'>;
  /** Chooses anew from x, as a phase of each pass; absent where that is done once. */
  readonly route: (() => void) | undefined;
}

export interface MoeEngine extends Disposable {
  /** What multiplies rows by weights, for the report. */
  readonly product: string;
  /** Takes ownership of the weights. Fails with WL_INVALID_ARGUMENT. */
  createExperts(weights: ExpertWeights): LocalExperts;
  /** Chooses experts by the gate's logits; see routeTopk. */
  openGate(options: GateOptions): Promise<Routing>;
  quantizeRows(x: Tensor<'bf16'>, out: ScaledRows): void;
  dequantizeRows(rows: ScaledRows, out: Tensor<'bf16'>): void;
  /** Resolves when everything that was enqueued is done. Fails with what that work failed with. */
  finish(): Promise<void>;
}
