// The small tables that an EpBuffer's kernels work with, all allocated before the ranks agree that they can begin.
import type { Device } from '../../device/device.ts';
import { type Tensor } from '../../device/tensor.ts';
import { TensorSet } from '../../device/device.ts';
import { type AddressTables, makeAddressTables } from '../../group/address-table.ts';
import type { EpBufferConfig, EpBufferSize, EpRegion } from './buffer-size.ts';
import { MAX_BIASES } from './call-arguments.ts';
import { emptyLayout, type LayoutShape, type LayoutTensors } from './dispatch-layout.ts';

export interface EpTables extends Disposable {
  readonly shape: LayoutShape;
  /** The layout of the present dispatch, for callers who pass none. */
  readonly layout: LayoutTensors;
  /** Addresses of the regions at all ranks. */
  readonly bases: AddressTables<EpRegion>;
  /** i32 [ranks]: the next row of this source at each rank. */
  readonly nextRow: Tensor<'i32'>;
  /** i32 [2, ranks]: addresses of the exchange's records, by parity and rank. */
  readonly records: Tensor<'i32'>;
  /** i32 [ranks, ranks]: rows that ranks 0..s together send to rank d, of the present dispatch. */
  readonly rankPrefix: Tensor<'i32'>;
  /** i32 [experts / ranks]: choices of each expert of this rank. */
  readonly perLocalExpert: Tensor<'i32'>;
  /** u8: rows of combine that are read out of other ranks' tensors, a block of tokens at a time; none on several hosts. */
  readonly pulled: Tensor<'u8'>;
  /** i32 [ranks]: where combine then finds row 0 of each rank. */
  readonly pulledBases: Tensor<'i32'>;
  /** i32 [ranks + MAX_BIASES]: addresses of the rows of one sum, biases included. */
  readonly sources: Tensor<'i32'>;
}

export function makeEpTables(
  device: Device,
  config: EpBufferConfig,
  { ranks, size }: { ranks: number; size: EpBufferSize },
): EpTables {
  const experts = config.numExperts;
  const readable = size.network === undefined && ranks > 1 ? ranks : 0;
  const { set, made } = TensorSet.make(device, (tensors) => {
    const shape: LayoutShape = { ranks, experts, dropped: -1, name: 'topkIdx' };
    return {
      shape,
      layout: emptyLayout(tensors, config.maxTokensPerRank, shape),
      bases: makeAddressTables(tensors, Object.keys(size.regions) as EpRegion[], ranks),
      nextRow: tensors.empty('i32', [ranks]),
      records: tensors.empty('i32', [2, ranks]),
      rankPrefix: tensors.empty('i32', [ranks, ranks]),
      perLocalExpert: tensors.empty('i32', [experts / ranks]),
      pulled: tensors.empty('u8', [readable * pulledTokens(config, ranks) * config.hidden * 2]),
      pulledBases: tensors.empty('i32', [ranks]),
      sources: tensors.empty('i32', [ranks + MAX_BIASES]),
    };
  });
  return { ...made, [Symbol.dispose]: () => set[Symbol.dispose]() };
}

/** What the processor's second-level cache takes beside other things. */
const PULLED_BYTES = 1 << 20;

/** Tokens whose rows are pulled at a time. */
export function pulledTokens({ hidden, maxTokensPerRank }: EpBufferConfig, ranks: number): number {
  const fitting = Math.floor(PULLED_BYTES / (ranks * hidden * 2));
  return Math.max(1, Math.min(fitting, maxTokensPerRank));
}
