// weftline/device-api: the host of kernels that write to their peers by themselves.
export type { CpuKernelApi, CpuPut, CpuRoute, CpuSignal, CpuWord } from './cpu-kernel-api.ts';
export {
  DeviceHost,
  type DeviceHostOptions,
  type RegisteredVram,
  type VramRange,
  type WriteRequest,
  type WriteRequestOptions,
} from './device-host.ts';
