// The tables that low-latency kernels work with on a CPU rank, all allocated before the ranks agree that they can begin.
import { FP8_GROUP } from '../../../abi/element-formats.ts';
import { alignUp } from '../../../abi/layout.ts';
import { LOW_LATENCY_RESULTS } from '../../../abi/low-latency.ts';
import type { CpuDevice } from '../../../device/cpu/cpu-device.ts';
import { type Tensor } from '../../../device/tensor.ts';
import { TensorSet } from '../../../device/device.ts';
import { emptyLayout, type LayoutShape, type LayoutTensors } from '../../buffer/dispatch-layout.ts';
import type { LowLatencyConfig } from '../low-latency-size.ts';

/** What one of the two results that are alive at once needs besides its rows. */
export interface ResultTables {
  /** i32 [M, ranks]: this rank's tokens as rows among those that it sends to each rank, -1 where they do not go. */
  readonly sentRows: Tensor<'i32'>;
  /** Its choices [M, K], in the width in which they were given; where combine or its report needs them. */
  readonly choices: Tensor<'u8'>;
  indexBytes: number;
  /** Rows that this rank gets back of each rank. */
  readonly rowsBack: Int32Array;
  /** i32 [ranks]: rows that came from each rank. */
  readonly arrived: Tensor<'i32'>;
  /** i32 [experts of the rank]. */
  readonly counts: Tensor<'i32'>;
  readonly dropped: Tensor<'i32'>;
  /** i32 [experts of the rank, ranks, 2]. */
  readonly ranges: Tensor<'i32'>;
  /** i32 [experts of the rank, C]. */
  readonly tokens: Tensor<'i32'>;
  /** i32 and f32 [ranks, M, K]: row of each choice that came, and its weight. */
  readonly rowOf: Tensor<'i32'>;
  /** Of elastic objects: i32 [ranks], 1 where the rank's rows are in the dispatch or combine; i32 [M]. */
  readonly received: Tensor<'i32'>;
  readonly added: Tensor<'i32'>;
  readonly droppedChoices: Tensor<'i32'>;
  readonly weights: Tensor<'f32'>;
}

export interface LowLatencyTables extends Disposable {
  readonly shape: LayoutShape;
  readonly layout: LayoutTensors;
  /** Addresses by rank, for one kernel at a time. */
  readonly bases: Tensor<'i32'>;
  readonly scaleBases: Tensor<'i32'>;
  /** i32 [experts]. */
  readonly next: Tensor<'i32'>;
  /** i32 [ranks, experts of the rank]: `next` before each source. */
  readonly first: Tensor<'i32'>;
  /** i32 [M, K]: rows of this rank's choices, and their ranks. */
  readonly rowTable: Tensor<'i32'>;
  readonly rankTable: Tensor<'i32'>;
  /** A quantised row, or what one sum adds up. */
  readonly scratch: Tensor<'u8'>;
  readonly results: readonly ResultTables[];
}

export function makeLowLatencyTables(
  device: CpuDevice,
  config: Required<LowLatencyConfig>,
  ranks: number,
): LowLatencyTables {
  const { maxTokensPerRank: most, maxTopk: k, hidden, numExperts } = config;
  const experts = numExperts / ranks;
  const isExpertMajor = config.layout === 'expert-major';
  const isByChoice = isExpertMajor && config.combineTravels === 'choices';
  const places = isExpertMajor ? experts * config.maxTokensPerExpert : 0;
  const quantised = alignUp(Math.ceil(hidden / FP8_GROUP) * 4, 16) + hidden;
  const { set, made } = TensorSet.make(device, (tensors) => {
    const shape: LayoutShape = { ranks, experts: numExperts, dropped: -1, name: 'topkIdx' };
    return {
      shape,
      layout: emptyLayout(tensors, most, shape),
      bases: tensors.empty('i32', [ranks]),
      scaleBases: tensors.empty('i32', [ranks]),
      next: tensors.empty('i32', [numExperts]),
      first: tensors.empty('i32', [ranks, experts]),
      rowTable: tensors.empty('i32', [isByChoice ? most : 0, k]),
      rankTable: tensors.empty('i32', [isByChoice ? most : 0, k]),
      scratch: tensors.empty('u8', [Math.max(quantised, 8 * k, 4 * (ranks + 2))]),
      results: Array.from({ length: LOW_LATENCY_RESULTS }, () => ({
        sentRows: tensors.empty('i32', [most, ranks]),
        indexBytes: 4,
        rowsBack: new Int32Array(ranks),
        choices: tensors.empty('u8', [isByChoice || config.elastic ? most * k * 8 : 0]),
        received: tensors.empty('i32', [config.elastic ? ranks : 0]),
        added: tensors.empty('i32', [config.elastic ? ranks : 0]),
        droppedChoices: tensors.empty('i32', [config.elastic ? most : 0]),
        arrived: tensors.empty('i32', [ranks]),
        counts: tensors.empty('i32', [isExpertMajor ? experts : 0]),
        dropped: tensors.empty('i32', [isExpertMajor ? experts : 0]),
        ranges: tensors.empty('i32', [isExpertMajor ? experts : 0, ranks, 2]),
        tokens: tensors.empty('i32', [places]),
        rowOf: tensors.empty('i32', [isExpertMajor ? ranks * most * k : 0]),
        weights: tensors.empty('f32', [isExpertMajor && !isByChoice ? ranks * most * k : 0]),
      })),
    };
  });
  return { ...made, [Symbol.dispose]: () => set[Symbol.dispose]() };
}
