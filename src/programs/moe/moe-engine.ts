// What a MoE block asks of its device besides carrying tokens; one implementation per kind of device.
import type { CpuDevice } from '../../device/cpu/cpu-device.ts';
import type { CudaDevice } from '../../device/cuda/cuda-device.ts';
import type { ScaledRows } from '../../device/formats/scaled-rows.ts';
import type { Tensor } from '../../device/tensor.ts';
import type { ExpertWeights, LocalExperts } from './experts.ts';
import type { MoeBlock } from './moe-block.ts';

export type MoeDevice = CpuDevice | CudaDevice;

export interface GateOptions {
  readonly block: MoeBlock;
  /** bf16 [T, H] on the device, and the same values in host memory. */
  readonly x: Tensor<'bf16'>;
  readonly xValues: Uint16Array;
  /** bf16 [experts, H] in host memory. */
  readonly gate: Uint16Array;
}

/** The experts that a gate chose for tokens. */
export interface Routing extends Disposable {
  /** [T, K] */
  readonly topkIdx: Tensor<'i64'>;
  /** [T, K] */
  readonly topkWeights: Tensor<'f32'>;
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
