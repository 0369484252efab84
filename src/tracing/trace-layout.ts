// The file in which one process leaves its trace: a head that says who it is, and a ring of records for each of its threads;
// behind them those of its GPUs.
import { KERNEL_RECORDS, kernelRecord } from '../abi/kernel-trace.ts';
import { alignUp, defineLayout } from '../abi/layout.ts';

/** "WLTR", little endian. */
export const TRACE_MAGIC = 0x5254_4c57;
export const TRACE_VERSION = 2;
export const TRACE_TEXT_BYTES = 120;
/** Threads beyond these are not traced. */
export const TRACE_RINGS = 32;
/** Of a thread; older ones are overwritten. A power of two. */
export const TRACE_RECORDS = 65_536;
export const TRACE_HEAD_BYTES = 4096;

/**
 * `rings`: how many threads have taken one, by atomic addition; `kernelRings`: how many GPUs (kernel-trace.ts). `rank` is -1 in a process that is no rank of a job;
 * `launcher` is the process that started it, if that is weftline's, else 0. Texts
 * are UTF-8 and end at the first zero.
 */
export const traceHead = defineLayout('TraceHead', {
  magic: 'u32',
  version: 'u32',
  pid: 'u32',
  rank: 'i32',
  size: 'u32',
  rings: 'u32',
  kernelRings: 'u32',
  launcher: 'u32',
  host: { of: 'u8', count: TRACE_TEXT_BYTES },
  program: { of: 'u8', count: TRACE_TEXT_BYTES },
});

/**
 * In front of the records of a thread. `written`: records so far, modulo 2^32; stored after the record. `labels`: lines of
 * UTF-8, of which the records name the first by 0.
 */
export const traceRing = defineLayout('TraceRing', {
  written: 'u32',
  labelBytes: 'u32',
  thread: { of: 'u8', count: TRACE_TEXT_BYTES },
  labels: { of: 'u8', count: 3960 },
});

/**
 * A record, as numbers of 64 bits: microseconds since the Unix epoch; twice the number of the trace point, plus 1 at its
 * end; the subject, which tells apart what runs at once; the label plus 1, or 0.
 */
export const traceField = { time: 0, point: 1, subject: 2, label: 3 } as const;
export const TRACE_FIELDS = 4;

export const TRACE_RING_BYTES: number = traceRing.size + TRACE_RECORDS * TRACE_FIELDS * 8;

export function traceRingOffset(ring: number): number {
  return TRACE_HEAD_BYTES + ring * TRACE_RING_BYTES;
}

/** GPUs of one process that are traced. */
export const KERNEL_RINGS = 2;
/** Comparisons of the clocks of GPU and host that are kept, the last ones. */
export const CLOCK_SAMPLES = 256;
export const KERNEL_LABEL_BYTES = 4080;

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

export const KERNEL_RING_HEAD_BYTES: number = kernelRing.size + CLOCK_BYTES;
export const KERNEL_RING_BYTES: number = KERNEL_RING_HEAD_BYTES + KERNEL_RECORDS * kernelRecord.size;
const KERNEL_RINGS_BEGIN = alignUp(TRACE_HEAD_BYTES + TRACE_RINGS * TRACE_RING_BYTES, 4096);
export const TRACE_FILE_BYTES: number = KERNEL_RINGS_BEGIN + KERNEL_RINGS * KERNEL_RING_BYTES;

/** At a multiple of the size of a page. */
export function kernelRingOffset(ring: number): number {
  return KERNEL_RINGS_BEGIN + ring * KERNEL_RING_BYTES;
}
