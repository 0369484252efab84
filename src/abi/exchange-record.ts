// The count exchange of a collective call: what a rank writes into every window, and where regions of windows start.
import { EXCHANGE_HEADER_WORDS } from './ep-arguments.ts';
import { alignUp } from './layout.ts';

/** Regions of a window start on pairs of cache lines. */
export const REGION_ALIGNMENT = 128;

/** Bytes of one source rank's record: header words, counts per rank, counts per expert. */
export function exchangeRecordBytes(numRanks: number, numExperts: number): number {
  return alignUp((EXCHANGE_HEADER_WORDS + numRanks + numExperts) * 4, REGION_ALIGNMENT);
}

/** Bytes of the records of all sources, twice; see CountExchange. */
export function exchangeRegionBytes(numRanks: number, numExperts: number): number {
  return 2 * numRanks * exchangeRecordBytes(numRanks, numExperts);
}
