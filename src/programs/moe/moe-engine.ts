// What a MoE block asks of its device besides carrying tokens; one implementation per kind of device.
import { invalidArgument } from '../../core/errors.ts';
import type { CpuDevice } from '../../device/cpu/cpu-device.ts';
import type { CudaDevice } from '../../device/cuda/cuda-device.ts';
import type { Device } from '../../device/device.ts';
import type { ScaledRows, Tensor } from '../../device/tensor.ts';
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
  /** The weights in host memory. */
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

// The experts that live on one rank: two linear layers with SwiGLU between them, on rows that arrive from all ranks.

export interface ExpertWeights {
  /** [experts, 2I, H], the gate's rows first, then up's. */
  readonly gateUp: Tensor<'bf16'>;
  /** [experts, H, I] */
  readonly down: Tensor<'bf16'>;
}

/** Rows as EpBuffer delivers them: one per token, each with the local experts that it goes through. */
export interface TokenRows {
  /** [rows, H] */
  readonly x: Tensor<'bf16'>;
  /** [rows, K] local expert ids, -1 for none; each choice counts, also where a row has an expert more than once. */
  readonly topkIdx: Tensor<'i32' | 'i64'>;
  /** [rows, K] */
  readonly topkWeights: Tensor<'f32'>;
  /** How often each local expert stands in topkIdx. */
  readonly rowsPerExpert: readonly number[];
}

/** Rows as EPAll2AllLayer delivers them: one per token and local expert, the rows of expert 0 first. */
export interface ExpertRows {
  /** [rows, H] */
  readonly x: Tensor<'bf16'>;
  /** Rows of each local expert. */
  readonly rowsPerExpert: readonly number[];
  /** [rows]; without it rows are not weighted. */
  readonly weights?: Tensor<'f32'>;
}

/** Products and sums are in f32; a value is rounded to bf16 after SwiGLU and once at the end. */
export interface LocalExperts extends Disposable {
  readonly count: number;
  /**
   * out[row] = sum over the row's experts, in ascending order, of weight * expert(x[row]), in f32, rounded once. `out`
   * is bf16 [rows, H]; it may be the memory of x. On GPUs it is enqueued.
   */
  forwardTokens(rows: TokenRows, out: Tensor<'bf16'>): void;
  /** out[row] = weight * expert(x[row]), rounded once. `out` is bf16 [rows, H] and may be the memory of x. */
  forwardExperts(rows: ExpertRows, out: Tensor<'bf16'>): void;
}

export interface ExpertShape {
  readonly count: number;
  readonly hidden: number;
  readonly intermediate: number;
}

/** H and I must be multiples of 8. Fails with WL_INVALID_ARGUMENT. */
export function expertShape({ gateUp, down }: ExpertWeights): ExpertShape {
  const [count, doubled, hidden] = gateUp.shape;
  const [downCount, downHidden, intermediate] = down.shape;
  const isMatrix = count !== undefined && doubled !== undefined && hidden !== undefined && intermediate !== undefined;
  if (!isMatrix || doubled !== 2 * intermediate || hidden % 8 !== 0 || intermediate % 8 !== 0) {
    throw invalidArgument('gateUp.shape', gateUp.shape, '[experts, 2I, H] with H and I multiples of 8');
  }
  if (downCount !== count || downHidden !== hidden) {
    throw invalidArgument('down.shape', down.shape, `[${count}, ${hidden}, ${intermediate}]`);
  }
  return { count, hidden, intermediate };
}

/** Memory for the weights of experts, of undefined values. Fails with WL_MEMORY. */
export function emptyExperts(device: Device, { count, hidden, intermediate }: ExpertShape): ExpertWeights {
  return {
    gateUp: device.empty('bf16', [count, 2 * intermediate, hidden]),
    down: device.empty('bf16', [count, hidden, intermediate]),
  };
}
