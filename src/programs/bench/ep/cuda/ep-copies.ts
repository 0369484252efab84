// The bare copies of what EpBuffer moves: between the same memory, found to be the fastest, and checked.
import { alignUp } from '../../../../abi/layout.ts';
import { Tensor } from '../../../../device/tensor.ts';
import type { EpBuffer } from '../../../../ep/index.ts';
import { combineRowBytes } from '../ep-workload.ts';
import { checkPull, checkPush } from './copy-checks.ts';
import type { CudaCaseTools } from './ep-case.ts';
import { inputRows, type RowDtype } from './ep-inputs.ts';
import { fastestRowCopy, type RowCopy } from './row-copy.ts';

export interface CopyTools extends CudaCaseTools {
  readonly buffer: EpBuffer;
  /** i32 [1], zero between kernels. */
  readonly counter: Tensor<'i32'>;
}

/** Collective. Of combine's rows; they are those that a dispatch of bf16 rows has left. */
export async function makePull(tools: CopyTools): Promise<RowCopy> {
  const { meeting, stopwatch, inputs, buffer, counter, isOneShape } = tools;
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
    isOneShape,
  });
  await checkPull(meeting, copy, { sent: bf16, out });
  return copy;
}

/** Collective. Of the rows that dispatch sends. */
export async function makePush(
  { meeting, stopwatch, inputs, buffer, counter, isOneShape }: CopyTools,
  dtype: RowDtype,
): Promise<RowCopy> {
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
    isOneShape,
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
  return Array.from({ length: buffer.group.size }, (_, rank) => buffer.peerRowAddress(rank, 0, region));
}
