// The kernel of kernels/cuda/channel-put.cu.
import { channelPutArguments } from '../../../abi/device-api.ts';
import { defineKernelFile } from '../kernel-file.ts';

export const channelKernels = defineKernelFile({
  file: 'channel-put.cu',
  constants: {},
  kernels: { channelPut: channelPutArguments },
  hot: true,
});
