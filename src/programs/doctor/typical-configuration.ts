// The configuration that the checks measure a machine against: an EpBuffer for what `weftline bench ep` runs by default.
import { defaultEpWorkload } from '../bench/ep/ep-workload.ts';
import { bufferSize } from '../../ep/index.ts';

const { ranks, tokens, hidden, experts, topk } = defaultEpWorkload;
const BYTES_PER_RANK_BESIDE_WINDOWS = 256 * 1_048_576;
const { addressSpaceBytes } = bufferSize(
  { maxTokensPerRank: tokens, hidden, numExperts: experts, maxTopk: topk },
  ranks,
);

export const typicalConfiguration = {
  ranks,
  /** Shared memory of all ranks together. */
  windowBytes: addressSpaceBytes,
  windowBytesPerToken: addressSpaceBytes / tokens,
  /** The same, and what each process holds for itself. */
  memoryBytes: addressSpaceBytes + ranks * BYTES_PER_RANK_BESIDE_WINDOWS,
  sentence: `${ranks} ranks of ${tokens} tokens of ${hidden}`,
} as const;
