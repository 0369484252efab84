// The ceiling that every case is compared with: the same processes copy the same rows between the same windows, and do nothing else.
import { WeftlineError } from '../../../core/errors.ts';
import type { CpuDevice } from '../../../device/cpu/cpu-device.ts';
import type { EpBuffer, RowsLike } from '../../../ep/index.ts';
import type { TrafficCopyPlan } from './ep-traffic.ts';
import type { BenchGroup } from '../interleaved.ts';

export interface CopyCeilingOptions {
  readonly device: CpuDevice;
  readonly buffer: EpBuffer;
  readonly x: RowsLike;
  readonly plan: TrafficCopyPlan;
}

/** Returns the timed part: addresses are worked out here, so that it consists of copies only. */
export function copyCeiling({ device, buffer, x, plan }: CopyCeilingOptions): () => void {
  const { copyBytes } = device.kernels;
  const { hidden } = buffer.config;
  const [data, scales] = 'scales' in x ? [x.data, x.scales] : [x, undefined];
  const rowBytes = data.dtype === 'bf16' ? hidden * 2 : hidden;
  const scaleBytes = (scales?.shape[1] ?? 0) * 4;
  // Scales go behind the fp8 rows, into the part of the region that only bf16 rows use.
  const scalesStart = buffer.size.maxRecvTokens * rowBytes;
  const copies = plan.tokens.length;
  const columns = scales === undefined ? 2 : 4;
  const addresses = new Uint32Array(copies * columns);
  for (let copy = 0; copy < copies; copy += 1) {
    const token = plan.tokens[copy] as number;
    const row = plan.rows[copy] as number;
    const region = buffer.peerRowAddress(plan.destinations[copy] as number, 0);
    addresses.set([region + row * rowBytes, data.address + token * rowBytes], copy * columns);
    if (scales === undefined) continue;
    const target = region + scalesStart + row * scaleBytes;
    addresses.set([target, scales.address + token * scaleBytes], copy * columns + 2);
  }
  const copyRange = (first: number, bytes: number): void => {
    copyBytes(addresses[first] as number, addresses[first + 1] as number, bytes);
  };
  return () => {
    for (let at = 0; at < addresses.length; at += columns) {
      copyRange(at, rowBytes);
      if (columns === 4) copyRange(at + 2, scaleBytes);
    }
  };
}

/**
 * Collective. Makes sure that the ceiling does all of what it stands for: after a dispatch, with the received rows wiped
 * out, it must bring back the same bytes. Fails with WL_CHECK.
 */
export async function checkCeiling(group: BenchGroup, received: Uint32Array, ceiling: () => void): Promise<void> {
  const expected = checksum(received);
  received.fill(0);
  await group.barrier('ceiling-wiped');
  ceiling();
  await group.barrier('ceiling-copied');
  if (checksum(received) === expected) return;
  throw new WeftlineError('WL_CHECK', `The copy ceiling left other rows at rank ${group.rank} than dispatch does`, {
    details: { rank: group.rank },
  });
}

function checksum(words: Uint32Array): number {
  let sum = 0;
  for (const word of words) sum = (Math.imul(sum, 31) + word) | 0;
  return sum;
}
