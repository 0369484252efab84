// The experts that live on one rank: two linear layers with SwiGLU between them, on rows that arrive from all ranks.
import { invalidArgument } from '../../core/errors.ts';
import type { Device } from '../../device/device.ts';
import type { Tensor } from '../../device/tensor.ts';

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
  /** [rows, K] local expert ids, -1 for none; none twice in a row. */
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
