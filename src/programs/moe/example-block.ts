// A small block for those who have no file: random weights, and a skewed choice of experts, the same on every machine.
import { existsSync, mkdirSync } from 'node:fs';
import { join } from 'node:path';
import { toBf16 } from '../../core/dtype.ts';
import { seededRandom } from '../../core/seeded-random.ts';
import { blockTensors } from './moe-block.ts';
import { referenceMoeBlock } from './reference.ts';
import { writeSafetensors } from './safetensors-writer.ts';

const shape = { tokens: 512, hidden: 128, intermediate: 32, topk: 4, experts: 32 };
/** Part of the file's name: another version makes another block. */
const VERSION = 1;

/** Makes the block in `folder` unless it is there, and returns its path. Any number of processes may do so at once. */
export async function exampleBlock(folder: string): Promise<string> {
  const path = join(folder, `example-moe-block-${VERSION}.safetensors`);
  if (existsSync(path)) return path;
  mkdirSync(folder, { recursive: true, mode: 0o700 });
  const { tokens, hidden, intermediate, topk, experts } = shape;
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
  const output = Float32Array.from(referenceMoeBlock({ x, topkIdx, topkWeights, gateUp, down }, shape));
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
  return path;
}
