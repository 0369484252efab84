// The kernels of kernels/cuda/two-process.cu and kernels/cuda/bench-device-api.cu, which use the device API.
import {
  benchDevicePingArguments,
  benchDevicePushArguments,
  benchDevicePutArguments,
  channelPutArguments,
  twoProcessWaitArguments,
  twoProcessWriteArguments,
} from '../../../abi/device-api.ts';
import { defineKernelFile } from '../kernel-file.ts';

// The kernel of kernels/cuda/channel-put.cu.

export const channelKernels = defineKernelFile({
  file: 'channel-put.cu',
  constants: {},
  kernels: { channelPut: channelPutArguments },
  hot: true,
});

export const twoProcessKernels = defineKernelFile({
  file: 'two-process.cu',
  constants: {},
  kernels: {
    postWriteAndSignalThread: twoProcessWriteArguments,
    postWriteAndSignalWarp: twoProcessWriteArguments,
    postWriteAndSignalBlock: twoProcessWriteArguments,
    waitForSignal: twoProcessWaitArguments,
  },
  hot: true,
});

export const benchDeviceApiKernels = defineKernelFile({
  file: 'bench-device-api.cu',
  constants: {},
  kernels: {
    benchDevicePut: benchDevicePutArguments,
    benchDevicePing: benchDevicePingArguments,
    benchDevicePush: benchDevicePushArguments,
  },
  hot: true,
});
