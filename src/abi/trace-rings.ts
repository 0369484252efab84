// The file in which one process leaves its trace: a head that says who it is, and a ring of records for each of its threads;
// behind them those of its GPUs.
import { defineLayout } from './layout.ts';

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
