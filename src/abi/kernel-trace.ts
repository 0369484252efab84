// What kernels write of their phases: records that lie in the file of the process, behind the rings of its threads.
import { alignUp, defineLayout } from './layout.ts';
import { TRACE_HEAD_BYTES, TRACE_RING_BYTES, TRACE_RINGS } from './trace-rings.ts';

/** GPUs of one process that are traced. */
export const KERNEL_RINGS = 2;
/** Of a GPU; older ones are overwritten. A power of two. */
export const KERNEL_RECORDS = 262_144;
/** How many a block takes at a time for its phases; it may end with some unused. A power of two. */
export const KERNEL_RECORDS_AT_ONCE = 8;
/** Comparisons of the clocks of GPU and host that are kept, the last ones. */
export const CLOCK_SAMPLES = 256;
export const KERNEL_LABEL_BYTES = 4080;
/** In `peer` of a record: the block waits for other blocks of its own rank. */
export const OWN_BLOCKS = 0x8000_0000;
/** In `peer` of a record that is not about a wait. */
export const NO_PEER = 0xffff_ffff;

/**
 * In front of the records of a GPU. `labels`: names of kernel files, lines of UTF-8. `samples`: comparisons of clocks so far.
 * `isElsewhere`: 1 while the records lie in a file in memory, until the process ends (tracing/kernel-memory.ts).
 */
export const kernelRing = defineLayout(
  'KernelRing',
  {
    device: 'u32',
    samples: 'u32',
    labelBytes: 'u32',
    isElsewhere: 'u32',
    labels: { of: 'u8', count: KERNEL_LABEL_BYTES },
  },
  4096,
);

/** A comparison of clocks, as numbers of 64 bits: the GPU's clock in ns as 2^32 * high + low; the host's in µs since 1970; how far they may be apart, in µs. */
export const clockField = { high: 0, low: 1, host: 2, error: 3 } as const;
export const CLOCK_FIELDS = 4;
const CLOCK_BYTES = CLOCK_SAMPLES * CLOCK_FIELDS * 8;

/**
 * `time`: of the GPU's clock, in ns. `point`: pointHash() of the trace point. `sequence`: which record of the GPU this is, plus
 * 1, modulo 2^32; it stands in both halves, each of which is written at once. `launch`: tells launches apart. `block`: its
 * number, and 16 bits higher twice the number of the label, plus 1 at an end. `peer`: who is waited for.
 */
export const kernelRecord = defineLayout(
  'KernelRecord',
  {
    time: 'u64',
    point: 'u32',
    sequence: 'u32',
    launch: 'u32',
    block: 'u32',
    peer: 'u32',
    sequenceAgain: 'u32',
  },
  32,
);

/** What a traced kernel file has as its constant `weftlineTrace`. `taken`: how many records were given out, in device memory. */
export const kernelTraceTarget = defineLayout('KernelTraceTarget', { records: 'ptr', taken: 'ptr', label: 'u32' });

/** Of the kernel traceClock, which answers each number that the host asks with the GPU's time. */
export const traceClockCells = defineLayout('TraceClockCells', { time: 'u64', answered: 'u32', asked: 'u32' });
export const traceClockArguments = defineLayout('TraceClockArguments', {
  cells: 'ptr',
  deadlineNs: 'u64',
  rounds: 'u32',
});

export const KERNEL_RING_HEAD_BYTES: number = kernelRing.size + CLOCK_BYTES;
export const KERNEL_RING_BYTES: number = KERNEL_RING_HEAD_BYTES + KERNEL_RECORDS * kernelRecord.size;
const KERNEL_RINGS_BEGIN = alignUp(TRACE_HEAD_BYTES + TRACE_RINGS * TRACE_RING_BYTES, 4096);
export const TRACE_FILE_BYTES: number = KERNEL_RINGS_BEGIN + KERNEL_RINGS * KERNEL_RING_BYTES;

/** At a multiple of the size of a page. */
export function kernelRingOffset(ring: number): number {
  return KERNEL_RINGS_BEGIN + ring * KERNEL_RING_BYTES;
}

/** FNV-1a: what kernels call a trace point, which they compute of its name while they are compiled. */
export function pointHash(point: string): number {
  let hash = 0x811c_9dc5;
  for (const byte of Buffer.from(point)) hash = Math.imul(hash ^ byte, 0x0100_0193) >>> 0;
  return hash;
}
