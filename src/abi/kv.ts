// What the kernel of KV caches takes: ranges of blocks, of which it computes checksums.
import { defineLayout } from './layout.ts';

/** Threads of a thread block, which sums one range up at a time. */
export const KV_SUM_THREADS = 256;

/** Where a part lies: the range of block b begins at `address + b * stride`. */
export const kvSumPart = defineLayout('KvSumPart', { address: 'ptr', stride: 'u64', bytes: 'u64' });

export const kvSumArguments = defineLayout('KvSumArguments', {
  /** KvSumPart[parts] */
  partTable: 'ptr',
  /** u32[blocks]: the numbers of the blocks. */
  list: 'ptr',
  /** u32[1024 + KV_SUM_THREADS]: what threadTables() makes. */
  tables: 'ptr',
  /** u32[blocks][parts] */
  sums: 'ptr',
  blocks: 'u32',
  parts: 'u32',
});
