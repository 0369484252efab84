// The cases of the expert-parallel bench on GPUs over two layers, one of which sums a token's rows where they lie first.
import { combineRowBytes } from '../ep-workload.ts';
import { type LayerCalls, makeLayerCalls } from '../layer-calls.ts';
import { type CudaCase, type CudaCaseTools, pullName, pushName } from './ep-case.ts';

export interface CudaLayerCases extends AsyncDisposable {
  readonly cases: readonly CudaCase[];
  /** Of one layer. */
  readonly windowBytes: number;
}

/** Collective. Rows are always bf16; they cross once per (token, rank) and stand once per (token, expert). */
export async function makeCudaLayerCases(
  { meeting: { world, device }, inputs }: CudaCaseTools,
  numSm: number,
): Promise<CudaLayerCases> {
  const { workload, topkIdx, topkWeights, bf16, out, rows } = inputs;
  const of = { world, device, workload, input: bf16, topkIdx, topkWeights, out };
  const plain = await makeLayerCalls(of, { numSm });
  const local = await makeLayerCalls(of, { numSm, enableLocalCombine: true });
  const rowBytes = combineRowBytes(workload);
  const { pairs } = plain;
  /** What a layer holds; what crosses are the rows that EpBuffer moves. */
  const once = { rowBytes, rows: { logical: pairs.logical, wire: rows.wire } };
  const cases: CudaCase[] = [
    {
      ...once,
      ...dispatchOf(plain),
      name: 'layer dispatch',
      description:
        'EPAll2AllLayer.dispatch with weights: a row sent once per rank, copied there to each of its experts',
      copies: [pushName('bf16')],
    },
    {
      name: 'layer combine',
      description: 'EPAll2AllLayer.combine of rows that lie in the window: one pulled per (token, expert)',
      rows: pairs,
      rowBytes,
      copies: [pullName],
      // The copy brings one row per (token, rank).
      copyScale: pairs.wire === 0 ? pairs.logical / rows.logical : pairs.wire / rows.wire,
      run: plain.combine,
    },
    {
      ...once,
      ...dispatchOf(local),
      name: 'layer dispatch, local',
      description: 'the same with what local combine needs to know',
      copies: [pushName('bf16')],
    },
    {
      ...once,
      name: 'layer combine, local',
      description: "EPAll2AllLayer.combine with enableLocalCombine: a token's rows of one rank are summed there first",
      copies: [pullName],
      run: local.combine,
    },
  ];
  return {
    cases,
    windowBytes: plain.layer.context.outputSize.bytes,
    async [Symbol.asyncDispose]() {
      await plain[Symbol.asyncDispose]();
      await local[Symbol.asyncDispose]();
    },
  };
}

function dispatchOf({ tidy, dispatch }: LayerCalls): Pick<CudaCase, 'prepare' | 'run'> {
  return { prepare: tidy, run: dispatch };
}
