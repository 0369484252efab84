// What the kernel of kernels/cuda/channel-put.cu takes, which carries out puts and signals between GPUs of a host.
import { defineLayout } from './layout.ts';

export const channelPutArguments = defineLayout('ChannelPutArguments', {
  to: 'ptr',
  from: 'ptr',
  bytes: 'u64',
  /** u64, 0 for none: what `add` goes to behind the bytes. */
  counter: 'ptr',
  add: 'u64',
  /** u32 in host memory: becomes `operations` when all is visible. */
  done: 'ptr',
  /** Of the channel, up to this one. */
  operations: 'u32',
});
