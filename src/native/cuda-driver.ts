// The CUDA driver's functions, one line each. Handles and device addresses are numbers: all are below 2^53.
import { bindLazily, loadKoffi, type Out, prototype, type StatusCalls } from './library.ts';

/** A text that a call fills in. */
type OutText = [string | null];

/** `CUipcMemHandle` by value. */
interface IpcHandle {
  readonly reserved: Uint8Array;
}

export const IPC_HANDLE_BYTES = 64;

// The symbols with a version suffix are those that cuda.h maps the plain names to; the plain ones have an older ABI.
const table = {
  cuInit: prototype<[flags: number]>('int cuInit(uint)'),
  cuDriverGetVersion: prototype<[version: Out]>('int cuDriverGetVersion(_Out_ int*)'),
  cuGetErrorName: prototype<[status: number, name: OutText]>('int cuGetErrorName(int, _Out_ const char**)'),
  cuGetErrorString: prototype<[status: number, text: OutText]>('int cuGetErrorString(int, _Out_ const char**)'),

  cuDeviceGetCount: prototype<[count: Out]>('int cuDeviceGetCount(_Out_ int*)'),
  cuDeviceGet: prototype<[device: Out, ordinal: number]>('int cuDeviceGet(_Out_ int*, int)'),
  cuDeviceGetName: prototype<[name: Uint8Array, bytes: number, device: number]>('int cuDeviceGetName(void*, int, int)'),
  cuDeviceGetUuid: prototype<[uuid: Uint8Array, device: number]>('int cuDeviceGetUuid_v2(void*, int)'),
  cuDeviceGetPCIBusId: prototype<[id: Uint8Array, bytes: number, device: number]>(
    'int cuDeviceGetPCIBusId(void*, int, int)',
  ),
  cuDeviceTotalMem: prototype<[bytes: Out, device: number]>('int cuDeviceTotalMem_v2(_Out_ size_t*, int)'),
  cuDeviceGetAttribute: prototype<[value: Out, attribute: number, device: number]>(
    'int cuDeviceGetAttribute(_Out_ int*, int, int)',
  ),
  cuDeviceCanAccessPeer: prototype<[can: Out, device: number, peer: number]>(
    'int cuDeviceCanAccessPeer(_Out_ int*, int, int)',
  ),
  cuDeviceGetP2PAttribute: prototype<[value: Out, attribute: number, device: number, peer: number]>(
    'int cuDeviceGetP2PAttribute(_Out_ int*, int, int, int)',
  ),
  cuPointerGetAttribute: prototype<[value: Out, attribute: number, address: number]>(
    'int cuPointerGetAttribute(_Out_ int*, int, uint64_t)',
  ),

  cuDevicePrimaryCtxRetain: prototype<[context: Out, device: number]>(
    'int cuDevicePrimaryCtxRetain(_Out_ uint64_t*, int)',
  ),
  cuDevicePrimaryCtxRelease: prototype<[device: number]>('int cuDevicePrimaryCtxRelease_v2(int)'),
  cuCtxSetCurrent: prototype<[context: number]>('int cuCtxSetCurrent(intptr_t)'),
  cuCtxEnablePeerAccess: prototype<[peer: number, flags: number]>('int cuCtxEnablePeerAccess(intptr_t, uint)'),
  cuCtxGetStreamPriorityRange: prototype<[least: Out, greatest: Out]>(
    'int cuCtxGetStreamPriorityRange(_Out_ int*, _Out_ int*)',
  ),

  cuMemGetInfo: prototype<[free: Out, total: Out]>('int cuMemGetInfo_v2(_Out_ size_t*, _Out_ size_t*)'),
  cuMemAlloc: prototype<[address: Out, bytes: number]>('int cuMemAlloc_v2(_Out_ uint64_t*, size_t)'),
  cuMemGetAddressRange: prototype<[base: Out, bytes: Out, address: number]>(
    'int cuMemGetAddressRange_v2(_Out_ uint64_t*, _Out_ size_t*, uint64_t)',
  ),
  cuMemFree: prototype<[address: number]>('int cuMemFree_v2(uint64_t)'),
  cuMemHostAlloc: prototype<[address: Out, bytes: number, flags: number]>(
    'int cuMemHostAlloc(_Out_ uint64_t*, size_t, uint)',
  ),
  cuMemFreeHost: prototype<[address: number]>('int cuMemFreeHost(uint64_t)'),
  cuMemHostRegister: prototype<[host: number, bytes: number, flags: number]>(
    'int cuMemHostRegister_v2(uint64_t, size_t, uint)',
  ),
  cuMemHostUnregister: prototype<[host: number]>('int cuMemHostUnregister(uint64_t)'),
  cuMemHostGetDevicePointer: prototype<[address: Out, host: number, flags: number]>(
    'int cuMemHostGetDevicePointer_v2(_Out_ uint64_t*, uint64_t, uint)',
  ),
  cuMemcpyHtoDAsync: prototype<[device: number, host: number, bytes: number, stream: number]>(
    'int cuMemcpyHtoDAsync_v2(uint64_t, uint64_t, size_t, uint64_t)',
  ),
  cuMemcpyDtoHAsync: prototype<[host: number, device: number, bytes: number, stream: number]>(
    'int cuMemcpyDtoHAsync_v2(uint64_t, uint64_t, size_t, uint64_t)',
  ),
  cuMemcpyDtoDAsync: prototype<[to: number, from: number, bytes: number, stream: number]>(
    'int cuMemcpyDtoDAsync_v2(uint64_t, uint64_t, size_t, uint64_t)',
  ),
  /** Either side may be host memory; the driver finds out which is which. */
  cuMemcpyAsync: prototype<[to: number, from: number, bytes: number, stream: number]>(
    'int cuMemcpyAsync(uint64_t, uint64_t, size_t, uint64_t)',
  ),
  cuMemsetD8Async: prototype<[address: number, value: number, bytes: number, stream: number]>(
    'int cuMemsetD8Async(uint64_t, uint8_t, size_t, uint64_t)',
  ),
  cuIpcGetMemHandle: prototype<[handle: Uint8Array, address: number]>('int cuIpcGetMemHandle(void*, uint64_t)'),
  cuIpcOpenMemHandle: prototype<[address: Out, handle: IpcHandle, flags: number]>(
    'int cuIpcOpenMemHandle_v2(_Out_ uint64_t*, CUipcMemHandle, uint)',
  ),
  cuIpcCloseMemHandle: prototype<[address: number]>('int cuIpcCloseMemHandle(uint64_t)'),

  cuStreamCreateWithPriority: prototype<[stream: Out, flags: number, priority: number]>(
    'int cuStreamCreateWithPriority(_Out_ uint64_t*, uint, int)',
  ),
  cuStreamDestroy: prototype<[stream: number]>('int cuStreamDestroy_v2(uint64_t)'),
  cuStreamQuery: prototype<[stream: number]>('int cuStreamQuery(uint64_t)'),
  cuStreamBatchMemOp: prototype<[stream: number, count: number, parameters: number, flags: number]>(
    'int cuStreamBatchMemOp_v2(uint64_t, uint, uint64_t, uint)',
  ),
  cuStreamWaitEvent: prototype<[stream: number, event: number, flags: number]>(
    'int cuStreamWaitEvent(uint64_t, uint64_t, uint)',
  ),
  cuStreamBeginCapture: prototype<[stream: number, mode: number]>('int cuStreamBeginCapture_v2(uint64_t, int)'),
  cuStreamEndCapture: prototype<[stream: number, graph: Out]>('int cuStreamEndCapture(uint64_t, _Out_ uint64_t*)'),
  cuGraphInstantiateWithFlags: prototype<[executable: Out, graph: number, flags: number]>(
    'int cuGraphInstantiateWithFlags(_Out_ uint64_t*, uint64_t, uint64_t)',
  ),
  cuGraphLaunch: prototype<[executable: number, stream: number]>('int cuGraphLaunch(uint64_t, uint64_t)'),
  cuGraphExecDestroy: prototype<[executable: number]>('int cuGraphExecDestroy(uint64_t)'),
  cuGraphDestroy: prototype<[graph: number]>('int cuGraphDestroy(uint64_t)'),

  cuEventCreate: prototype<[event: Out, flags: number]>('int cuEventCreate(_Out_ uint64_t*, uint)'),
  cuEventDestroy: prototype<[event: number]>('int cuEventDestroy_v2(uint64_t)'),
  cuEventRecord: prototype<[event: number, stream: number]>('int cuEventRecord(uint64_t, uint64_t)'),
  cuEventQuery: prototype<[event: number]>('int cuEventQuery(uint64_t)'),
  // Its _v2 exists from driver 12.8 on only; this one means the same.
  cuEventElapsedTime: prototype<[milliseconds: Out, start: number, end: number]>(
    'int cuEventElapsedTime(_Out_ float*, uint64_t, uint64_t)',
  ),

  cuModuleLoadData: prototype<[module: Out, image: Uint8Array]>('int cuModuleLoadData(_Out_ uint64_t*, void*)'),
  cuModuleUnload: prototype<[module: number]>('int cuModuleUnload(uint64_t)'),
  cuModuleGetFunction: prototype<[kernel: Out, module: number, name: string]>(
    'int cuModuleGetFunction(_Out_ uint64_t*, uint64_t, const char*)',
  ),
  cuModuleGetGlobal: prototype<[address: Out, bytes: Out, module: number, name: string]>(
    'int cuModuleGetGlobal_v2(_Out_ uint64_t*, _Out_ size_t*, uint64_t, const char*)',
  ),
  cuFuncGetAttribute: prototype<[value: Out, attribute: number, kernel: number]>(
    'int cuFuncGetAttribute(_Out_ int*, int, uint64_t)',
  ),
  cuFuncSetAttribute: prototype<[kernel: number, attribute: number, value: number]>(
    'int cuFuncSetAttribute(uint64_t, int, int)',
  ),
  cuOccupancyMaxActiveBlocksPerMultiprocessor: prototype<
    [blocks: Out, kernel: number, threads: number, sharedBytes: number]
  >('int cuOccupancyMaxActiveBlocksPerMultiprocessor(_Out_ int*, uint64_t, int, size_t)'),
  /** Everything by address, so that a launch converts nothing. */
  cuLaunchKernelEx: prototype<[configuration: number, kernel: number, parameters: number, extra: number]>(
    'int cuLaunchKernelEx(uint64_t, uint64_t, uint64_t, uint64_t)',
  ),
};

export type CudaDriver = StatusCalls<typeof table>;
export type CudaCall = keyof CudaDriver;

/** The driver of this machine; nothing is loaded before the first call. */
export const cudaDriver: CudaDriver = bindLazily(() => {
  const koffi = loadKoffi();
  if (!structureDefined) {
    koffi.struct('CUipcMemHandle', { reserved: koffi.array('uint8_t', IPC_HANDLE_BYTES) });
    structureDefined = true;
  }
  return 'libcuda.so.1';
}, table);

let structureDefined = false;
