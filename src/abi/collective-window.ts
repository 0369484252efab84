// What ranks of one host share for collectives: who is how far, what each calls, who sleeps, and messages between pairs.
import { defineLayout } from './layout.ts';

/**
 * Calls whose records a rank keeps, a power of two. It may be a good quarter as many calls ahead of another rank, which looks back
 * at half as many.
 */
export const CALL_RECORDS = 2048;
/** Words that different ranks write lie on different cache lines. */
const CACHE_LINE = 64;

/**
 * One per rank, in its part of the window. Only the rank itself writes to it, unless said otherwise.
 *
 * - `posted`: how many pieces of collective calls it has posted. Its store publishes what the rank staged before it, and
 *   says that the rank has taken all it needs of earlier pieces. Wraps; compared by signed difference.
 * - `bell`: the word that the rank sleeps on. Whoever changes what it waits for adds one, if it sleeps.
 * - `sleepers`: above zero while it sleeps or is about to.
 */
export const collectiveBoard = defineLayout(
  'CollectiveBoard',
  {
    posted: 'i32',
    postedLine: { of: 'i32', count: 15 },
    bell: 'i32',
    sleepers: 'i32',
    bellLine: { of: 'i32', count: 14 },
  },
  CACHE_LINE,
);

/**
 * What a rank calls: record `call % CALL_RECORDS` of its ring, written before its first post of that call. Beside it, at the
 * same place of a ring of words, stands its signature, which other ranks compare; they read the record to tell a difference.
 */
export const callRecord = defineLayout('CollectiveCallRecord', {
  call: 'i32',
  /** Kind in bits 0-7, dtype in bits 8-15, reduction in bits 16-23. */
  operation: 'i32',
  root: 'i32',
  count: 'u32',
});

/**
 * One per (sender, receiver), in the sender's part: pieces that it has sent to that receiver. Its counterpart `taken` is in
 * the receiver's part. Both wrap.
 */
export const pairCell = defineLayout('CollectivePairCell', { pieces: 'i32' }, CACHE_LINE);

/** Before the bytes of a piece of a message. `messageBytes` and `dtype` are those of the whole message. */
export const pieceHeader = defineLayout(
  'CollectivePieceHeader',
  { messageBytes: 'u32', dtype: 'i32', bytes: 'u32' },
  CACHE_LINE,
);
