// Makes sure that the bare copies do all of what they stand for.
import { WeftlineError } from '../../../../core/errors.ts';
import { type DType, dtypes } from '../../../../core/dtype.ts';
import type { Tensor } from '../../../../device/tensor.ts';
import type { CudaMeeting } from './meeting.ts';
import type { RowCopy } from './row-copy.ts';

/**
 * Collective. `places` pairs what a dispatch has just left in this rank's window with where the copy puts the same. All
 * of it is wiped out, and the copies of all ranks must bring the same bytes back. Fails with WL_CHECK.
 */
export async function checkPush(
  meeting: CudaMeeting,
  copy: RowCopy,
  places: readonly { readonly left: Tensor; readonly place: Tensor }[],
): Promise<void> {
  const expected: Uint8Array[] = [];
  for (const { left } of places) expected.push(bytesOf(await left.toHost()));
  for (const { place } of places) await wipe(place);
  await meeting.together();
  copy.launch();
  await meeting.together();
  for (const [index, { place }] of places.entries()) {
    const wrong = firstDifference(expected[index] as Uint8Array, bytesOf(await place.toHost()));
    if (wrong !== undefined) throw wrongRow(meeting, place, wrong);
  }
}

/** Collective. With every token's rows in the windows, pulling must bring the tokens back to `out`. */
export async function checkPull(
  meeting: CudaMeeting,
  copy: RowCopy,
  { sent, out }: { readonly sent: Tensor; readonly out: Tensor },
): Promise<void> {
  await wipe(out);
  await meeting.together();
  copy.launch();
  await meeting.together();
  const wrong = firstDifference(bytesOf(await sent.toHost()), bytesOf(await out.toHost()));
  if (wrong !== undefined) throw wrongRow(meeting, out, wrong);
}

function wipe<D extends DType>(tensor: Tensor<D>): Promise<void> {
  return tensor.fromHost(new dtypes[tensor.dtype].array(tensor.elements) as Parameters<typeof tensor.fromHost>[0]);
}

function bytesOf(values: ArrayBufferView): Uint8Array {
  return new Uint8Array(values.buffer, values.byteOffset, values.byteLength);
}

function firstDifference(expected: Uint8Array, got: Uint8Array): number | undefined {
  if (Buffer.compare(expected, got) === 0) return undefined;
  return expected.findIndex((value, index) => value !== got[index]);
}

function wrongRow({ world }: CudaMeeting, tensor: Tensor, byte: number): WeftlineError {
  const row = Math.floor(byte / (tensor.bytes / (tensor.shape[0] as number)));
  return new WeftlineError('WL_CHECK', `A bare copy of the bench left another row ${row} at rank ${world.rank}`, {
    details: { rank: world.rank, row },
  });
}
