// The count exchange of a collective call: what a rank writes into every window, and where regions of windows start.
import { alignUp } from './layout.ts';

/** Regions of a window start on pairs of cache lines. */
export const REGION_ALIGNMENT = 128;

/** Words of an exchange record before its counts per rank and per expert. */
export const EXCHANGE_HEADER_WORDS = 16;

/** The CUDA kernels' header words: what must agree, then what may differ. */
export const epRecordWords = {
  topk: 0,
  rowBytes: 1,
  scaleBytes: 2,
  indexBytes: 3,
  weightBytes: 4,
  numTokens: 5,
  rowBound: 6,
  badCell: 7,
} as const;

/** What must be equal on all ranks of one call, in the order of the header words, as CPU ranks write them. */
export const exchangeFields = ['topk', 'rowBytes', 'scaleBytes', 'indexBytes', 'weightBytes', 'scattered'] as const;
/** What may differ, behind those: the sender's tokens, and its own bound on received rows (0: none). */
export const exchangeOwnFields = ['numTokens', 'rowBound'] as const;

/** Header word of a later agreement within the call: 0 good, else what went wrong at that rank. */
export const EXCHANGE_STATUS_WORD: number = EXCHANGE_HEADER_WORDS - 1;

/** Bytes of one source rank's record: header words, counts per rank, counts per expert. */
export function exchangeRecordBytes(numRanks: number, numExperts: number): number {
  return alignUp((EXCHANGE_HEADER_WORDS + numRanks + numExperts) * 4, REGION_ALIGNMENT);
}

/** Bytes of the records of all sources, twice; see CountExchange. */
export function exchangeRegionBytes(numRanks: number, numExperts: number): number {
  return 2 * numRanks * exchangeRecordBytes(numRanks, numExperts);
}
