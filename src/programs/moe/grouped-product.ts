// Products of groups of rows with one matrix per group on GPUs: operands, groups, and what multiplies them.

/** out[r, j] = sum over i of x[r, i] * w[group of r, j, i]: x and w bf16, out and the sums f32. Addresses of device memory. */
export interface GroupedOperands {
  /** [rows, k], the rows of group 0 first. */
  readonly x: number;
  /** [groups, n, k] */
  readonly w: number;
  /** [rows, n] */
  readonly out: number;
  readonly n: number;
  readonly k: number;
}

/** Rows of each group, in host and in device memory. */
export interface Groups {
  readonly rows: readonly number[];
  /** Of all groups together. */
  readonly total: number;
  /** Tiles of the kernel, of all groups together. */
  readonly tiles: number;
  /** Groups that have rows. */
  readonly busy: number;
  /** u32 [groups + 1] first row of each group. */
  readonly starts: number;
  /** u32 [groups + 1] first tile of each group. */
  readonly tileStarts: number;
}

export interface GroupedProduct extends Disposable {
  /** For the report. */
  readonly name: string;
  /** Enqueues the products; n and k are multiples of 8. */
  multiply(operands: GroupedOperands, groups: Groups): void;
}
