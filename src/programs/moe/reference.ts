// The block computed in one process, one number after the other, in double precision: the specification tests compare with.
import { fromBf16 } from '../../core/dtype.ts';
import type { MoeBlock } from './moe-block.ts';

interface MoeBlockValues {
  /** bf16 [T, H] */
  readonly x: Uint16Array;
  /** [T, K], -1 for no expert. */
  readonly topkIdx: Iterable<number | bigint>;
  /** [T, K] */
  readonly topkWeights: Float32Array;
  /** bf16 [E, 2I, H] */
  readonly gateUp: Uint16Array;
  /** bf16 [E, H, I] */
  readonly down: Uint16Array;
}

type BlockShape = Pick<MoeBlock, 'hidden' | 'intermediate' | 'topk'>;

/** Output [T, H]. */
export function referenceMoeBlock(values: MoeBlockValues, shape: BlockShape): Float64Array {
  const { hidden, topk } = shape;
  const output = new Float64Array(values.x.length);
  let choice = 0;
  for (const id of values.topkIdx) {
    const token = Math.floor(choice / topk);
    const weight = values.topkWeights[choice]!;
    choice++;
    if (Number(id) < 0) continue;
    const row = Array.from(values.x.subarray(token * hidden, (token + 1) * hidden), fromBf16);
    for (const [column, value] of referenceExpert(row, Number(id), values, shape).entries()) {
      output[token * hidden + column] = output[token * hidden + column]! + weight * value;
    }
  }
  return output;
}

/** One row through one expert: down(silu(gate(x)) * up(x)). */
export function referenceExpert(
  row: readonly number[],
  expert: number,
  { gateUp, down }: Pick<MoeBlockValues, 'gateUp' | 'down'>,
  { hidden, intermediate }: Pick<BlockShape, 'hidden' | 'intermediate'>,
): number[] {
  const inner = linear(
    row,
    gateUp.subarray(expert * 2 * intermediate * hidden, (expert + 1) * 2 * intermediate * hidden),
  );
  const active = inner.slice(0, intermediate).map((gate, column) => {
    const up = inner[intermediate + column]!;
    return (gate / (1 + Math.exp(-gate))) * up;
  });
  return linear(active, down.subarray(expert * hidden * intermediate, (expert + 1) * hidden * intermediate));
}

/** The row times each row of the weights. */
function linear(row: readonly number[], weights: Uint16Array): number[] {
  return Array.from({ length: row.length === 0 ? 0 : weights.length / row.length }, (_, column) => {
    let sum = 0;
    for (const [index, value] of row.entries()) sum += value * fromBf16(weights[column * row.length + index]!);
    return sum;
  });
}
