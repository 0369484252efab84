// The result document of the unpack bench.
import type { MachineDocument } from '../machine.ts';
import type { Summary } from '../statistics.ts';
import type { Component } from './cuda/components.ts';
import type { KernelRate } from './cuda/kernel-rates.ts';
import type { Verdict } from './document-figures.ts';
import type { UnpackWorkload } from './unpack-workload.ts';

export interface StageResult {
  readonly name: string;
  readonly fragmentBytes: number;
  /** From the first call until the last byte is in its place. */
  readonly microseconds: Summary;
  readonly microsecondsPerChunk: number;
  readonly gigabytesPerSecond: number;
  /** How many times faster than copies one by one, from the same rounds. */
  readonly timesCopies: Summary;
  /** What the document says per chunk, where it says something: for fragments of 4 KiB. */
  readonly documentMicrosecondsPerChunk: number | undefined;
  readonly verdict: Verdict;
}

export interface ComponentResult extends Component {
  readonly documentMicroseconds: number | undefined;
  readonly verdict: Verdict;
}

export interface UnpackBenchReport {
  readonly schema: 'weftline.bench.unpack/1';
  readonly date: string;
  readonly device: string;
  readonly workload: UnpackWorkload;
  readonly warmup: number;
  readonly iterations: number;
  readonly machine: MachineDocument;
  readonly loadAverage: { readonly before: number; readonly after: number };
  readonly stages: readonly StageResult[];
  /** Of GPUs. */
  readonly components: readonly ComponentResult[];
  readonly kernels: readonly KernelRate[];
}
