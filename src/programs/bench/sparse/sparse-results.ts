// The result document of `weftline bench sparse`.
import type { MachineDocument } from '../machine.ts';
import type { PlacementSample } from '../machine.ts';

export interface SparseWorkload {
  readonly workers: number;
  /** Ranks that only add up; 0: every worker does. */
  readonly aggregators: number;
  /** Ranks from which an aggregator takes blocks at most; 0: from all workers. */
  readonly fanIn: number;
  readonly hosts: string;
  /** Where the workers' tensors are. */
  readonly device: 'cpu' | 'cuda';
  readonly elements: number;
  readonly dtype: 'f32' | 'i32' | 'bf16';
  /** Shares of blocks that a worker has, each measured in turn. */
  readonly densities: readonly number[];
  readonly blockSize: number;
  readonly messageSize: number;
  readonly slots: number;
  readonly warmups: number;
  readonly rounds: number;
}

/** Of one density. Bytes are those of a worker and call, in the mean of the workers; times are of the slowest worker, in µs. */
export interface SparseRow {
  readonly density: number;
  readonly blocks: number;
  readonly ownBlocks: number;
  readonly sumBlocks: number;
  readonly sentBytes: number;
  readonly receivedBytes: number;
  /** Blocks alone, of workers whose blocks lie at random: d S, and (1 - (1 - d)^W) S. */
  readonly sentTheory: number;
  readonly receivedTheory: number;
  readonly messages: number;
  /** Median of the rounds. */
  readonly sparseMicroseconds: number;
  /** Of `Communicator.allReduce` of the workers, in the same rounds. */
  readonly denseMicroseconds: number;
  /** Elements of all workers and rounds that differ between the two. */
  readonly wrong: number;
}

/** GB/s of the kernel that finds the blocks, on a tensor of zeros, and of memchr, or of a kernel that only reads, over the same memory, in turn. */
export interface BitmapRates {
  readonly bitmap: number;
  readonly read: number;
}

export interface SparseBenchReport {
  readonly schema: 'weftline.bench.sparse/1';
  readonly machine: MachineDocument;
  readonly loadAverage: { readonly before: number; readonly after: number };
  readonly placement: { readonly before: PlacementSample; readonly after: PlacementSample };
  readonly workload: SparseWorkload;
  /** Of rank 0, where tensors are on GPUs. */
  readonly gpu?: string;
  /** How bytes get from rank 0 to others. */
  readonly route: 'window' | 'network' | 'both' | 'self';
  readonly rows: readonly SparseRow[];
  /** The share of blocks from which on dense is faster, between the densities measured; undefined if there is none. */
  readonly crossing: number | undefined;
  readonly bitmap: BitmapRates;
}
