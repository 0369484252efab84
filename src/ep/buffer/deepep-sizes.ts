// The buffer sizes that DeepEP V1 and UCCL-EP ask for, as pure functions: to compare with ours, and for those who move.

import { checkOptions, isWhole, type OptionNames } from '../../core/check-options.ts';
import { invalidArgument } from '../../core/errors.ts';

/** Chunk sizes of DeepEP's ring buffers, in tokens, and the multiprocessors of its kernels. */
interface DeepEpConfigOptions {
  /** 20 by default; two make a channel. */
  readonly numSms?: number;
  /** 6 by default; less than nvlRecv. */
  readonly nvlSend?: number;
  /** 256 by default. */
  readonly nvlRecv?: number;
  /** 6 by default; at most half of rdmaRecv. */
  readonly rdmaSend?: number;
  /** 256 by default; rounded up to a multiple of rdmaSend. */
  readonly rdmaRecv?: number;
}

const optionNames: OptionNames<DeepEpConfigOptions> = {
  numSms: true,
  nvlSend: true,
  nvlRecv: true,
  rdmaSend: true,
  rdmaRecv: true,
};

/** DeepEP's `Config`: what its buffers of a given configuration take. */
export class DeepEpConfig {
  readonly numSms: number;
  readonly nvlSend: number;
  readonly nvlRecv: number;
  readonly rdmaSend: number;
  readonly rdmaRecv: number;

  /**
   * DeepEP's chunk sizes for this many ranks, `get_dispatch_config` and `get_combine_config`: the tuned ones where it has any,
   * else its defaults. 20 SMs unless told. Fails with WL_INVALID_ARGUMENT for rank counts that DeepEP cannot serve.
   */
  static forRanks(operation: 'dispatch' | 'combine', numRanks: number, numSms = 20): DeepEpConfig {
    requireRanks(numRanks);
    const chunks = (operation === 'dispatch' ? dispatchChunks : combineChunks)[numRanks];
    if (chunks === undefined) return new DeepEpConfig({ numSms });
    const [nvlSend, nvlRecv, rdmaSend, rdmaRecv] = chunks;
    return new DeepEpConfig({ numSms, nvlSend, nvlRecv, rdmaSend, rdmaRecv });
  }

  /** Fails with WL_INVALID_ARGUMENT for what DeepEP refuses, too. */
  constructor(options: DeepEpConfigOptions = {}) {
    checkOptions(options, optionNames, 'options of DeepEpConfig');
    const { numSms = 20, nvlSend = 6, nvlRecv = 256, rdmaSend = 6, rdmaRecv = 256 } = options;
    if (!isWhole(numSms, 0)) throw invalidArgument('numSms', numSms, 'a whole number of at least 0');
    requireChunks({ nvlSend, nvlRecv, rdmaSend, rdmaRecv });
    this.numSms = numSms;
    this.nvlSend = nvlSend;
    this.nvlRecv = nvlRecv;
    this.rdmaSend = rdmaSend;
    this.rdmaRecv = Math.ceil(rdmaRecv / rdmaSend) * rdmaSend;
    if (nvlSend >= nvlRecv) throw invalidArgument('nvlSend', nvlSend, `less than nvlRecv, ${nvlRecv}`);
    if (rdmaSend > this.rdmaRecv / 2) {
      throw invalidArgument('rdmaSend', rdmaSend, `at most half of rdmaRecv, ${this.rdmaRecv}`);
    }
  }

  /**
   * Bytes of the NVLink buffer per rank, `get_nvl_buffer_size_hint`. `hiddenBytes` is hidden * max(element size, 2);
   * more than 8 ranks must be whole nodes of 8.
   */
  getNvlBufferSizeHint(hiddenBytes: number, numRanks: number): number {
    requireSizes(hiddenBytes, numRanks);
    const nodes = Math.max(Math.floor(numRanks / RANKS_PER_NODE), 1);
    const peers = Math.min(numRanks, RANKS_PER_NODE);
    const slots = this.#channels * peers;
    return ceil128(slots * (2 * nodes + 3) * 4 + slots * this.nvlRecv * (hiddenBytes + METADATA_BYTES));
  }

  /** Bytes of the RDMA buffer per rank, `get_rdma_buffer_size_hint`; 0 on one node of up to 8 ranks. */
  getRdmaBufferSizeHint(hiddenBytes: number, numRanks: number): number {
    requireSizes(hiddenBytes, numRanks);
    if (numRanks <= RANKS_PER_NODE) return 0;
    const slots = this.#channels * (numRanks / RANKS_PER_NODE);
    const meta = slots * (RANKS_PER_NODE * 2 + 2) * 2 * 4;
    return ceil128(meta + 2 * slots * this.rdmaRecv * (hiddenBytes + METADATA_BYTES + 16));
  }

  get #channels(): number {
    return Math.floor(this.numSms / 2);
  }
}

type Chunks = readonly [nvlSend: number, nvlRecv: number, rdmaSend: number, rdmaRecv: number];

const dispatchChunks: Readonly<Record<number, Chunks>> = {
  2: [24, 256, 6, 128],
  4: [6, 256, 6, 128],
  8: [6, 256, 6, 128],
  16: [36, 288, 20, 128],
  24: [8, 288, 32, 128],
  32: [32, 288, 32, 128],
  64: [20, 288, 28, 128],
  128: [20, 560, 32, 128],
  144: [32, 720, 12, 128],
  160: [28, 720, 12, 128],
};

const combineChunks: Readonly<Record<number, Chunks>> = {
  2: [10, 256, 6, 128],
  4: [9, 256, 6, 128],
  8: [4, 256, 6, 128],
  16: [4, 288, 12, 128],
  24: [1, 288, 8, 128],
  32: [1, 288, 8, 128],
  64: [1, 288, 20, 128],
  128: [1, 560, 12, 128],
  144: [2, 720, 8, 128],
  160: [2, 720, 8, 128],
};

/**
 * True for up to 8 ranks, and for whole nodes of 8.
 * @param numRanks Ranks of the job.
 */
export function isDeepEpRankCount(numRanks: number): boolean {
  return isWhole(numRanks, 1) && (numRanks <= RANKS_PER_NODE || numRanks % RANKS_PER_NODE === 0);
}

const RANKS_PER_NODE = 8;
const SOURCE_META_BYTES = 8;
/** DeepEP sizes for this many choices and scales per token, whatever the model has. */
const ASSUMED_MAX = 128;
const METADATA_BYTES = SOURCE_META_BYTES + ASSUMED_MAX * 8 + ASSUMED_MAX * 4 + ASSUMED_MAX * 4;

function ceil128(bytes: number): number {
  return Math.ceil(bytes / 128) * 128;
}

function requireChunks(chunks: Readonly<Record<string, number>>): void {
  for (const [name, value] of Object.entries(chunks)) {
    if (!isWhole(value, 1)) throw invalidArgument(name, value, 'a whole number of at least 1');
  }
}

function requireRanks(numRanks: number): void {
  if (isDeepEpRankCount(numRanks)) return;
  throw invalidArgument('numRanks', numRanks, `1 to ${RANKS_PER_NODE}, or a multiple of ${RANKS_PER_NODE}`);
}

function requireSizes(hiddenBytes: number, numRanks: number): void {
  if (!isWhole(hiddenBytes, 1)) throw invalidArgument('hiddenBytes', hiddenBytes, 'a whole number of at least 1');
  requireRanks(numRanks);
}
