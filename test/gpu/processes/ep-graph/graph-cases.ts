// Calls of an EpBuffer and of a layer that a graph repeats, and the same calls directly: what each leaves, as plain arrays.
import { CudaDevice, type Device, type DeviceEvent, type Tensor } from 'weftline';
import {
  type DispatchResult,
  EPAll2AllLayer,
  type EPAllToAllLayoutDesc,
  EpBuffer,
  type CallOptions,
  type RowsLike,
} from 'weftline/ep';
import type { RankGroup } from 'weftline/world';
import type { EpDevice } from '../../../local/support/test-device.ts';

/** What is drawn; alike on all ranks. */
export interface GraphShape {
  readonly tokens: number;
  readonly hidden: number;
  readonly topk: number;
  readonly expertsPerRank: number;
  readonly fp8: boolean;
  /** Calls on streams of their objects. */
  readonly overlap: boolean;
  readonly localCombine: boolean;
  readonly keepOutput: boolean;
  readonly wideOffsets: boolean;
}

export function drawShape(next: () => number): GraphShape {
  const below = (count: number): number => Math.floor(next() * count);
  const expertsPerRank = 2 + below(6);
  return {
    tokens: 1 + below(60),
    hidden: 8 * (1 + below(40)),
    topk: 1 + below(Math.min(expertsPerRank, 6)),
    expertsPerRank,
    fp8: next() < 0.3,
    overlap: next() < 0.3,
    localCombine: next() < 0.5,
    keepOutput: next() < 0.5,
    wideOffsets: next() < 0.3,
  };
}

/** Contents of these tensors are what a replay reads. */
export interface GraphInputs {
  readonly x: RowsLike;
  readonly again: RowsLike;
  readonly topkIdx: Tensor<'i32'>;
  readonly topkWeights: Tensor<'f32'>;
  /** bf16, whatever `x` is. */
  readonly rows: Tensor<'bf16'>;
  /** What the experts make of received rows, where those are fp8. */
  readonly outputs: Tensor<'bf16'>;
  refill(): Promise<void>;
  dispose(): void;
}

export function makeInputs(
  group: RankGroup,
  device: EpDevice,
  { shape, next }: { readonly shape: GraphShape; readonly next: () => number },
): GraphInputs {
  const { tokens, hidden, topk, fp8 } = shape;
  const experts = shape.expertsPerRank * group.size;
  const made: Tensor[] = [];
  const make = <D extends 'bf16' | 'f32' | 'i32' | 'fp8e4m3'>(dtype: D, extents: readonly number[]): Tensor<D> => {
    const tensor = device.empty(dtype, extents);
    made.push(tensor);
    return tensor;
  };
  const makeRows = (): RowsLike =>
    fp8
      ? { data: make('fp8e4m3', [tokens, hidden]), scales: make('f32', [tokens, Math.ceil(hidden / 128)]) }
      : make('bf16', [tokens, hidden]);
  const bits = (tensor: Tensor<'bf16'>): Promise<void> =>
    tensor.fromHost(Uint16Array.from({ length: tensor.elements }, () => next() * 0x7f00));
  const fractions = (tensor: Tensor<'f32'>): Promise<void> =>
    tensor.fromHost(Float32Array.from({ length: tensor.elements }, next));
  const fillRows = async (rows: RowsLike): Promise<void> => {
    if (!('data' in rows)) return bits(rows);
    await rows.data.fromHost(Uint8Array.from({ length: rows.data.elements }, () => next() * 0x7f));
    await fractions(rows.scales);
  };
  const inputs = {
    x: makeRows(),
    again: makeRows(),
    topkIdx: make('i32', [tokens, topk]),
    topkWeights: make('f32', [tokens, topk]),
    rows: make('bf16', [tokens, hidden]),
    outputs: make('bf16', [tokens * group.size, hidden]),
  };
  return {
    ...inputs,
    async refill() {
      await fillRows(inputs.x);
      await fillRows(inputs.again);
      await bits(inputs.rows);
      await bits(inputs.outputs);
      await fractions(inputs.topkWeights);
      const choices = Array.from({ length: tokens }, () => {
        const free = Array.from({ length: experts }, (_, expert) => expert);
        return Array.from({ length: topk }, () =>
          next() < 0.1 ? -1 : free.splice(Math.floor(next() * free.length), 1)[0]!,
        );
      });
      await inputs.topkIdx.fromHost(Int32Array.from(choices.flat()));
    },
    dispose() {
      for (const tensor of made) tensor.close();
    },
  };
}

/** Tensors of calls, and how to read what counts of them. */
export interface Calls extends Disposable {
  read(): Promise<Readonly<Record<string, readonly number[]>>>;
}

export function createBuffer(group: RankGroup, device: EpDevice, shape: GraphShape): Promise<EpBuffer> {
  const { tokens, hidden, topk, expertsPerRank } = shape;
  const numExperts = expertsPerRank * group.size;
  return EpBuffer.create(group, device, { maxTokensPerRank: tokens, hidden, numExperts, maxTopk: topk, numSms: 8 });
}

/** A dispatch, a cached one and their combines. `isBounded`: no host waits for anything. */
export async function callBuffer(
  buffer: EpBuffer,
  { x, again, topkIdx, topkWeights, outputs }: GraphInputs,
  { shape, isBounded }: { readonly shape: GraphShape; readonly isBounded: boolean },
): Promise<Calls> {
  const most = shape.tokens * buffer.group.size;
  const bound = isBounded ? { numWorstTokens: most } : {};
  const { device } = buffer;
  const first = await joined(device, shape, (how) => buffer.dispatch({ x, topkIdx, topkWeights, ...bound, ...how }));
  const { handle, recvTopkIdx, recvTopkWeights } = first;
  const sums = await joined(device, shape, (how) =>
    buffer.combine({ x: expertRows(first, outputs), handle, topkWeights: recvTopkWeights, ...how }),
  );
  // The choices lie in the window, where the next call that brings choices would overwrite them.
  const cached = await joined(device, shape, (how) => buffer.dispatch({ x: again, handle, ...how }));
  const others = await joined(device, shape, (how) =>
    buffer.combine({ x: expertRows(cached, outputs), handle, ...how }),
  );
  const scales = 'data' in cached.recvX ? cached.recvX.scales : undefined;
  return {
    async read() {
      const sources = plain(await handle.recvSrcIdx.toHost());
      const count = sources.filter((source) => source !== -1).length;
      return {
        sources: sources.slice(0, count),
        choices: plain(await recvTopkIdx.toHost()).slice(0, count * shape.topk),
        weights: plain(await recvTopkWeights.toHost()).slice(0, count * shape.topk),
        rows: plain(await dataOf(cached.recvX).toHost()).slice(0, count * shape.hidden),
        scales: scales === undefined ? [] : plain(await scales.toHost()).slice(0, count * scales.shape[1]!),
        combined: plain(await sums.combinedX.toHost()),
        combinedWeights: plain(await sums.combinedTopkWeights.toHost()),
        again: plain(await others.combinedX.toHost()),
      };
    },
    [Symbol.dispose]() {
      for (const tensor of [handle, sums.combinedX, sums.combinedTopkWeights, others.combinedX]) tensor.close();
    },
  };
}

export function createLayer(group: RankGroup, device: EpDevice, shape: GraphShape): Promise<EPAll2AllLayer> {
  const { tokens, hidden, topk, expertsPerRank, localCombine, keepOutput, wideOffsets } = shape;
  return EPAll2AllLayer.create(group, device, {
    maxTokensPerRank: tokens,
    hidden,
    maxTopk: topk,
    numExperts: expertsPerRank * group.size,
    enableLocalCombine: localCombine,
    keepDispatchOutput: keepOutput,
    offsetDtype: wideOffsets ? 'i64' : 'i32',
    numSms: 8,
    // Room for all rows that can arrive.
    capacity: group.size,
  });
}

/** A dispatch and its combine, the experts handing back what they got. */
export async function callLayer(
  layer: EPAll2AllLayer,
  { rows, topkIdx, topkWeights }: GraphInputs,
  { shape, isBounded }: { readonly shape: GraphShape; readonly isBounded: boolean },
): Promise<Calls> {
  const bound = isBounded ? { numWorstTokens: layer.context.outputSize.capacityRows } : {};
  const { device } = layer.context;
  const {
    recvX: output,
    recvTopkWeights: weights,
    handle,
  } = await joined(device, shape, (how) => layer.dispatch({ x: rows, topkIdx, topkWeights, ...bound, ...how }));
  const { combinedX: combined } = await joined(device, shape, async (how) => {
    if (how.asyncFinish === true) return layer.combine({ x: output, handle, ...how, asyncFinish: true });
    return { combinedX: await layer.combine({ x: output, handle }), event: undefined };
  });
  return {
    async read() {
      const counts = await countsOf(handle);
      const count = counts.reduce((sum, one) => sum + one, 0);
      return {
        counts,
        weights: plain(await weights.toHost()).slice(0, count),
        firstRows: plain(await handle.skippedTokenMappingIndices.toHost()).slice(0, count),
        duplicates: plain(await handle.skippedTokenTopkMappingIndices.toHost()).slice(0, count * shape.topk),
        places: plain(await handle.tokenDstScatterIdx.toHost()),
        tokens: plain(await handle.numInputTokensPerRank.toHost()),
        output: shape.keepOutput ? plain(await output.toHost()).slice(0, count * shape.hidden) : [],
        combined: plain(await combined.toHost()),
      };
    },
    [Symbol.dispose]() {
      handle.close();
      combined.close();
    },
  };
}

/** A call in the order of the device's stream; with `overlap` on a stream of its object, with events before and behind it. */
async function joined<Result extends { readonly event: DeviceEvent | undefined }>(
  device: Device,
  { overlap }: GraphShape,
  call: (how: CallOptions) => Promise<Result>,
): Promise<Result> {
  if (!overlap || !(device instanceof CudaDevice)) return call({});
  using previousEvent = device.createEvent().record(device.stream);
  const result = await call({ previousEvent, asyncFinish: true });
  using event = result.event as ReturnType<CudaDevice['createEvent']>;
  device.stream.waitFor(event);
  return result;
}

async function countsOf({ recvCounts, numRecvTokensPerExpert }: EPAllToAllLayoutDesc): Promise<readonly number[]> {
  return recvCounts === undefined ? numRecvTokensPerExpert : plain(await recvCounts.toHost());
}

function expertRows({ recvX, handle }: DispatchResult, outputs: Tensor<'bf16'>): Tensor<'bf16'> {
  return 'data' in recvX ? outputs.slice(0, handle.rows) : recvX;
}

function dataOf(rows: RowsLike): Tensor {
  return 'data' in rows ? rows.data : rows;
}

function plain(values: ArrayLike<number | bigint>): readonly number[] {
  return Array.from(values, Number);
}
