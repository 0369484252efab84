// What the failure scenarios share: the world, its device, small buffers, and the error that a call ends with.
import { type CpuDevice, type Tensor, WeftlineError } from 'weftline';
import type { EpBufferConfig } from 'weftline/ep';
import { join } from 'weftline/world';
import { openTestDevice } from '../../support/test-device.ts';

/** What to do, and what to print of it, by name. */
export type Scenarios = Readonly<Record<string, () => Promise<unknown>>>;

export interface Failure {
  readonly code: string;
  readonly message: string;
  readonly ms: number;
  /** Where it began, if the error says so. */
  readonly rank?: number;
}

export const config: EpBufferConfig = { maxTokensPerRank: 8, hidden: 16, numExperts: 4, maxTopk: 2 };
export const layerOptions = { maxTokensPerRank: 8, hidden: 16, maxTopk: 2, numExperts: 4 };
export const world = await join();
export const device = await openTestDevice(world);

/** Address space of a CPU rank; the scenarios that fill it are not for GPUs. */
export function addressSpace(): CpuDevice['space'] {
  if (device.kind !== 'cpu') throw new Error('this scenario is for CPU ranks');
  return device.space;
}

/** Leaves little of the device's memory. */
export function fillMemory(): Tensor[] {
  if (device.kind === 'cpu') return [device.empty('u8', [addressSpace().largestGap - (4 << 20)])];
  const fillers: Tensor[] = [];
  for (let bytes = 2 ** 36; bytes >= 4 << 20;) {
    try {
      fillers.push(device.empty('u8', [bytes]));
    } catch {
      bytes /= 2;
    }
  }
  fillers.pop()?.close();
  return fillers;
}

export async function tokens(count: number, hidden = 16): Promise<Tensor<'bf16'>> {
  return device.tensor('bf16', [count, hidden], new Uint16Array(count * hidden));
}

export function ids(rows: number[][]): Promise<Tensor<'i32'>> {
  return device.tensor('i32', [rows.length, rows[0]?.length ?? 0], Int32Array.from(rows.flat()));
}

export async function failureOf(call: () => Promise<unknown>): Promise<Failure> {
  const started = performance.now();
  try {
    await call();
    return { code: 'none', message: 'no error', ms: 0 };
  } catch (error) {
    const code = error instanceof WeftlineError ? error.code : 'not ours';
    const message = error instanceof Error ? error.message : String(error);
    const rank = error instanceof WeftlineError ? error.rank : undefined;
    return { code, message, ms: performance.now() - started, ...(rank === undefined ? {} : { rank }) };
  }
}
