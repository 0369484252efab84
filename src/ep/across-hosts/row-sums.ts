// The sums of combine across hosts on a CPU rank: of the rows that this host has of a token, and of a token's rows here with
// what other hosts sent. Hot path.
import { elementFormats } from '../../abi/element-formats.ts';
import type { HostRoutes } from '../../group/network/host-routes.ts';
import { dtypes } from '../../core/dtype.ts';
import type { CpuDevice } from '../../device/cpu/cpu-device.ts';
import type { Tensor } from '../../device/tensor.ts';
import type { TensorSet } from '../../device/device.ts';
import { type CombinePrecision, sumBytes, sumDType } from '../combine-precision.ts';
import type { HostTokens, RoutedTokens } from './routed-tokens.ts';

export interface RowSumsShape {
  readonly routes: Pick<HostRoutes, 'hosts' | 'host'>;
  /** Columns of this host's rows in a sum: its ranks, or the choices of a token. */
  readonly ownColumns: number;
  readonly hidden: number;
  readonly dtype: keyof typeof elementFormats;
  readonly precision: CombinePrecision;
}

export interface RowSumTables {
  /** i32: addresses of the rows of one sum, and whether they are f32. */
  readonly scratch: Tensor<'i32'>;
  /** i32 [columns of a sum]: the format of each column's rows. */
  readonly columnFormats: Tensor<'i32'>;
}

/** Fails with WL_MEMORY. */
export function makeRowSumTables(tensors: TensorSet, shape: RowSumsShape): RowSumTables {
  const { routes, ownColumns, dtype, precision } = shape;
  const others = routes.hosts.length - 1;
  const scratch = tensors.empty('i32', [2 * (ownColumns + others + 2)]);
  const columnFormats = tensors.empty('i32', [ownColumns + others]);
  const ofOthers = elementFormats[sumDType(dtype, precision)];
  columnFormats
    .view()
    .fill(ofOthers)
    .fill(elementFormats[dtype], routes.host, routes.host + ownColumns);
  return { scratch, columnFormats };
}

/** Tokens [first, first + count) of a list; `bases`: addresses by rank of this host, or by column of a sum. */
interface SumPart {
  readonly first: number;
  readonly count: number;
  readonly out: number;
  readonly bases: number;
  /** Take one row of each rank alone, the first. */
  readonly onePerRank: boolean;
}

export class RowSums {
  /** Of a row that combine reads or makes. */
  readonly rowBytes: number;
  /** Of a sum on the network. */
  readonly sumBytes: number;
  readonly #device: CpuDevice;
  readonly #tables: RowSumTables;
  readonly #format: number;
  readonly #isWide: boolean;

  constructor(device: CpuDevice, { hidden, dtype, precision }: RowSumsShape, tables: RowSumTables) {
    this.rowBytes = hidden * dtypes[dtype].bytes;
    this.sumBytes = sumBytes(hidden, dtype, precision);
    this.#device = device;
    this.#tables = tables;
    this.#format = elementFormats[dtype];
    this.#isWide = this.sumBytes !== this.rowBytes;
  }

  /** Sums what this host has of tokens of another one, as it travels. `out`: of the first. */
  sumHere({ places, ranks, columns }: HostTokens, { first, count, out, bases, onePerRank }: SumPart): void {
    const { kernels } = this.#device;
    const cell = first * columns * 4;
    const [rows, from] = [places.address + cell, ranks ? ranks.address + cell : 0];
    const one = onePerRank ? 1 : 0;
    const scratch = this.#tables.scratch.address;
    const { rowBytes } = this;
    if (this.#isWide) {
      kernels.gatherSumF32(out, rowBytes, count, columns, rows, from, bases, one, scratch, this.#format);
    } else {
      kernels.gatherSum(out, rowBytes, count, columns, rows, from, bases, one, 0, 0, scratch, this.#format);
    }
  }

  /** Adds up this rank's tokens. `out` and the biases, 0 for none: addresses of token 0. */
  addUp(routed: RoutedTokens, part: SumPart, bias0 = 0, bias1 = 0): void {
    const { kernels } = this.#device;
    const { sumTable, sumRanks, sumColumns } = routed;
    const { first, count, bases, onePerRank } = part;
    const { rowBytes } = this;
    const at = first * rowBytes;
    const out = part.out + at;
    const cell = first * sumColumns * 4;
    const [rows, from] = [sumTable.address + cell, sumRanks ? sumRanks.address + cell : 0];
    const one = onePerRank ? 1 : 0;
    const [b0, b1] = [bias0 === 0 ? 0 : bias0 + at, bias1 === 0 ? 0 : bias1 + at];
    const { scratch, columnFormats } = this.#tables;
    const [sources, format] = [scratch.address, this.#format];
    if (this.#isWide) {
      const formats = columnFormats.address;
      kernels.gatherSumMixed(
        out,
        rowBytes,
        count,
        sumColumns,
        rows,
        from,
        bases,
        one,
        b0,
        b1,
        sources,
        format,
        formats,
      );
    } else kernels.gatherSum(out, rowBytes, count, sumColumns, rows, from, bases, one, b0, b1, sources, format);
  }
}
