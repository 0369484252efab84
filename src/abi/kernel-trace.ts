// What kernels write of their phases: records that lie in the file of the process, behind the rings of its threads.
import { defineLayout } from './layout.ts';

/** Records of a GPU; older ones are overwritten. A power of two. */
export const KERNEL_RECORDS = 262_144;
/** How many a block takes at a time for its phases; it may end with some unused. A power of two. */
export const KERNEL_RECORDS_AT_ONCE = 8;
/** The `peer` of a record whose block waits for other blocks of its own rank. */
export const OWN_BLOCKS = 0x8000_0000;
/** The `peer` of a record that is not about a wait. */
export const NO_PEER = 0xffff_ffff;

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

/** Arguments of the kernel traceClock, which answers each number that the host asks with the GPU's time. */
export const traceClockCells = defineLayout('TraceClockCells', { time: 'u64', answered: 'u32', asked: 'u32' });
export const traceClockArguments = defineLayout('TraceClockArguments', {
  cells: 'ptr',
  deadlineNs: 'u64',
  rounds: 'u32',
});

/** FNV-1a: what kernels call a trace point, which they compute of its name while they are compiled. */
export function pointHash(point: string): number {
  let hash = 0x811c_9dc5;
  for (const byte of Buffer.from(point)) hash = Math.imul(hash ^ byte, 0x0100_0193) >>> 0;
  return hash;
}
