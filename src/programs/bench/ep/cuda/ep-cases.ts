// The cases of the expert-parallel bench on GPUs with one SM count: dispatch, combine, and the bare copies of their rows.
import { type DispatchHandle, EpBuffer } from '../../../../ep/index.ts';
import { benchBufferConfig } from '../ep-memory.ts';
import { combineRowBytes, dispatchRowBytes } from '../ep-workload.ts';
import type { CopyShape } from './copy-shape.ts';
import { type CopyTools, makePull, makePush } from './ep-copies.ts';
import { inputRows, type RowDtype } from './ep-inputs.ts';
import { type CudaCase, type CudaCaseTools, pullName, pushName } from './ep-case.ts';
import { makeCudaLayerCases } from './layer-cases.ts';
import type { RowCopy } from './row-copy.ts';

export interface CudaCases extends AsyncDisposable {
  readonly cases: readonly CudaCase[];
  /** What the bare copies are, by their cases' names. */
  readonly copyShapes: Readonly<Record<string, CopyShape & { readonly shapesTried: number }>>;
  readonly bufferWindowBytes: number;
  readonly layerWindowBytes: number | undefined;
}

/** Collective. Makes a buffer with so many SMs, finds and checks the bare copies, and dispatches once. */
export async function makeCudaCases(
  tools: CudaCaseTools,
  { numSms, dtypes, layer }: { readonly numSms: number; readonly dtypes: readonly RowDtype[]; readonly layer: boolean },
): Promise<CudaCases> {
  const { meeting, inputs } = tools;
  const { world, device } = meeting;
  const buffer = await EpBuffer.create(world, device, { ...benchBufferConfig(inputs.workload), numSms });
  const bench: CopyTools = { ...tools, buffer, counter: await device.tensor('i32', [1], new Int32Array(1)) };
  const { bf16, topkIdx, topkWeights } = inputs;
  // The routing never changes, so this handle serves all cached calls.
  const { handle } = await buffer.dispatch({ x: bf16, topkIdx, topkWeights });
  const pull = await makePull(bench);
  const copies = new Map([[pullName, pull]]);
  const cases: CudaCase[] = [copyCase(bench, pullName, pull, 'bf16')];
  // The layer's rows are always bf16.
  for (const dtype of new Set<RowDtype>(layer ? ['bf16', ...dtypes] : dtypes)) {
    const push = await makePush(bench, dtype);
    copies.set(pushName(dtype), push);
    cases.push(copyCase(bench, pushName(dtype), push, dtype));
  }
  for (const dtype of dtypes) cases.push(...dispatchCases(bench, handle, dtype));
  cases.push(combineCase(bench, handle));
  const layers = layer ? await makeCudaLayerCases(tools, numSms) : undefined;
  cases.push(...(layers?.cases ?? []));
  return {
    cases,
    copyShapes: Object.fromEntries(
      [...copies].map(([name, { shape, shapesTried }]) => [name, { ...shape, shapesTried }]),
    ),
    bufferWindowBytes: buffer.size.bytes,
    layerWindowBytes: layers?.windowBytes,
    async [Symbol.asyncDispose]() {
      await layers?.[Symbol.asyncDispose]();
      handle.dispose();
      bench.counter.dispose();
      await buffer[Symbol.asyncDispose]();
    },
  };
}

function copyCase({ inputs }: CopyTools, name: string, copy: RowCopy, dtype: RowDtype): CudaCase {
  const { rows, workload } = inputs;
  const description =
    name === pullName
      ? "each row loaded once from where combine reads it, one of a token's rows stored"
      : 'each row loaded once and stored to where dispatch puts it';
  const rowBytes = dispatchRowBytes({ ...workload, dtype });
  return { name, description, rows, rowBytes, copies: [], run: copy.launch };
}

function dispatchCases({ buffer, inputs }: CopyTools, handle: DispatchHandle, dtype: RowDtype): CudaCase[] {
  const { topkIdx, topkWeights, workload, out, rows } = inputs;
  const x = inputRows(inputs, dtype);
  const name = `dispatch ${dtype}`;
  const cached = `${name} cached`;
  const counted = { x, topkIdx, topkWeights };
  const ways = [
    { name, how: 'with choices and weights: counts, exchange, rows', cached, args: counted },
    {
      name: `${name} bounded`,
      how: 'the same with a bound on the rows (numWorstTokens), so that the host need not know how many came',
      cached,
      args: { ...counted, numWorstTokens: buffer.size.maxRecvTokens },
    },
    { name: cached, how: 'with the handle of an earlier one: rows only', args: { x, handle } },
  ];
  const made: DispatchHandle[] = [];
  const prepare = (): void => {
    for (const old of made.splice(0)) old.dispose();
  };
  const combine = (of: DispatchHandle): Promise<unknown> =>
    buffer.combine({ x: buffer.combineInput(of), handle: of, out });
  const rowBytes = dispatchRowBytes({ ...workload, dtype });
  return ways.flatMap((way): CudaCase[] => {
    const dispatch = async (): Promise<DispatchHandle> => {
      const result = await buffer.dispatch(way.args);
      if (result.handle !== handle) made.push(result.handle);
      return result.handle;
    };
    return [
      {
        name: way.name,
        description: `EpBuffer.dispatch ${way.how}`,
        rows,
        rowBytes,
        copies: [pushName(dtype)],
        ...(way.cached !== undefined && { cached: way.cached }),
        prepare,
        run: dispatch,
      },
      {
        name: `${way.name} + combine`,
        description: `EpBuffer.dispatch ${way.how}; then combine of the rows that came`,
        rows,
        rowBytes: rowBytes + combineRowBytes(workload),
        copies: [pushName(dtype), pullName],
        ...(way.cached !== undefined && { cached: `${way.cached} + combine` }),
        prepare,
        run: async () => combine(await dispatch()),
      },
    ];
  });
}

function combineCase({ buffer, inputs }: CopyTools, handle: DispatchHandle): CudaCase {
  const { rows, workload, out } = inputs;
  return {
    name: 'combine bf16',
    description: 'EpBuffer.combine of rows that lie in the window (combineInput)',
    rows,
    rowBytes: combineRowBytes(workload),
    copies: [pullName],
    run: () => buffer.combine({ x: buffer.combineInput(handle), handle, out }),
  };
}
