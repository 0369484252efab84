// Kernels that call the device API by NIXL's names in every way that its guide to GPU kernels does.

/** Parameters and kernels as the guide declares them, but for `extern "C"`, by which the driver finds them. */
export const nixlKernels = `
#include "nixl_guide.cuh"
constexpr unsigned WARP_SIZE = 32;

extern "C" __global__ void threadWriteAndSignal(nixlGpuXferReqH data_req, nixlGpuXferReqH signal_req, size_t size) {
  if (blockIdx.x == 0 && threadIdx.x == 0) {
    nixlGpuPostSingleWriteXferReq<nixl_gpu_level_t::THREAD>(
      data_req, 0, 0, 0, size, 0, true
    );
    nixlGpuPostSignalXferReq<nixl_gpu_level_t::THREAD>(
      signal_req, 0, 1, 0, 0, true
    );
  }
}

extern "C" __global__ void warpWriteAndSignal(nixlGpuXferReqH data_req, nixlGpuXferReqH signal_req, size_t size) {
  if (blockIdx.x == 0 && threadIdx.x < 32) {
    unsigned lane = threadIdx.x;
    nixlGpuPostSingleWriteXferReq<nixl_gpu_level_t::WARP>(
      data_req, 0, 0, 0, size, 0, true
    );
    if (lane == 0) {
      nixlGpuPostSignalXferReq<nixl_gpu_level_t::WARP>(
        signal_req, 0, 1, 0, 0, true
      );
    }
  }
}

extern "C" __global__ void postWriteAndSignal(uintptr_t data_req_handles_ptr, int data_req_count,
                                              uintptr_t signal_req_handle, uint64_t *signal_ptr, size_t size,
                                              uint64_t signal_inc, int pipeline) {
  if (blockIdx.x == 0 && threadIdx.x < WARP_SIZE) {
    auto *data_req_handles = reinterpret_cast<const uintptr_t *>(data_req_handles_ptr);
    nixlGpuXferReqH data_req = reinterpret_cast<nixlGpuXferReqH>(data_req_handles[0]);
    nixlGpuXferReqH signal_req = reinterpret_cast<nixlGpuXferReqH>(signal_req_handle);
    unsigned lane = threadIdx.x;
    nixlGpuPostSingleWriteXferReq<nixl_gpu_level_t::WARP>(
      data_req, 0, 0, 0, size, 0, true
    );
    if (lane == 0) {
      nixlGpuPostSignalXferReq<nixl_gpu_level_t::WARP>(
        signal_req, 0, signal_inc, 0, 0, true
      );
    }
  }
}

extern "C" __global__ void waitForSignal(const void* signal_ptr, uint64_t expected_value) {
  if (threadIdx.x == 0 && blockIdx.x == 0) {
    while (nixlGpuReadSignal<nixl_gpu_level_t::THREAD>(signal_ptr)
           < expected_value) {
    }
  }
}
`;

export const nixlParameters = {
  threadWriteAndSignal: { data_req: 'ptr', signal_req: 'ptr', size: 'u64' },
  warpWriteAndSignal: { data_req: 'ptr', signal_req: 'ptr', size: 'u64' },
  postWriteAndSignal: {
    data_req_handles_ptr: 'ptr',
    data_req_count: 'i32',
    signal_req_handle: 'u64',
    signal_ptr: 'ptr',
    size: 'u64',
    signal_inc: 'u64',
    pipeline: 'i32',
  },
  waitForSignal: { signal_ptr: 'ptr', expected_value: 'u64' },
} as const;

/** Kernels in the order of NIXL's own header, and with its newer names. */
export const nixlHeaderKernels = `
#include "nixl_device.cuh"

extern "C" __global__ void headerWriteAndSignal(nixlGpuXferReqH data_req, nixlGpuXferReqH signal_req, size_t size,
                                                int* results) {
  if (blockIdx.x != 0 || threadIdx.x != 0) return;
  nixlGpuXferStatusH status;
  results[0] = nixlGpuPostSingleWriteXferReq<nixl_gpu_level_t::THREAD>(data_req, 0, 16, 32, size, 0, true, &status);
  results[1] = nixlGpuPostSignalXferReq<nixl_gpu_level_t::THREAD>(signal_req, 0, 5, 0);
  nixl_status_t seen = NIXL_IN_PROG;
  while (seen == NIXL_IN_PROG) seen = nixlGpuGetXferStatus(status);
  results[2] = seen;
}

extern "C" __global__ void viewPutAndAdd(nixlMemViewH data, nixlMemViewH counter, size_t size, int* results) {
  if (blockIdx.x != 0) return;
  constexpr auto level = nixl_gpu_level_t::WARP;
  nixlGpuXferStatusH status;
  const nixl_status_t put = nixlPut<level>({data, 0, 0}, {data, 0, 64}, size, 0, nixl_gpu_flags::defer, &status);
  const nixl_status_t added = nixlAtomicAdd<level>(7, {counter, 0, 0});
  nixl_status_t seen = NIXL_IN_PROG;
  while (seen == NIXL_IN_PROG) seen = nixlGpuGetXferStatus<level>(status);
  if (threadIdx.x != 0) return;
  results[0] = put;
  results[1] = added;
  results[2] = seen;
  results[3] = nixlGetPtr(data, 0) != nullptr;
  results[4] = nixlGetPtr(data, 99) != nullptr;
  results[5] = nixlPut({data, 1, 0}, {data, 0, 0}, size);
}
`;

export const nixlHeaderParameters = {
  headerWriteAndSignal: { data_req: 'ptr', signal_req: 'ptr', size: 'u64', results: 'ptr' },
  viewPutAndAdd: { data: 'ptr', counter: 'ptr', size: 'u64', results: 'ptr' },
} as const;

/** The further ways, each in a kernel of its own: `which` lanes call, before and after work that parts them. */
export const warpKernels = `
#include "nixl_guide.cuh"
using namespace weftline;

// Every lane of the warp, with work before each signal that takes the lanes different times.
extern "C" __global__ void signalByAll(Request counter, u32 turns, u32* waste) {
  if (threadIdx.x >= 32) return;
  for (u32 turn = 0; turn < turns; ++turn) {
    for (u32 step = 0; step < (laneIndex() * 7 + turn) % 13; ++step) atomicAdd(waste, 1);
    if (!signal<Level::Warp>(counter, 0, 1)) return;
  }
  flush<Level::Warp>(counter);
}

// By lane 0 between calls of all lanes, which go on together behind it.
extern "C" __global__ void signalByFirst(Request data, Request counter, u64 bytes, u32 turns) {
  if (threadIdx.x >= 32) return;
  for (u32 turn = 0; turn < turns; ++turn) {
    if (!put<Level::Warp>(data, 0, 0, bytes)) return;
    if (laneIndex() == 0) signal<Level::Warp>(counter, 0, 1);
    __syncwarp();
  }
  flush<Level::Warp>(counter);
}

extern "C" __global__ void signalByLanes(Request counter, u32 lanes) {
  if (threadIdx.x < 32 && (lanes >> laneIndex() & 1) != 0) signal<Level::Warp>(counter, 0, 1);
}

extern "C" __global__ void putByLanes(Request data, u32 lanes, u64 bytes) {
  if (threadIdx.x < 32 && (lanes >> laneIndex() & 1) != 0) put<Level::Warp>(data, 0, 0, bytes);
}

// By all lanes, each after work of its own; the halves of the warp call it from different places.
__device__ __noinline__ bool putOnce(Request data, u64 offset, u64 bytes) {
  return put<Level::Warp>(data, offset, offset, bytes);
}

extern "C" __global__ void putApart(Request data, Request counter, u64 bytes, u32 turns, u32* waste) {
  if (threadIdx.x >= 32) return;
  for (u32 turn = 0; turn < turns; ++turn) {
    bool isPut = false;
    if ((laneIndex() >> turn % 5 & 1) != 0) {
      for (u32 step = 0; step < (laneIndex() * 7 + turn) % 13; ++step) atomicAdd(waste, 1);
      isPut = putOnce(data, 0, bytes);
    } else {
      isPut = putOnce(data, 0, bytes);
      for (u32 step = 0; step < (laneIndex() * 5 + turn) % 11; ++step) atomicAdd(waste, 2);
    }
    if (!isPut) return;
    __syncwarp();
    if (!signal<Level::Warp>(counter, 0, 1)) return;
  }
  flush<Level::Warp>(counter);
}

// Whole blocks poll counters, and between them count the turns in which their threads left the loop: always the same for all.
extern "C" __global__ void pollByBlock(const u64* counters, u32 rounds, u32* parted) {
  for (u32 round = 0; round < rounds; ++round) {
    u32 turns = 0;
    while (nixlGpuReadSignal<nixl_gpu_level_t::BLOCK>(counters) < round + 1) ++turns;
    if (__syncthreads_or(turns != Group<Level::Block>::broadcast(turns)) && threadIdx.x == 0) *parted += 1;
  }
}

extern "C" __global__ void countUp(u64* counter, u32 rounds) {
  for (u32 round = 0; round < rounds; ++round) {
    addReleaseSystem(counter, 1);
    for (u32 naps = 0; naps < 20; ++naps) __nanosleep(500);
  }
}

extern "C" __global__ void postWithFlags(RequestHandle data, u32 count, u32 flags, u32 ends) {
  if (threadIdx.x != 0) return;
  for (u32 turn = 0; turn < count; ++turn) {
    if (!postWrite<Level::Thread>(data, 0, 0, 0, 8, flags, false)) return;
  }
  if (ends == 1) postWrite<Level::Thread>(data, 8, 8, 0, 8, 0, false);
  if (ends == 2) flush<Level::Thread>(requestOf(data));
  if (ends == 3) postStatus(data);
}

// As many deferred posts as asked, then two commands that are pushed together.
extern "C" __global__ void deferThenTell(Request data, Request counter, u32 count) {
  if (threadIdx.x != 0) return;
  for (u32 turn = 0; turn < count; ++turn) {
    if (!postWrite<Level::Thread>(reinterpret_cast<RequestHandle>(data), 0, 0, 0, 8, postDeferred)) return;
  }
  putWithSignal<Level::Thread>(data, 8, 8, 8, counter, 0, 1);
}

// One warp defers posts while the other waits for the delivery of its own.
extern "C" __global__ void deferDuringFlush(RequestHandle data, u32 turns) {
  if (threadIdx.x % 32 != 0) return;
  const bool defers = threadIdx.x != 0;
  for (u32 turn = 0; turn < turns; ++turn) {
    const u64 offset = defers ? 8 : 0;
    if (!postWrite<Level::Thread>(data, offset, offset, 0, 8, defers ? postDeferred : 0, !defers)) return;
  }
  if (defers) flush<Level::Thread>(requestOf(data));
}

// What fails ends its threads: no signal tells of bytes that did not go.
extern "C" __global__ void postOutside(nixlGpuXferReqH data, nixlGpuXferReqH counter, u64 offset) {
  nixlGpuPostSingleWriteXferReq<nixl_gpu_level_t::BLOCK>(data, offset, 0, 0, 64, 0, true);
  nixlGpuPostSignalXferReq<nixl_gpu_level_t::BLOCK>(counter, 0, 1, 0, 0, true);
}
`;

export const warpParameters = {
  signalByAll: { counter: 'ptr', turns: 'u32', waste: 'ptr' },
  signalByFirst: { data: 'ptr', counter: 'ptr', bytes: 'u64', turns: 'u32' },
  signalByLanes: { counter: 'ptr', lanes: 'u32' },
  putByLanes: { data: 'ptr', lanes: 'u32', bytes: 'u64' },
  putApart: { data: 'ptr', counter: 'ptr', bytes: 'u64', turns: 'u32', waste: 'ptr' },
  pollByBlock: { counters: 'ptr', rounds: 'u32', parted: 'ptr' },
  countUp: { counter: 'ptr', rounds: 'u32' },
  postWithFlags: { data: 'u64', count: 'u32', flags: 'u32', ends: 'u32' },
  deferThenTell: { data: 'ptr', counter: 'ptr', count: 'u32' },
  deferDuringFlush: { data: 'u64', turns: 'u32' },
  postOutside: { data: 'ptr', counter: 'ptr', offset: 'u64' },
} as const;
