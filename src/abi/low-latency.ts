// What ranks share in low-latency mode: how far each one is, what each calls, and how scales of fp8 rows are written.
import { defineLayout } from './layout.ts';

/** Results of dispatches, and handles, that are alive at once; the parity of a dispatch's number tells which memory is its. */
export const LOW_LATENCY_RESULTS = 2;
/** Calls whose words a cell keeps, by number; more than any rank can be ahead of another. */
export const LOW_LATENCY_CALLS = 4;
const CACHE_LINE = 64;

/**
 * One per (receiver, source), in the receiver's part of the window; only the source writes to it. Numbers count calls from
 * 1, are never reset, wrap, and are compared by signed difference: nothing has to be cleaned between calls.
 *
 * - `dispatched`: the last dispatch whose rows the source has put here. Its store publishes the rows, and `rows` and
 *   `dispatchCall` of that number.
 * - `released`: the source has no more use for what it received in dispatches up to this one; their slots there are free.
 * - `combined`: the last combine for which the source's rows can be read, and `combineCall` of that number.
 * - `taken`: the source has read all it needs of the receiver's rows in combines up to this one.
 */
export const lowLatencyCell = defineLayout(
  'LowLatencyCell',
  {
    dispatched: 'i32',
    released: 'i32',
    combined: 'i32',
    taken: 'i32',
    /** By number of the dispatch modulo LOW_LATENCY_CALLS: rows that it brings here. */
    rows: { of: 'i32', count: LOW_LATENCY_CALLS },
    dispatchCall: { of: 'i32', count: LOW_LATENCY_CALLS },
    combineCall: { of: 'i32', count: LOW_LATENCY_CALLS },
  },
  CACHE_LINE,
);

/**
 * One per rank, in its own part of the window; of elastic objects alone.
 *
 * - `word`: how the rank takes part, any rank changes it by compare-and-set: one of lowLatencyStates in bits 0-1, above them
 *   the number of a dispatch. Zero, as new memory is: active from the first one on.
 * - `epoch`: in the part of rank 0, how often a word has changed. Wraps.
 */
export const lowLatencyMember = defineLayout('LowLatencyMember', { word: 'i32', epoch: 'i32' }, CACHE_LINE);

/**
 * `active`: from the word's dispatch on. `absent`: masked, or gone. `connected`: has mapped the window and waits to become
 * active. `leaving`: active before the word's dispatch.
 */
export const lowLatencyStates = { active: 0, absent: 1, connected: 2, leaving: 3 } as const;

/** One per rank of CPU ranks: the word that it sleeps on, and whether it does; see RankBells. */
export const lowLatencyBell = defineLayout('LowLatencyBell', { bell: 'i32', sleepers: 'i32' }, CACHE_LINE);

/**
 * Scales of fp8 rows, one per FP8_GROUP columns: f32; f32 rounded up to powers of two; the exponents of those, four in a
 * 32-bit word, the first one lowest.
 */
export const lowLatencyScales = { f32: 0, rounded: 1, ue8m0: 2 } as const;
