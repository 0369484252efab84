// The configuration that the checks measure a machine against: the one that `weftline bench ep` runs by default.
import { defaultEpWorkload } from '../bench/ep-workload.ts';

const { ranks, tokens, hidden } = defaultEpWorkload;
const BF16_BYTES = 2;
const BYTES_PER_RANK_BESIDE_WINDOWS = 256 * 1_048_576;
/** Every rank sends every token to every rank: what the windows must be able to hold. */
const windowBytesPerToken = ranks * ranks * hidden * BF16_BYTES;

export const typicalConfiguration = {
  ranks,
  tokens,
  hidden,
  windowBytesPerToken,
  /** Shared memory of all ranks together. */
  windowBytes: tokens * windowBytesPerToken,
  /** The same, and what each process holds for itself. */
  memoryBytes: tokens * windowBytesPerToken + ranks * BYTES_PER_RANK_BESIDE_WINDOWS,
  sentence: `${ranks} ranks of ${tokens} tokens of ${hidden}`,
} as const;
