// The tables that low-latency kernels work with on a GPU besides the window, all allocated before the ranks agree.
import {
  LOW_LATENCY_MAX_BLOCKS,
  LOW_LATENCY_RESULTS,
  lowLatencyBlock,
  lowLatencyDecision,
  lowLatencyElastic,
} from '../../../abi/low-latency.ts';
import { countOverflow } from '../../../core/counts.ts';
import { addSamples } from '../../../core/metric-table.ts';
import type { CudaDevice } from '../../../device/cuda/cuda-device.ts';
import type { HostMemory } from '../../../device/cuda/host-memory.ts';
import { type Tensor } from '../../../device/tensor.ts';
import { TensorSet } from '../../../device/device.ts';
import type { LowLatencyConfig } from '../low-latency-size.ts';

// How many rows a low-latency object on a GPU was offered beyond the capacity of its experts, for metrics: its kernels count them.

class DroppedRows implements Disposable {
  readonly #memory: HostMemory;
  readonly #policy: 'drop' | 'fail';
  readonly #forget: () => void;

  constructor(device: CudaDevice, policy: 'drop' | 'fail') {
    this.#memory = device.allocateHost(8);
    this.#policy = policy;
    this.#forget = addSamples(() => {
      const value = this.rows;
      return value === 0 ? [] : [{ name: 'weftline_ep_overflow_total', labels: [policy], value }];
    });
  }

  /** For the kernels. */
  get address(): number {
    return this.#memory.deviceAddress;
  }

  get rows(): number {
    return this.#memory.disposed ? 0 : Number(new BigUint64Array(this.#memory.buffer, 0, 1)[0]);
  }

  /** What was counted stays so. */
  [Symbol.dispose](): void {
    if (this.#memory.disposed) return;
    this.#forget();
    countOverflow(this.#policy, this.rows);
    this.#memory[Symbol.dispose]();
  }
}

/** What one of the two results that are alive at once needs besides its rows; see LowLatencyDispatchArguments. */
export interface CudaResultTables {
  /** i32 [M, ranks]. */
  readonly sentRows: Tensor<'i32'>;
  /** i32 [M, K, 2]; empty unless all choices travel. */
  readonly sentPlaces: Tensor<'i32'>;
  /** i32 [ranks]. */
  readonly arrived: Tensor<'i32'>;
  /** i32 [experts of the rank]. */
  readonly counts: Tensor<'i32'>;
  readonly dropped: Tensor<'i32'>;
  /** i32 [experts of the rank, ranks, 2]. */
  readonly ranges: Tensor<'i32'>;
  /** i32 [experts of the rank, C]. */
  readonly sources: Tensor<'i32'>;
  /** i32 and f32 [ranks, M, K]; empty unless this rank adds up. */
  readonly rowOf: Tensor<'i32'>;
  readonly rowWeights: Tensor<'f32'>;
  /** Of elastic objects: i32 [ranks], whose rows are in the dispatch or the combine; i32 [M, K]; i32 [M]. */
  readonly received: Tensor<'i32'>;
  readonly added: Tensor<'i32'>;
  readonly keptChoices: Tensor<'i32'>;
  readonly droppedChoices: Tensor<'i32'>;
}

export interface CudaLowLatencyTables extends Disposable {
  /** LowLatencyBlock for each block. */
  readonly blocks: Tensor<'u8'>;
  /** LowLatencyDecision for each half of a call, and LowLatencyElastic; empty where ranks are fixed. */
  readonly decisions: Tensor<'u8'>;
  readonly elastic: Tensor<'u8'>;
  readonly results: readonly CudaResultTables[];
  readonly droppedRows: DroppedRows;
}

/** Of a call: sending and receiving. */
const HALVES = 2;

/** Fails with WL_MEMORY. */
export function makeCudaTables(
  device: CudaDevice,
  config: Required<LowLatencyConfig>,
  ranks: number,
): CudaLowLatencyTables {
  const { maxTokensPerRank: most, maxTopk: k, numExperts, layout, combineTravels, maxTokensPerExpert } = config;
  const isExpertMajor = layout === 'expert-major';
  const isByChoice = isExpertMajor && combineTravels === 'choices';
  const experts = isExpertMajor ? numExperts / ranks : 0;
  const arriving = isExpertMajor && !isByChoice ? ranks * most * k : 0;
  const { set, made } = TensorSet.make(device, (tensors) => ({
    blocks: tensors.empty('u8', [LOW_LATENCY_MAX_BLOCKS, lowLatencyBlock.size]),
    decisions: tensors.empty('u8', [config.elastic ? HALVES : 0, lowLatencyDecision.size]),
    elastic: tensors.empty('u8', [config.elastic ? lowLatencyElastic.size : 0]),
    results: Array.from({ length: LOW_LATENCY_RESULTS }, () => ({
      sentRows: tensors.empty('i32', [most, ranks]),
      sentPlaces: tensors.empty('i32', [isByChoice ? most : 0, k, 2]),
      arrived: tensors.empty('i32', [ranks]),
      counts: tensors.empty('i32', [experts]),
      dropped: tensors.empty('i32', [experts]),
      ranges: tensors.empty('i32', [experts, ranks, 2]),
      sources: tensors.empty('i32', [experts, maxTokensPerExpert]),
      rowOf: tensors.empty('i32', [arriving]),
      rowWeights: tensors.empty('f32', [arriving]),
      received: tensors.empty('i32', [config.elastic ? ranks : 0]),
      added: tensors.empty('i32', [config.elastic ? ranks : 0]),
      keptChoices: tensors.empty('i32', [config.elastic ? most : 0, k]),
      droppedChoices: tensors.empty('i32', [config.elastic ? most : 0]),
    })),
  }));
  try {
    const droppedRows = new DroppedRows(device, config.overflow);
    return {
      ...made,
      droppedRows,
      [Symbol.dispose]: () => {
        droppedRows[Symbol.dispose]();
        set[Symbol.dispose]();
      },
    };
  } catch (error) {
    set[Symbol.dispose]();
    throw error;
  }
}
