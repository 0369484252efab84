// A small block for those who have no file: random weights, and a skewed choice of experts, the same on every machine.
import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { fromBf16, toBf16 } from '../../core/dtype.ts';
import { WeftlineError } from '../../core/errors.ts';
import { makeFolder } from '../../core/guarded-file.ts';
import { printable } from '../../core/quote.ts';
import { seededRandom } from '../../core/seeded-random.ts';
import { settingsTable } from '../../settings/settings.ts';
import { blockTensors, type MoeBlock } from './moe-block.ts';
import { writeSafetensors } from './safetensors-file.ts';

const exampleShape = { tokens: 512, hidden: 128, intermediate: 32, topk: 4, experts: 32 };
/** Part of the file's name: another version makes another block. */
const VERSION = 1;

/**
 * Makes the block in the cache folder unless it is there, and returns its path. Any number of processes may do so at once.
 * Fails with WL_FILE if there is no such folder and none can be made, or it cannot be written.
 */
export async function exampleBlock(folder: string | undefined): Promise<string> {
  if (folder === undefined) throw noRoom('there is no home folder to keep it in');
  const path = join(folder, `example-moe-block-${VERSION}.safetensors`);
  if (existsSync(path)) return path;
  try {
    makeFolder(folder, 0o700);
    await writeBlock(path);
  } catch (cause) {
    const why = cause instanceof Error ? cause.message : String(cause);
    throw noRoom(`cannot write to ${printable(folder, 1024)}: ${printable(why, 1024)}`, cause);
  }
  return path;
}

function noRoom(why: string, cause?: unknown): WeftlineError {
  const { env } = settingsTable.cacheFolder;
  const todo = `set ${env} to a folder that you can write to, or give weftline moe a file`;
  return new WeftlineError('WL_FILE', `Cannot keep the example block: ${why}; ${todo}`, {
    details: { variable: env },
    cause,
  });
}

async function writeBlock(path: string): Promise<void> {
  const { tokens, hidden, intermediate, topk, experts } = exampleShape;
  const random = seededRandom(VERSION);
  const values = (count: number, scale: number) =>
    Uint16Array.from({ length: count }, () => toBf16((2 * random() - 1) * scale));
  const x = values(tokens * hidden, 1);
  const gateUp = values(experts * 2 * intermediate * hidden, 0.2);
  const down = values(experts * hidden * intermediate, 0.2);
  const topkIdx = new BigInt64Array(tokens * topk);
  for (let token = 0; token < tokens; token++) {
    const chosen = new Set<bigint>();
    // The product of two random numbers prefers the first experts.
    while (chosen.size < topk) chosen.add(BigInt(Math.floor(random() * random() * experts)));
    topkIdx.set([...chosen], token * topk);
  }
  const topkWeights = new Float32Array(tokens * topk).fill(1 / topk);
  const output = Float32Array.from(referenceMoeBlock({ x, topkIdx, topkWeights, gateUp, down }, exampleShape));
  const tensors = {
    [blockTensors.x]: { dtype: 'BF16', shape: [tokens, hidden] },
    [blockTensors.topkIdx]: { dtype: 'I64', shape: [tokens, topk] },
    [blockTensors.topkWeights]: { dtype: 'F32', shape: [tokens, topk] },
    [blockTensors.gateUp]: { dtype: 'BF16', shape: [experts, 2 * intermediate, hidden] },
    [blockTensors.down]: { dtype: 'BF16', shape: [experts, hidden, intermediate] },
    [blockTensors.reference]: { dtype: 'F32', shape: [tokens, hidden] },
  } as const;
  await writeSafetensors(
    { path, tensors },
    {
      [blockTensors.x]: x,
      [blockTensors.topkIdx]: topkIdx,
      [blockTensors.topkWeights]: topkWeights,
      [blockTensors.gateUp]: gateUp,
      [blockTensors.down]: down,
      [blockTensors.reference]: output,
    },
  );
}

// The block computed in one process, one number after the other, in double precision: the specification tests compare with.

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
