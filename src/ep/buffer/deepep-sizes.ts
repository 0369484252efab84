// The buffer sizes that DeepEP V1 and UCCL-EP ask for, as pure functions: to compare with ours, and for those who move.

/** Chunk sizes of DeepEP's ring buffers, in tokens. */
export interface DeepEpConfig {
  readonly numSms: number;
  readonly nvlSend: number;
  readonly nvlRecv: number;
  readonly rdmaSend: number;
  readonly rdmaRecv: number;
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

/** DeepEP's tuned chunk sizes, or undefined for rank counts it does not know. 20 SMs unless told. */
export function deepEpConfig(
  operation: 'dispatch' | 'combine',
  numRanks: number,
  numSms = 20,
): DeepEpConfig | undefined {
  const chunks = (operation === 'dispatch' ? dispatchChunks : combineChunks)[numRanks];
  if (chunks === undefined) return undefined;
  const [nvlSend, nvlRecv, rdmaSend, rdmaRecv] = chunks;
  return { numSms, nvlSend, nvlRecv, rdmaSend, rdmaRecv: Math.ceil(rdmaRecv / rdmaSend) * rdmaSend };
}

const RANKS_PER_NODE = 8;
const SOURCE_META_BYTES = 8;
/** DeepEP sizes for this many choices and scales per token, whatever the model has. */
const ASSUMED_MAX = 128;
const METADATA_BYTES = SOURCE_META_BYTES + ASSUMED_MAX * 8 + ASSUMED_MAX * 4 + ASSUMED_MAX * 4;

/** Bytes of the NVLink buffer per rank; hiddenBytes is hidden * max(element size, 2). */
export function deepEpNvlBytes(config: DeepEpConfig, hiddenBytes: number, numRanks: number): number {
  const nodes = Math.max(Math.floor(numRanks / RANKS_PER_NODE), 1);
  const peers = Math.min(numRanks, RANKS_PER_NODE);
  const slots = (config.numSms / 2) * peers;
  return ceil128(slots * (2 * nodes + 3) * 4 + slots * config.nvlRecv * (hiddenBytes + METADATA_BYTES));
}

/** Bytes of the RDMA buffer per rank; 0 on one node. */
export function deepEpRdmaBytes(config: DeepEpConfig, hiddenBytes: number, numRanks: number): number {
  if (numRanks <= RANKS_PER_NODE) return 0;
  const slots = (config.numSms / 2) * (numRanks / RANKS_PER_NODE);
  const meta = slots * (RANKS_PER_NODE * 2 + 2) * 2 * 4;
  return ceil128(meta + 2 * slots * config.rdmaRecv * (hiddenBytes + METADATA_BYTES + 16));
}

export interface DeepEpLowLatencySize {
  readonly dispatchMessageBytes: number;
  readonly combineMessageBytes: number;
  /** One of the two halves that receive. */
  readonly recvBytes: number;
  readonly totalBytes: number;
}

/** Memory of the low-latency mode per rank: every expert has a slot for every token of every rank. */
export function deepEpLowLatencySize(
  maxTokensPerRank: number,
  hidden: number,
  numExperts: number,
): DeepEpLowLatencySize {
  const dispatchMessageBytes = 16 + Math.max(2 * hidden, hidden + (4 * hidden) / 128);
  const combineMessageBytes = 2 * hidden;
  const slots = numExperts * maxTokensPerRank;
  const sendBytes = Math.max(maxTokensPerRank * dispatchMessageBytes, slots * combineMessageBytes);
  const recvBytes = slots * Math.max(dispatchMessageBytes, combineMessageBytes);
  const total = 2 * (sendBytes + recvBytes + ceil128(4 * numExperts));
  return { dispatchMessageBytes, combineMessageBytes, recvBytes, totalBytes: (Math.floor(total / 128) + 1) * 128 };
}

function ceil128(bytes: number): number {
  return Math.ceil(bytes / 128) * 128;
}
