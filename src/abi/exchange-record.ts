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

/** Header word of records that cross the network: the call that the rank has begun, as callWord() encodes it. */
export const EXCHANGE_CALL_WORD: number = EXCHANGE_HEADER_WORDS - 2;

/** How many counts a record holds. */
export interface ExchangeShape {
  readonly ranks: number;
  readonly experts: number;
  /** 0 for a group on one host, whose records have no counts per host. */
  readonly hosts: number;
}

/** Bytes of one source rank's record: header words, counts per rank, per expert and per host. */
export function exchangeRecordBytes({ ranks, experts, hosts }: ExchangeShape): number {
  return alignUp((EXCHANGE_HEADER_WORDS + ranks + experts + hosts) * 4, REGION_ALIGNMENT);
}

/** Bytes of the records of all sources, twice; see CountExchange. */
export function exchangeRegionBytes(shape: ExchangeShape): number {
  return 2 * shape.ranks * exchangeRecordBytes(shape);
}
