// The CUDA driver's functions, one line each. Handles and device addresses are numbers: all are below 2^53.
import { bindLazily, loadKoffi, type StatusCalls } from './library.ts';

export const IPC_HANDLE_BYTES = 64;

// The symbols with a version suffix are those that cuda.h maps the plain names to; the plain ones have an older ABI.
const table = {
  cuInit: 'int cuInit(uint flags)',
  cuDriverGetVersion: 'int cuDriverGetVersion(_Out_ int* version)',
  cuGetErrorName: 'int cuGetErrorName(int status, _Out_ const char** name)',
  cuGetErrorString: 'int cuGetErrorString(int status, _Out_ const char** text)',

  cuDeviceGetCount: 'int cuDeviceGetCount(_Out_ int* count)',
  cuDeviceGet: 'int cuDeviceGet(_Out_ int* device, int ordinal)',
  cuDeviceGetName: 'int cuDeviceGetName(void* name, int bytes, int device)',
  cuDeviceGetUuid: 'int cuDeviceGetUuid_v2(void* uuid, int device)',
  cuDeviceGetPCIBusId: 'int cuDeviceGetPCIBusId(void* id, int bytes, int device)',
  cuDeviceTotalMem: 'int cuDeviceTotalMem_v2(_Out_ size_t* bytes, int device)',
  cuDeviceGetAttribute: 'int cuDeviceGetAttribute(_Out_ int* value, int attribute, int device)',
  cuDeviceCanAccessPeer: 'int cuDeviceCanAccessPeer(_Out_ int* can, int device, int peer)',
  cuDeviceGetP2PAttribute: 'int cuDeviceGetP2PAttribute(_Out_ int* value, int attribute, int device, int peer)',
  cuPointerGetAttribute: 'int cuPointerGetAttribute(_Out_ int* value, int attribute, uint64_t address)',

  cuDevicePrimaryCtxRetain: 'int cuDevicePrimaryCtxRetain(_Out_ uint64_t* context, int device)',
  cuDevicePrimaryCtxRelease: 'int cuDevicePrimaryCtxRelease_v2(int device)',
  cuCtxSetCurrent: 'int cuCtxSetCurrent(intptr_t context)',
  cuCtxEnablePeerAccess: 'int cuCtxEnablePeerAccess(intptr_t peer, uint flags)',
  cuCtxGetStreamPriorityRange: 'int cuCtxGetStreamPriorityRange(_Out_ int* least, _Out_ int* greatest)',

  cuMemGetInfo: 'int cuMemGetInfo_v2(_Out_ size_t* free, _Out_ size_t* total)',
  cuMemAlloc: 'int cuMemAlloc_v2(_Out_ uint64_t* address, size_t bytes)',
  cuMemGetAddressRange: 'int cuMemGetAddressRange_v2(_Out_ uint64_t* base, _Out_ size_t* bytes, uint64_t address)',
  /** Driver 11.7 or newer. For a dmabuf the handle is a file descriptor, which the caller closes. */
  cuMemGetHandleForAddressRange:
    'int cuMemGetHandleForAddressRange(_Out_ int* handle, uint64_t address, size_t bytes, int kind, uint64_t flags)',
  cuMemFree: 'int cuMemFree_v2(uint64_t address)',
  cuMemHostAlloc: 'int cuMemHostAlloc(_Out_ uint64_t* address, size_t bytes, uint flags)',
  cuMemFreeHost: 'int cuMemFreeHost(uint64_t address)',
  cuMemHostRegister: 'int cuMemHostRegister_v2(uint64_t host, size_t bytes, uint flags)',
  cuMemHostUnregister: 'int cuMemHostUnregister(uint64_t host)',
  cuMemHostGetDevicePointer: 'int cuMemHostGetDevicePointer_v2(_Out_ uint64_t* address, uint64_t host, uint flags)',
  cuMemcpyHtoDAsync: 'int cuMemcpyHtoDAsync_v2(uint64_t device, uint64_t host, size_t bytes, uint64_t stream)',
  cuMemcpyDtoHAsync: 'int cuMemcpyDtoHAsync_v2(uint64_t host, uint64_t device, size_t bytes, uint64_t stream)',
  cuMemcpyDtoDAsync: 'int cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t bytes, uint64_t stream)',
  /** Either side may be host memory; the driver finds out which is which. */
  cuMemcpyAsync: 'int cuMemcpyAsync(uint64_t to, uint64_t from, size_t bytes, uint64_t stream)',
  cuMemsetD8Async: 'int cuMemsetD8Async(uint64_t address, uint8_t value, size_t bytes, uint64_t stream)',
  cuIpcGetMemHandle: 'int cuIpcGetMemHandle(void* handle, uint64_t address)',
  cuIpcOpenMemHandle: 'int cuIpcOpenMemHandle_v2(_Out_ uint64_t* address, CUipcMemHandle handle, uint flags)',
  cuIpcCloseMemHandle: 'int cuIpcCloseMemHandle(uint64_t address)',

  cuStreamCreateWithPriority: 'int cuStreamCreateWithPriority(_Out_ uint64_t* stream, uint flags, int priority)',
  cuStreamDestroy: 'int cuStreamDestroy_v2(uint64_t stream)',
  cuStreamQuery: 'int cuStreamQuery(uint64_t stream)',
  cuStreamBatchMemOp: 'int cuStreamBatchMemOp_v2(uint64_t stream, uint count, uint64_t parameters, uint flags)',
  cuStreamWaitEvent: 'int cuStreamWaitEvent(uint64_t stream, uint64_t event, uint flags)',
  cuStreamBeginCapture: 'int cuStreamBeginCapture_v2(uint64_t stream, int mode)',
  cuStreamEndCapture: 'int cuStreamEndCapture(uint64_t stream, _Out_ uint64_t* graph)',
  cuGraphInstantiateWithFlags:
    'int cuGraphInstantiateWithFlags(_Out_ uint64_t* executable, uint64_t graph, uint64_t flags)',
  cuGraphLaunch: 'int cuGraphLaunch(uint64_t executable, uint64_t stream)',
  cuGraphExecDestroy: 'int cuGraphExecDestroy(uint64_t executable)',
  cuGraphDestroy: 'int cuGraphDestroy(uint64_t graph)',

  cuEventCreate: 'int cuEventCreate(_Out_ uint64_t* event, uint flags)',
  cuEventDestroy: 'int cuEventDestroy_v2(uint64_t event)',
  cuEventRecord: 'int cuEventRecord(uint64_t event, uint64_t stream)',
  cuEventQuery: 'int cuEventQuery(uint64_t event)',
  // The _v2 of this function exists from driver 12.8 on only; this one means the same.
  cuEventElapsedTime: 'int cuEventElapsedTime(_Out_ float* milliseconds, uint64_t start, uint64_t end)',

  cuModuleLoadData: 'int cuModuleLoadData(_Out_ uint64_t* module, void* image)',
  cuModuleUnload: 'int cuModuleUnload(uint64_t module)',
  cuModuleGetFunction: 'int cuModuleGetFunction(_Out_ uint64_t* kernel, uint64_t module, const char* name)',
  cuModuleGetGlobal:
    'int cuModuleGetGlobal_v2(_Out_ uint64_t* address, _Out_ size_t* bytes, uint64_t module, const char* name)',
  cuFuncGetAttribute: 'int cuFuncGetAttribute(_Out_ int* value, int attribute, uint64_t kernel)',
  cuFuncSetAttribute: 'int cuFuncSetAttribute(uint64_t kernel, int attribute, int value)',
  cuOccupancyMaxActiveBlocksPerMultiprocessor:
    'int cuOccupancyMaxActiveBlocksPerMultiprocessor(_Out_ int* blocks, uint64_t kernel, int threads, size_t sharedBytes)',
  /** Everything by address, so that a launch converts nothing. */
  cuLaunchKernelEx:
    'int cuLaunchKernelEx(uint64_t configuration, uint64_t kernel, uint64_t parameters, uint64_t extra)',
} as const;

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
