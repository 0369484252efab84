// The cases of the expert-parallel bench over one EPAll2AllLayer.
import type { CpuDevice } from '../../../device/cpu/cpu-device.ts';
import type { EPAll2AllLayer, EPAllToAllLayoutDesc } from '../../../ep/index.ts';
import { checkCopyBack, copyBack } from './copy-back.ts';
import type { EpCase } from './ep-case.ts';
import { combineRowBytes } from './ep-workload.ts';
import type { BenchGroup } from '../interleaved.ts';
import { type LayerInputs, makeLayerCalls } from './layer-calls.ts';

export interface LayerCases extends AsyncDisposable {
  readonly cases: readonly EpCase[];
  readonly windowsBytes: number;
}

/** Collective. Rows are always bf16, one per (token, expert). */
export async function makeLayerCases(
  inputs: LayerInputs & { readonly device: CpuDevice; readonly group: BenchGroup },
): Promise<LayerCases> {
  const { group, device, workload, input, out } = inputs;
  const calls = await makeLayerCalls(inputs);
  const back = copyBack({ device, ...rowsInWindows(calls.layer, calls.descriptor()), out });
  await checkCopyBack(group, { sent: input, out }, calls.dispatch, back);
  const traffic = { rows: calls.pairs, rowBytes: combineRowBytes(workload) };
  const cases: EpCase[] = [
    {
      name: 'layer dispatch',
      description: 'EPAll2AllLayer.dispatch with weights: one row per (token, expert), grouped by expert',
      ...traffic,
      prepare: calls.tidy,
      run: calls.dispatch,
    },
    {
      name: 'layer copy back',
      description: 'each row copied once from where the layer combines it, over the other rows of its token',
      ...traffic,
      run: back,
    },
    {
      name: 'layer combine',
      description: 'EPAll2AllLayer.combine of rows that were written into the window (combineInput)',
      ...traffic,
      copyBack: 'layer copy back',
      run: calls.combine,
    },
  ];
  return {
    cases,
    windowsBytes: calls.layer.context.outputSize.addressSpaceBytes,
    [Symbol.asyncDispose]: () => calls[Symbol.asyncDispose](),
  };
}

/** Where combine finds the rows of this rank's tokens; stays true, for neither routing nor windows change. */
function rowsInWindows(
  layer: EPAll2AllLayer,
  { tables: { rowTable, rankTable } }: EPAllToAllLayoutDesc,
): { readonly sources: Uint32Array; readonly tokens: Int32Array } {
  const { topk } = layer.config;
  const places = rowTable.view();
  const ranks = rankTable.view();
  const cells = [...ranks.keys()].filter((cell) => ranks[cell]! >= 0);
  const address = (cell: number): number => layer.context.peerRowAddress(ranks[cell]!, places[cell]!);
  return {
    sources: Uint32Array.from(cells, address),
    tokens: Int32Array.from(cells, (cell) => Math.floor(cell / topk)),
  };
}
