// The first page of a shared window file: what it is, who has arrived at its barrier, and why it was given up.
import { defineLayout } from './layout.ts';

/** "WLWN", little endian. */
export const WINDOW_MAGIC = 0x4e574c57;
export const WINDOW_VERSION = 1;
/** The header takes one WASM page, so that the windows behind it can be mapped as memory pages. */
export const WINDOW_HEADER_BYTES = 65_536;
export const MAX_LOCAL_RANKS = 256;
/** Each rank's arrival cell is alone on its cache line. */
export const ARRIVAL_STRIDE = 64;
export const ABORT_MESSAGE_BYTES = 960;

/**
 * One per window file. Words that several processes touch:
 *
 * - `generation`: the last barrier that everyone reached. Written by the rank that sees the last arrival, read by all; its
 *   store publishes everything that any rank wrote to any window before it arrived. Also the futex word. Wraps after
 *   2^32 barriers; compared by signed difference.
 * - `waiters`: how many sleep on `generation`; a rank that dies asleep leaves it too high, which costs one system call
 *   per barrier and nothing else.
 * - `abortState`: 0 none, 1 being written, 2 readable. Taken by compare-and-set, never reset: the group is over.
 */
export const windowHeader = defineLayout('WindowHeader', {
  magic: 'u32',
  version: 'u32',
  ranks: 'u32',
  reserved: 'u32',
  windowBytes: 'u64',
  generation: 'u32',
  waiters: 'u32',
  abortState: 'u32',
  abortLocalRank: 'u32',
  abortLength: 'u32',
  abortMessage: { of: 'u8', count: ABORT_MESSAGE_BYTES },
});

/**
 * One per rank, at ARRIVAL_OFFSET + ARRIVAL_STRIDE * local rank. `epoch` is the last barrier the rank arrived at (only
 * its owner writes it); `call` says, for even and odd epochs, in which call: a peer can be at most one barrier ahead,
 * so the word of the barrier just passed is still there when everyone reads it.
 */
export const windowArrival = defineLayout('WindowArrival', {
  epoch: 'u32',
  call: { of: 'u32', count: 2 },
});

export const ARRIVAL_OFFSET = 4096;
