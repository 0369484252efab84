// What the expert-parallel kernels of a rank know of other hosts: who sends to whom, the window through which rows cross
// the network, and what a row looks like there.
import { EP_MAX_GROUP_RANKS, EP_MAX_RANKS, EP_MAX_WAYS } from './ep.ts';
import { alignUp, defineLayout } from './layout.ts';

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
  /** Low-latency dispatches whose slots all ranks of the peer's host have let go. */
  released: 5 + 2 * MAX_NETWORK_CHANNELS,
  /** Low-latency combines that have ended there, by result: two cells. */
  ended: 6 + 2 * MAX_NETWORK_CHANNELS,
  /** On GPUs, whose low-latency calls use one cell of `rows`: dispatches that the peer has forwarded, by receive slot: three cells. */
  slots: 3,
  /** In elastic low-latency calls, which use one cell of `sums`: how often the peer has told who takes part. */
  members: 3 + MAX_NETWORK_CHANNELS,
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

/** Most sources of other hosts that one rank serves. */
export const EP_MAX_SERVED = EP_MAX_GROUP_RANKS;

/**
 * Device memory, one per buffer, written once. Offsets count from the begin of a rank's network window, which has the same
 * layout on all ranks. A *way* is another host, a *slot* a source that this rank serves (see HostRoutes); both have a slot
 * of `slotBytes` for the rows of one call. Arrays end where `ways`, `served`, `ranks` or the ranks of the host end.
 */
export const epNetwork = defineLayout('EpNetwork', {
  /** This rank's network window, as its GPU reaches it: pinned memory of the host, or memory of the GPU. */
  window: 'ptr',
  /** Pinned memory of the host with cells at the same offsets, where peers say that they gave up; the window if it is pinned. */
  words: 'ptr',
  /**
   * u32 [EP_MAX_GROUP_RANKS * cells of a line]: signals of each peer that earlier calls took; zero at first. See networkSeen. In
   * this rank's own line `calls` is the number of the object's last call.
   */
  seen: 'ptr',
  /** u32 [(ways + maxServed) * maxChunks]: rows of a chunk that are ready; zero between kernels. */
  chunkRows: 'ptr',
  /** Lines of cells by rank of the group; see networkCells. */
  cellsOffset: 'u64',
  /** Two records by parity of the call: what this rank sends to its forwarders. */
  recordOutOffset: 'u64',
  /** `maxServed` records for each parity of the call: what the sources that are served have sent. */
  recordInOffset: 'u64',
  /** A slot per way: rows on their way out; in combine, what comes back from there. */
  outOffset: 'u64',
  /** `maxServed` slots: rows that have come; in combine, the sums that go back. */
  inOffset: 'u64',
  slotBytes: 'u64',
  /**
   * Low-latency calls alone have these, and slots of `out` and `in` for each receive slot: for each result a slot of `sumsBytes` for
   * the sums that go back to each source that is served, and one for those that come back by each way.
   */
  sumsOffset: 'u64',
  returnedOffset: 'u64',
  sumsBytes: 'u64',
  recordBytes: 'u32',
  maxServed: 'u32',
  /** Most tokens of any rank, and most chunks that they make. */
  maxTokens: 'u32',
  maxChunks: 'u32',
  /**
   * What a chunk has at most and at least, unless a single row has more or there are no more rows. Between them it is such that
   * each channel has a few chunks: packing, network and forwarding then overlap also where few rows are sent.
   */
  chunkBytes: 'u32',
  leastChunkBytes: 'u32',
  /** Ranks of the group. */
  ranks: 'u32',
  rank: 'u32',
  hosts: 'u32',
  host: 'u32',
  ways: 'u32',
  served: 'u32',
  /** Ways of its own that each peer has: chunks take them in turn. */
  channels: 'u32',
  /** 1: sums cross the network as f32. */
  isWide: 'u32',
  /** 1: those of low-latency calls cross it as fp8; see fp8SumBytes(). */
  isFp8: 'u32',
  /** The rank in the group, by index on this host. Ascending. */
  localRanks: { of: 'u32', count: EP_MAX_RANKS },
  /** Number of each rank's host, its index there, by rank of the group. */
  hostOf: { of: 'u32', count: EP_MAX_GROUP_RANKS },
  localIndexOf: { of: 'u32', count: EP_MAX_GROUP_RANKS },
  /** The host of each way, how many ranks it has, the rank there that takes what this one sends, this rank's slot there. */
  wayHost: { of: 'u32', count: EP_MAX_WAYS },
  wayRanks: { of: 'u32', count: EP_MAX_WAYS },
  wayForwarder: { of: 'u32', count: EP_MAX_WAYS },
  waySlot: { of: 'u32', count: EP_MAX_WAYS },
  /** The source of each slot, and the number of this host among its ways. */
  servedRank: { of: 'u32', count: EP_MAX_SERVED },
  servedWay: { of: 'u32', count: EP_MAX_SERVED },
  /** DeviceRequest for each way or slot and channel, from this window to the peer's, on a lane of its own. */
  wayRequests: { of: 'ptr', count: EP_MAX_WAYS * MAX_NETWORK_CHANNELS },
  servedRequests: { of: 'ptr', count: EP_MAX_SERVED * MAX_NETWORK_CHANNELS },
});

/** Words of a peer's line in `seen` that count no cell. By channel: chunks of this call that are pushed. */
export const networkSeen = { pushed: networkCells.abort + 1 } as const;

/** What a wait on the network is for: stands for the phase of a call word in the record of one that expired. */
export const networkPhases = { record: 3, rows: 4, sums: 5 } as const;

/** What a dispatched row has beside it, in bytes of one token. */
interface NetworkRow {
  readonly rowBytes: number;
  readonly topkBytes: number;
  readonly scaleBytes: number;
  readonly weightBytes: number;
  /** Ranks of the host that it goes to; 0 for a cached dispatch, whose places are known there. */
  readonly places: number;
}

/**
 * Bytes of a row on the network: row | choices | scales | weights | i32 source token | i32 [places] its row at each rank there,
 * -1 for none. The last two are missing in a cached dispatch, as are choices and weights.
 */
export function networkRowBytes({ rowBytes, topkBytes, scaleBytes, weightBytes, places }: NetworkRow): number {
  const placeBytes = places === 0 ? 0 : 4 + 4 * places;
  return alignUp(rowBytes + topkBytes + scaleBytes + weightBytes + placeBytes, NETWORK_ROW_ALIGNMENT);
}

/**
 * Bytes of a row of EPAll2AllLayer on the network: row | i32 [topk] its rows there, by choice | i32 [topk] index of each choice's
 * rank there | i32 [ranks] its number among the repeated tokens of each rank there | weights; -1 for none.
 */
export function networkChoiceRowBytes(of: {
  readonly rowBytes: number;
  readonly topk: number;
  /** Ranks of the host that it goes to. */
  readonly ranks: number;
  /** Bytes of one weight; 0 without. */
  readonly weightBytes: number;
}): number {
  return alignUp(of.rowBytes + (8 + of.weightBytes) * of.topk + 4 * of.ranks, NETWORK_ROW_ALIGNMENT);
}

/** Bytes of what combine sends back for a token: the sum of its rows | f32 sums of their weights. */
export function networkSumBytes(sumBytes: number, weightBytes: number): number {
  return alignUp(sumBytes + weightBytes, NETWORK_ROW_ALIGNMENT);
}

/** Rows of one chunk, which is one put and one signal. */
export function networkChunkRows(chunkBytes: number, rowBytes: number): number {
  return Math.max(1, Math.floor(chunkBytes / rowBytes));
}

/** What kernels move at once. */
const NETWORK_ROW_ALIGNMENT = 16;
