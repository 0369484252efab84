// What lies where in the window of a CUDA rank of a Communicator.
import {
  COLLECTIVE_MAX_BLOCKS,
  COLLECTIVE_MAX_RANKS,
  COLLECTIVE_POSTS,
  collectiveFailure,
  collectiveRecord,
  messageFlags,
  messagePost,
} from '../../abi/collectives.ts';
import { alignUp } from '../../abi/layout.ts';

/** Steps whose slots and words are in use at once, and chunks of a message. */
const IN_TURN = 2;
const SLOT_ALIGNMENT = 128;

interface CudaCollectiveShape {
  readonly ranks: number;
  readonly pieceBytes: number;
  /** Blocks of kernels at most. */
  readonly numSms: number;
}

export interface CudaCollectiveRegions {
  readonly bytes: number;
  readonly arrivals: number;
  readonly records: number;
  readonly flags: number;
  readonly posts: number;
  readonly chunks: number;
  readonly slots: number;
  /** Of a block, from one rank: what it takes in a step. */
  readonly slotBytes: number;
  readonly chunkBytes: number;
  /** Pairs of a block that sends and one that receives. */
  readonly lanes: number;
}

/** Failures come first. Offsets are multiples of 128. */
export function cudaCollectiveRegions({ ranks, pieceBytes, numSms }: CudaCollectiveShape): CudaCollectiveRegions {
  const lanes = Math.max(1, Math.floor(numSms / 2));
  const slotBytes = alignUp(Math.ceil(pieceBytes / numSms), SLOT_ALIGNMENT);
  const chunkBytes = alignUp(Math.ceil(pieceBytes / lanes / IN_TURN), SLOT_ALIGNMENT);
  const cells = IN_TURN * COLLECTIVE_MAX_BLOCKS * COLLECTIVE_MAX_RANKS;
  let end = 0;
  const take = (bytes: number): number => {
    const begin = end;
    end += alignUp(bytes, SLOT_ALIGNMENT);
    return begin;
  };
  take(COLLECTIVE_MAX_RANKS * collectiveFailure.size);
  const regions = {
    arrivals: take(cells * 8),
    records: take(cells * collectiveRecord.size),
    flags: take(lanes * ranks * messageFlags.size),
    posts: take(lanes * ranks * COLLECTIVE_POSTS * messagePost.size),
    chunks: take(lanes * ranks * IN_TURN * chunkBytes),
    slots: take(numSms * IN_TURN * ranks * slotBytes),
  };
  return { ...regions, bytes: end, slotBytes, chunkBytes, lanes };
}
