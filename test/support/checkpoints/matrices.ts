// The arithmetic of the slow references: matrices as plain numbers, one operation after the other.

export interface Matrix {
  readonly shape: readonly number[];
  readonly values: ArrayLike<number>;
}

export type Matrices = ReadonlyMap<string, Matrix>;

/** The row times each row of the matrix. */
export function linear(matrix: Matrix, row: readonly number[]): number[] {
  const [rows = 0, columns = 0] = matrix.shape;
  return Array.from({ length: rows }, (_, at) =>
    row.reduce((sum, value, column) => sum + value * matrix.values[at * columns + column]!, 0),
  );
}

export const sigmoid = (value: number): number => 1 / (1 + Math.exp(-value));

export function softmax(logits: readonly number[]): number[] {
  const powers = logits.map((logit) => Math.exp(logit - Math.max(...logits)));
  const sum = powers.reduce((one, other) => one + other, 0);
  return powers.map((power) => power / sum);
}

/** Where the largest stand, the largest first. */
export function topk(values: readonly number[], count: number): number[] {
  return [...values.keys()].toSorted((one, other) => values[other]! - values[one]!).slice(0, count);
}

/** down(silu(gate(row)) * up(row)) */
export function swigluMlp([gate, up, down]: readonly [Matrix, Matrix, Matrix], row: readonly number[]): number[] {
  const ups = linear(up, row);
  return linear(
    down,
    linear(gate, row).map((value, at) => value * sigmoid(value) * ups[at]!),
  );
}
