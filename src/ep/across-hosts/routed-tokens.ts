// Which tokens of a dispatch cross to which host and where they belong there: what combine and cached dispatches need.
import type { CpuDevice } from '../../device/cpu/cpu-device.ts';
import { type Tensor } from '../../device/tensor.ts';
import { TensorSet } from '../../device/device.ts';

/** The tokens that one rank sends to one host, in token order. */
export interface HostTokens {
  readonly count: number;
  /** i32 [count]: of the source. */
  readonly tokens: Tensor<'i32'>;
  /** i32 [count, columns]: the row at each rank of the host, or of each choice; -1 for none. */
  readonly places: Tensor<'i32'>;
  /** i32 [count, columns]: position of each choice's rank on the host; only with a column per choice. */
  readonly ranks: Tensor<'i32'> | undefined;
  readonly columns: number;
}

/** Of one dispatch, on one rank; its memory belongs to the handle. */
export interface RoutedTokens extends Disposable {
  /** By way: what this rank sends. */
  readonly sent: readonly HostTokens[];
  /** By slot: what sources of other hosts send through this rank. Filled in when it arrives. */
  readonly served: readonly HostTokens[];
  /**
   * What combine adds, in this order: hosts ascending; of this host a column per rank or choice, of each other host one,
   * which holds the place of the token among those sent there.
   */
  readonly sumTable: Tensor<'i32'>;
  /** i32 as sumTable: whose rows each column's places are; only with a column per choice. */
  readonly sumRanks: Tensor<'i32'> | undefined;
  readonly sumColumns: number;
  /** What the tokens chose; only of a layer. */
  readonly choices: TokenChoices | undefined;
}

/** Expert ids of all tokens, as their callers gave them. */
export interface TokenChoices {
  /** i32 [T, K]: of this rank. */
  readonly own: Tensor<'i32'>;
  /** By slot, i32 [T of the source, K], filled in when they arrive: of sources whose place on their host is that of this rank. */
  readonly served: readonly (Tensor<'i32'> | undefined)[];
}

/** Tokens and columns of the expert ids. */
interface ChoicesShape {
  readonly own: number;
  /** By slot; undefined where none come. */
  readonly served: readonly (number | undefined)[];
  readonly topk: number;
}

interface RoutedShape {
  readonly sent: readonly { readonly count: number; readonly columns: number }[];
  readonly served: readonly { readonly count: number; readonly columns: number }[];
  readonly hasRanks: boolean;
  readonly tokens: number;
  readonly sumColumns: number;
  readonly choices: ChoicesShape | undefined;
}

/** Fails with WL_MEMORY, having taken nothing. */
export function makeRoutedTokens(device: CpuDevice, shape: RoutedShape): RoutedTokens {
  const { set, made } = TensorSet.make(device, (tensors) => {
    const table = ({ count, columns }: RoutedShape['sent'][number]): HostTokens => ({
      count,
      columns,
      tokens: tensors.empty('i32', [count]),
      places: tensors.empty('i32', [count, columns]),
      ranks: shape.hasRanks ? tensors.empty('i32', [count, columns]) : undefined,
    });
    const { tokens, sumColumns, choices } = shape;
    return {
      sent: shape.sent.map(table),
      served: shape.served.map(table),
      sumTable: tensors.empty('i32', [tokens, sumColumns]),
      sumRanks: shape.hasRanks ? tensors.empty('i32', [tokens, sumColumns]) : undefined,
      sumColumns,
      choices: choices && {
        own: tensors.empty('i32', [choices.own, choices.topk]),
        served: choices.served.map((count) =>
          count === undefined ? undefined : tensors.empty('i32', [count, choices.topk]),
        ),
      },
    };
  });
  return { ...made, [Symbol.dispose]: () => set[Symbol.dispose]() };
}
