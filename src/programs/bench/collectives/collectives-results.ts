// The result document of `weftline bench collectives`.
import type { MachineDocument } from '../machine.ts';
import type { PlacementSample } from '../machine.ts';
import type { BenchedKind, CollectivesWorkload } from './collectives-workload.ts';

/** Of one operation, size and way of placing. */
export interface CollectiveTimes {
  /** µs of a call, of the slowest rank: the median of the rounds. */
  readonly microseconds: number;
  /** GB/s: size / time, and that times what a link would carry of each byte. */
  readonly algbw: number;
  readonly busbw: number;
  /** Elements of all ranks that differ from the reference; undefined where they were not compared. */
  readonly wrong: number | undefined;
  /** µs of the peer's call in the same rounds. */
  readonly peerMicroseconds: number | undefined;
}

export interface CollectiveRow {
  readonly kind: BenchedKind;
  readonly bytes: number;
  readonly count: number;
  readonly outOfPlace: CollectiveTimes;
  readonly inPlace: CollectiveTimes;
}

/** How many times as fast as the peer: geometric mean and worst, of all rows and both ways. */
export interface PeerRatio {
  readonly kind: BenchedKind;
  readonly sizes: 'small' | 'large';
  readonly geometricMean: number;
  readonly worst: number;
  readonly worstBytes: number;
}

export interface CollectivesBenchReport {
  readonly schema: 'weftline.bench.collectives/1';
  readonly machine: MachineDocument;
  readonly loadAverage: { readonly before: number; readonly after: number };
  readonly placement: { readonly before: PlacementSample; readonly after: PlacementSample };
  readonly workload: CollectivesWorkload;
  /** "CPU", or "GPU" with how tensors and multiprocessors were used. */
  readonly ranksOn: string;
  /** "mpirun (Open MPI) 4.1.4", "NCCL 2.28.9" */
  readonly peer: string | undefined;
  readonly rows: readonly CollectiveRow[];
  readonly ratios: readonly PeerRatio[];
}
