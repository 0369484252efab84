// Structures of the CUDA driver that are filled in as numbers.

/** CUstreamBatchMemOpParams, in words of 32 bits: operation, address, value, flags. */
export const streamWriteWord = { operation: 0, address: 2, value: 4 } as const;
export const STREAM_WRITE_WORDS = 12;
