// Where signals of other hosts are counted: a line of 64-bit cells per peer, which its channels add to and nobody resets.

/** Channels to each peer, so that several engines carry its rows. */
export const MAX_NETWORK_CHANNELS = 4;

/** Cells of one peer. `rows` and `sums` have one per channel. */
export const networkCells = {
  /** Records of calls that the peer has begun. */
  calls: 0,
  /** What a dispatch sends besides rows. */
  metadata: 1,
  /** Chunks of dispatched rows. */
  rows: 2,
  /** Chunks of summed rows, in combine. */
  sums: 2 + MAX_NETWORK_CHANNELS,
  /** The peer has given up. */
  abort: 2 + 2 * MAX_NETWORK_CHANNELS,
  /** The peer has closed its side; what it sent before is here. */
  closed: 3 + 2 * MAX_NETWORK_CHANNELS,
  /** Chunks of summed rows whose places the peer may fill again. */
  credits: 4 + 2 * MAX_NETWORK_CHANNELS,
} as const;

const CELL_BYTES = 8;
/** A pair of cache lines, so that peers do not share one. */
export const NETWORK_LINE_BYTES = 128;

/** Why a peer has given up: a 32-bit length, then as much text. */
export const NETWORK_ABORT_BYTES = 1024;

/** Bytes of the lines of all ranks of a group. */
export function networkCellsBytes(ranks: number): number {
  return ranks * NETWORK_LINE_BYTES;
}

/** Offset of a cell of the peer with that rank in the group. */
export function networkCellOffset(peer: number, cell: number): number {
  return peer * NETWORK_LINE_BYTES + cell * CELL_BYTES;
}
