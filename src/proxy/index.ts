// weftline/device-api: the host of kernels that write to their peers by themselves.
export type { CpuKernelApi, CpuPut, CpuRoute, CpuSignal } from './cpu-kernel-api.ts';
export {
  DeviceHost,
  type DeviceHostOptions,
  type RegisteredVram,
  type VramRange,
  type WriteRequest,
} from './device-host.ts';
