// The package's main entry: errors, settings, devices. Expert parallelism is in weftline/ep, ranks are in weftline/world.
export { type ErrorCode, errorCodes, type ErrorDetails, WeftlineError } from './core/errors.ts';
export { type DType, dtypes, fromBf16, fromF16, toBf16, toF16, type TypedArrayOf } from './core/dtype.ts';
export { readSettings, type Settings } from './settings/settings.ts';
export type { Device, DeviceEvent } from './device/device.ts';
export { Tensor } from './device/tensor.ts';
export { CpuDevice, type CpuDeviceOptions } from './device/cpu/cpu-device.ts';
export { cudaDeviceCount } from './device/cuda/cuda-context.ts';
export { CudaDevice, type CudaDeviceOptions } from './device/cuda/cuda-device.ts';
export type { CudaGraph } from './device/cuda/cuda-graph.ts';
export type { UserKernel, UserSource } from './device/cuda/kernel.ts';
export { openDevice } from './device/device-choice.ts';
