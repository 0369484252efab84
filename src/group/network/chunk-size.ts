// How much of a call's rows one signal stands for.

/**
 * Chunks to which CPU ranks share out what a call sends to a peer, between these bounds: each one wakes threads on
 * both sides, and the first and the last overlap with nothing.
 */
export const NETWORK_CHUNKS = {
  count: 16,
  leastBytes: 1 << 20,
  mostBytes: 1 << 22,
} as const;

/**
 * The same of GPUs, which share what a call sends out to four chunks per channel between these bounds: few rows then use
 * every channel too, and of many the commands cost little.
 */
export const PINNED_CHUNK_BYTES: { readonly least: number; readonly most: number } = { least: 1 << 18, most: 1 << 21 };
