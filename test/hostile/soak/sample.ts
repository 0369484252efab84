// What a process holds, time after time, and whether it grows.
import { type ProcessUsage, usageOf } from '../../support/process-usage.ts';

export interface Sample extends ProcessUsage {
  readonly seconds: number;
  readonly cycles: number;
  /** Objects, and what typed arrays hold outside of them. */
  readonly heapBytes: number;
  readonly bufferBytes: number;
}

export function takeSample(start: number, cycles: number): Sample {
  // With --expose-gc, so that what is garbage does not count.
  (globalThis as { gc?: () => void }).gc?.();
  const { heapUsed, arrayBuffers } = process.memoryUsage();
  const seconds = (performance.now() - start) / 1000;
  return { seconds, cycles, heapBytes: heapUsed, bufferBytes: arrayBuffers, ...usageOf() };
}

const MIB = 2 ** 20;
/** How much the median of the last third may be above that of the first: a share of it, and a constant. */
const allowed: Readonly<Record<Quantity, readonly [share: number, constant: number]>> = {
  descriptors: [0, 3],
  mappings: [0, 3],
  threads: [0, 2],
  residentBytes: [0.15, 48 * MIB],
  heapBytes: [0.1, 6 * MIB],
  bufferBytes: [0.1, 12 * MIB],
};
export type Quantity = 'descriptors' | 'mappings' | 'threads' | 'residentBytes' | 'heapBytes' | 'bufferBytes';
/** What a process does first sets up what it keeps. */
const WARM_SHARE = 0.2;

export interface Trend {
  readonly quantity: Quantity;
  readonly first: number;
  readonly last: number;
  readonly isFlat: boolean;
}

/** Compares the first third of the samples, after some to get warm, with the last third. */
export function trendsOf(samples: readonly Sample[]): readonly Trend[] {
  const warm = samples.slice(Math.floor(samples.length * WARM_SHARE));
  const third = Math.max(1, Math.floor(warm.length / 3));
  return (Object.keys(allowed) as Quantity[]).map((quantity) => {
    const [share, constant] = allowed[quantity];
    const first = median(warm.slice(0, third).map((sample) => sample[quantity]));
    const last = median(warm.slice(-third).map((sample) => sample[quantity]));
    return { quantity, first, last, isFlat: last <= first * (1 + share) + constant };
  });
}

function median(values: readonly number[]): number {
  return values.toSorted((one, other) => one - other)[values.length >> 1] ?? 0;
}
