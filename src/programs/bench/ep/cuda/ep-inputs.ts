// What the cases of a GPU bench share whatever the SM count: inputs on the device, and which rows travel where.
import type { CudaDevice } from '../../../../device/cuda/cuda-device.ts';
import type { ScaledRows } from '../../../../device/formats/scaled-rows.ts';
import type { Tensor } from '../../../../device/tensor.ts';
import type { RowsLike } from '../../../../ep/index.ts';
import type { World } from '../../../../world/index.ts';
import { countRows, countTokens, planCopies, type RowCounts, tokensInRanks } from '../ep-traffic.ts';
import { type EpWorkload, generateBf16Rows, generateFp8Rows, generateRouting } from '../ep-workload.ts';

export type RowDtype = EpWorkload['dtype'];

export interface CudaEpInputs {
  readonly workload: EpWorkload;
  readonly topkIdx: Tensor<'i32'>;
  readonly topkWeights: Tensor<'f32'>;
  readonly bf16: Tensor<'bf16'>;
  readonly fp8: ScaledRows;
  /** bf16 [T, H]: what combine returns, and what is pulled. */
  readonly out: Tensor<'bf16'>;
  /** i32 [T, ranks] */
  readonly table: Tensor<'i32'>;
  readonly rows: RowCounts;
  /** Rows that each rank receives. */
  readonly received: readonly number[];
}

/** Collective. The tensors live as long as the device. */
export async function makeCudaEpInputs(world: World, device: CudaDevice, workload: EpWorkload): Promise<CudaEpInputs> {
  const { tokens, hidden, topk, experts } = workload;
  const { topkIdx, topkWeights } = generateRouting(workload, world.rank);
  const inRanks = tokensInRanks(topkIdx, topk, experts / world.size, world.size);
  const counts = await world.allGather('bench-counts', countTokens(inRanks, world.size));
  const plan = planCopies(inRanks, counts, world.rank);
  const table = new Int32Array(tokens * world.size).fill(-1);
  for (const [copy, token] of plan.tokens.entries()) {
    table[token * world.size + (plan.destinations[copy] as number)] = plan.rows[copy] as number;
  }
  const { data, scales } = generateFp8Rows(workload, tokens, world.rank);
  return {
    workload,
    topkIdx: await device.tensor('i32', [tokens, topk], topkIdx),
    topkWeights: await device.tensor('f32', [tokens, topk], topkWeights),
    bf16: await device.tensor('bf16', [tokens, hidden], generateBf16Rows(workload, tokens, world.rank)),
    fp8: {
      data: await device.tensor('fp8e4m3', [tokens, hidden], data),
      scales: await device.tensor('f32', [tokens, scales.length / tokens], scales),
    },
    out: device.empty('bf16', [tokens, hidden]),
    table: await device.tensor('i32', [tokens, world.size], table),
    rows: countRows(counts),
    received: counts.map((_, rank) => counts.reduce((sum, row) => sum + (row[rank] as number), 0)),
  };
}

export function inputRows({ bf16, fp8 }: CudaEpInputs, dtype: RowDtype): RowsLike {
  return dtype === 'bf16' ? bf16 : fp8;
}
