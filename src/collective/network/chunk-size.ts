// How much of a call's rows one signal stands for.

/** Enough to be carried well, and soon enough for the forwarder. */
export const NETWORK_CHUNK_BYTES: number = 1 << 20;

/**
 * The same of GPUs, which share what a call sends out to four chunks per channel between these bounds: few rows then use
 * every channel too, and of many the commands cost little.
 */
export const PINNED_CHUNK_BYTES: { readonly least: number; readonly most: number } = { least: 1 << 18, most: 1 << 21 };
