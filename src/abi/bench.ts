// The arguments of kernels that measure and try out a machine: those in kernels/cuda/bench-copy.cu and self-test.cu.
import { EP_MAX_RANKS } from './ep.ts';
import { defineLayout } from './layout.ts';

export const selfTestFillArguments = defineLayout('SelfTestFillArguments', {
  words: 'ptr',
  count: 'u32',
  value: 'u32',
});

export const selfTestWaitArguments = defineLayout('SelfTestWaitArguments', {
  trap: 'ptr',
  flag: 'ptr',
  answer: 'ptr',
  timeoutNs: 'u64',
  epoch: 'u32',
  rank: 'u32',
  peer: 'u32',
  channel: 'u32',
});

export const selfTestCopyRowsArguments = defineLayout('SelfTestCopyRowsArguments', {
  from: 'ptr',
  to: 'ptr',
  rows: 'u32',
  rowBytes: 'u32',
});

const addresses = { of: 'ptr', count: EP_MAX_RANKS } as const;

/** One barrier between the ranks, then a pause. */
export const benchMeetArguments = defineLayout('BenchMeetArguments', {
  /** Windows with the arrival cells, as this process maps them. */
  peers: addresses,
  trap: 'ptr',
  timeoutNs: 'u64',
  /** Pause behind the barrier. */
  holdNs: 'u64',
  ranks: 'u32',
  rank: 'u32',
  epoch: 'u32',
  call: 'u32',
});

export const benchCopyArguments = defineLayout('BenchCopyArguments', {
  peers: addresses,
  /** Address of row 0 at each rank, as this process maps it. */
  rows: addresses,
  /** The same of the side rows (the scales of fp8 rows); read only when sideBytes is not 0. */
  sides: addresses,
  /** This rank's own rows: what is sent, or where what is pulled goes. */
  local: 'ptr',
  localSides: 'ptr',
  /** i32 [tokens, ranks]: row of each token at each rank, -1 for none. */
  table: 'ptr',
  counter: 'ptr',
  trap: 'ptr',
  timeoutNs: 'u64',
  ranks: 'u32',
  rank: 'u32',
  tokens: 'u32',
  rowBytes: 'u32',
  sideBytes: 'u32',
  /** A row moves in parts of so many bytes, each staged in shared memory. */
  partBytes: 'u32',
  /** Parts that one warp stages at once. */
  slots: 'u32',
  openingEpoch: 'u32',
  closingEpoch: 'u32',
  call: 'u32',
});
