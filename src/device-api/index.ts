// weftline/device-api: the host of kernels that write to their peers by themselves.
export type { CpuKernelApi, CpuPut, CpuRoute, CpuSignal, CpuWord } from './host/cpu-kernel-api.ts';
export {
  DeviceHost,
  type DeviceHostOptions,
  type RegisteredVram,
  type VramRange,
  type WriteRequest,
  type WriteRequestOptions,
} from './host/device-host.ts';
