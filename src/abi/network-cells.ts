// Where signals of other hosts are counted: a line of 64-bit cells per peer, which its channels add to and nobody resets.

/** Channels to each peer, so that several engines carry its rows. */
export const MAX_NETWORK_CHANNELS = 4;

/** Cells of one peer. `rows` and `sums` have one per channel. */
export const networkCells = {
  /** Records of calls that the peer has begun. */
  calls: 0,
  /** What a dispatch sends besides rows. */
  metadata: 1,
  /** What a combine sends besides rows. */
  weights: 2,
  /** Chunks of dispatched rows. */
  rows: 3,
  /** Chunks of summed rows, in combine. */
  sums: 3 + MAX_NETWORK_CHANNELS,
  /** The peer has given up. */
  abort: 3 + 2 * MAX_NETWORK_CHANNELS,
} as const;

const CELL_BYTES = 8;
/** A pair of cache lines, so that peers do not share one. */
export const NETWORK_LINE_BYTES = 128;

/** Bytes of the lines of all ranks of a group. */
export function networkCellsBytes(ranks: number): number {
  return ranks * NETWORK_LINE_BYTES;
}

/** Offset of a cell of the peer with that rank in the group. */
export function networkCellOffset(peer: number, cell: number): number {
  return peer * NETWORK_LINE_BYTES + cell * CELL_BYTES;
}
