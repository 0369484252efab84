// The arguments of the kernels in kernels/cuda/self-test.cu.
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
