// What waits in the queue of a link: transfers, puts and signals, and who hears of their ends.
import type { WeftlineError } from '../../core/errors.ts';
import type { PartTable } from '../../transport/part-table.ts';
import type { RdmaRegion, RdmaRemoteRegion } from './rdma-region.ts';

export const operationKinds = { write: 0, read: 1, put: 2, add: 3, store: 4 } as const;

/** The one that has posted an operation. `post` tells its operations apart: the owner's own number. */
export interface OperationOwner {
  /** Hot path. False if it is not to be started any more. */
  wants(post: number): boolean;
  /** Hot path. The device does not touch its memory any more; with an error, it was not carried out, or not all of it. */
  ended(post: number, error: WeftlineError | undefined): void;
}

/** Ranges of a transfer, and the regions of both sides that they lie in. */
export interface RequestParts {
  readonly table: PartTable;
  readonly locals: readonly RdmaRegion[];
  readonly remotes: readonly RdmaRemoteRegion[];
}

/** The place of puts and signals. Objects of their caller, read while the operation is entered. */
export interface RequestPlace {
  remote: RdmaRemoteRegion | undefined;
  remoteOffset: number;
  localAddress: number;
  localKey: number;
  bytes: number;
  /** The number that a signal adds or stores. */
  low: number;
  high: number;
}
