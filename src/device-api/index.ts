// weftline/device-api: the host of kernels that write to their peers by themselves.
export type { CpuKernelApi, CpuPut, CpuRoute, CpuSignal, CpuWord } from './host/cpu-kernel-api.ts';
export { DeviceHost } from './host/device-host.ts';
export type { DeviceHostOptions, WriteRequestOptions } from './host/device-host-options.ts';
export type { RegisteredVram, VramRange } from './host/kernel-memory.ts';
export type { WriteRequest } from './host/kernel-memory.ts';
