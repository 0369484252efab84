// The cases of the expert-parallel bench on GPUs with one SM count: dispatch, combine, and the bare copies of their rows.
import { alignUp } from '../../abi/layout.ts';
import { Tensor } from '../../device/tensor.ts';
import { type DispatchHandle, EpBuffer } from '../../ep/index.ts';
import { benchBufferConfig } from '../ep-memory.ts';
import { combineRowBytes, dispatchRowBytes } from '../ep-workload.ts';
import { checkPull, checkPush } from './copy-checks.ts';
import type { CopyShape } from './copy-shape.ts';
import { inputRows, type RowDtype } from './ep-inputs.ts';
import { type CudaCase, type CudaCaseTools, pullName, pushName } from './ep-case.ts';
import { makeCudaLayerCases } from './layer-cases.ts';
import { fastestRowCopy, type RowCopy } from './row-copy.ts';

export interface CudaCases extends AsyncDisposable {
  readonly cases: readonly CudaCase[];
  /** What the bare copies are, by their cases' names. */
  readonly copyShapes: Readonly<Record<string, CopyShape & { readonly shapesTried: number }>>;
  readonly bufferWindowBytes: number;
  readonly layerWindowBytes: number | undefined;
}

interface Bench extends CudaCaseTools {
  readonly buffer: EpBuffer;
  readonly counter: Tensor<'i32'>;
}

/** Collective. Makes a buffer with so many SMs, finds and checks the bare copies, and dispatches once. */
export async function makeCudaCases(
  tools: CudaCaseTools,
  { numSms, dtypes, layer }: { readonly numSms: number; readonly dtypes: readonly RowDtype[]; readonly layer: boolean },
): Promise<CudaCases> {
  const { meeting, inputs } = tools;
  const { world, device } = meeting;
  const buffer = await EpBuffer.create(world, device, { ...benchBufferConfig(inputs.workload), numSms });
  const bench: Bench = { ...tools, buffer, counter: await device.tensor('i32', [1], new Int32Array(1)) };
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

function copyCase({ inputs }: Bench, name: string, copy: RowCopy, dtype: RowDtype): CudaCase {
  const { rows, workload } = inputs;
  const description =
    name === pullName
      ? "each row loaded once from where combine reads it, one of a token's rows stored"
      : 'each row loaded once and stored to where dispatch puts it';
  const rowBytes = dispatchRowBytes({ ...workload, dtype });
  return { name, description, rows, rowBytes, copies: [], run: copy.launch };
}

function dispatchCases({ buffer, inputs }: Bench, handle: DispatchHandle, dtype: RowDtype): CudaCase[] {
  const { topkIdx, topkWeights, workload, out, rows } = inputs;
  const x = inputRows(inputs, dtype);
  const made: DispatchHandle[] = [];
  const prepare = (): void => {
    for (const old of made.splice(0)) old.dispose();
  };
  const dispatch = async (): Promise<DispatchHandle> => {
    const result = await buffer.dispatch({ x, topkIdx, topkWeights });
    made.push(result.handle);
    return result.handle;
  };
  const combine = (of: DispatchHandle): Promise<unknown> =>
    buffer.combine({ x: buffer.combineInput(of), handle: of, out });
  const rowBytes = dispatchRowBytes({ ...workload, dtype });
  const there = { rows, rowBytes, copies: [pushName(dtype)] };
  const both = { rows, rowBytes: rowBytes + combineRowBytes(workload), copies: [pushName(dtype), pullName] };
  return [
    {
      ...there,
      name: `dispatch ${dtype}`,
      description: 'EpBuffer.dispatch with choices and weights: counts, exchange, rows',
      cached: `dispatch ${dtype} cached`,
      prepare,
      run: dispatch,
    },
    {
      ...there,
      name: `dispatch ${dtype} cached`,
      description: 'EpBuffer.dispatch with the handle of an earlier one: rows only',
      run: () => buffer.dispatch({ x, handle }),
    },
    {
      ...both,
      name: `dispatch ${dtype} + combine`,
      description: 'both in sequence, with choices and weights',
      cached: `dispatch ${dtype} cached + combine`,
      prepare,
      run: async () => combine(await dispatch()),
    },
    {
      ...both,
      name: `dispatch ${dtype} cached + combine`,
      description: 'both in sequence, with the handle of an earlier dispatch',
      run: async () => {
        await buffer.dispatch({ x, handle });
        return combine(handle);
      },
    },
  ];
}

function combineCase({ buffer, inputs }: Bench, handle: DispatchHandle): CudaCase {
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

/** The rows are those that a dispatch of bf16 rows has left. */
async function makePull({ meeting, stopwatch, inputs, buffer, counter }: Bench): Promise<RowCopy> {
  const { workload, table, out, bf16 } = inputs;
  const copy = await fastestRowCopy(meeting, stopwatch, {
    direction: 'pull',
    numSms: buffer.config.numSms,
    tokens: workload.tokens,
    rows: rowAddresses(buffer, 'combineRows'),
    rowBytes: combineRowBytes(workload),
    local: out,
    table,
    counter,
  });
  await checkPull(meeting, copy, { sent: bf16, out });
  return copy;
}

async function makePush({ meeting, stopwatch, inputs, buffer, counter }: Bench, dtype: RowDtype): Promise<RowCopy> {
  const { workload, table, topkIdx, topkWeights } = inputs;
  const rows = rowAddresses(buffer, 'rows');
  const input = inputRows(inputs, dtype);
  const [local, scales] = 'scales' in input ? [input.data, input.scales] : [input, undefined];
  const rowBytes = local.bytes / workload.tokens;
  // Scales go behind the fp8 rows, into the part of the region that only bf16 rows use.
  const sidesStart = alignUp(buffer.size.maxRecvTokens * rowBytes, 128);
  const sides = scales && {
    rows: rows.map((address) => address + sidesStart),
    bytes: scales.bytes / workload.tokens,
    local: scales,
  };
  const { numSms } = buffer.config;
  const options = {
    direction: 'push',
    numSms,
    tokens: workload.tokens,
    rows,
    rowBytes,
    local,
    table,
    counter,
  } as const;
  const copy = await fastestRowCopy(meeting, stopwatch, sides ? { ...options, sides } : options);
  const { recvX, handle } = await buffer.dispatch({ x: input, topkIdx, topkWeights });
  const received = 'scales' in recvX ? recvX : { data: recvX, scales: undefined };
  const places = [{ left: received.data as Tensor, place: received.data as Tensor }];
  if (received.scales) {
    const { storage, shape } = received.scales;
    const place = new Tensor(storage, 'f32', shape, received.data.address - storage.address + sidesStart);
    places.push({ left: received.scales, place });
  }
  await checkPush(meeting, copy, places);
  handle.dispose();
  return copy;
}

function rowAddresses(buffer: EpBuffer, region: 'rows' | 'combineRows'): number[] {
  return Array.from({ length: buffer.world.size }, (_, rank) => buffer.peerRowAddress(rank, 0, region));
}
