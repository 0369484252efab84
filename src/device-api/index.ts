// weftline/device-api: the host of kernels that write to their peers by themselves.
export type { CpuKernelApi } from './host/cpu-kernel-api.ts';
export { DeviceHost, type DeviceHostOptions } from './host/device-host.ts';
export type { RegisteredVram, VramRange, WriteRequest } from './host/kernel-memory.ts';
