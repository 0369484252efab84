// Trace points of kernels: where time goes, by name. They expand to nothing unless the kernels are compiled with WEFTLINE_TRACE.
//
// Thread 0 of a block tells of its phases, and each thread that waits of its wait; the times are those of the GPU's clock. A
// record goes to host memory, where it stays if the process is killed; nothing waits for it.
#pragma once

#ifdef WEFTLINE_TRACE
#include "weftline/abi.cuh"
#include "weftline/types.cuh"

// Filled in by the host when it loads the kernels.
extern "C" {
__constant__ weftline::KernelTraceTarget weftlineTrace;
}

namespace weftline {

// The same as pointHash() of the host.
__device__ constexpr u32 tracePointOf(const char* name) {
  u32 hash = 0x811c9dc5u;
  for (; *name != 0; ++name) hash = (hash ^ static_cast<u8>(*name)) * 0x01000193u;
  return hash;
}

__device__ __forceinline__ u32 takeTraceRecords(u32 count) {
  return atomicAdd(static_cast<u32*>(weftlineTrace.taken), count);
}

__device__ __forceinline__ void writeTrace(u32 record, u32 point, u32 isEnd, u32 peer) {
  u64 time;
  u64 launch;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));
  asm volatile("mov.u64 %0, %%gridid;" : "=l"(launch));
  const u32 block = blockIdx.x | (weftlineTrace.label * 2 + isEnd) << 16;
  const KernelRecord* at = static_cast<KernelRecord*>(weftlineTrace.records) + (record & (traceRecords - 1));
  const u32 sequence = record + 1;
  asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(at), "r"(static_cast<u32>(time)),
               "r"(static_cast<u32>(time >> 32)), "r"(point), "r"(sequence));
  asm volatile("st.global.v4.u32 [%0 + 16], {%1, %2, %3, %4};" ::"l"(at), "r"(static_cast<u32>(launch)), "r"(block),
               "r"(peer), "r"(sequence));
}

// The records of thread 0 of this block that it has taken and not written.
struct TraceCursor {
  u32 next;
  u32 end;
};

__device__ __forceinline__ TraceCursor& traceCursor() {
  __shared__ TraceCursor cursor;
  return cursor;
}

__device__ __forceinline__ void tracePhase(u32 point, u32 isEnd) {
  if (threadIdx.x != 0 || weftlineTrace.records == nullptr) return;
  TraceCursor& cursor = traceCursor();
  u32 record = cursor.next;
  if (record == cursor.end) {
    record = takeTraceRecords(traceAtOnce);
    cursor.end = record + traceAtOnce;
  }
  cursor.next = record + 1;
  writeTrace(record, point, isEnd, traceNoPeer);
}

// A phase from the begin of a block to its end.
struct TracedKernel {
  __device__ __forceinline__ TracedKernel() {
    if (threadIdx.x == 0) traceCursor() = {0, 0};
    tracePhase(tracePointOf("kernel"), 0);
  }
  __device__ __forceinline__ ~TracedKernel() { tracePhase(tracePointOf("kernel"), 1); }
};

// A wait from the first look at what has not come to the end of the wait, by any thread.
struct TracedWait {
  u32 record = 0;
  u32 whom = traceNoPeer;

  // A wait that begins later, if it begins at all.
  TracedWait() = default;
  __device__ __forceinline__ TracedWait(u32 peer, u32 rank) { begin(peer, rank); }

  __device__ __forceinline__ void begin(u32 peer, u32 rank) {
    if (weftlineTrace.records == nullptr) return;
    whom = peer == rank ? peer | traceOwnBlocks : peer;
    record = takeTraceRecords(2);
    writeTrace(record, tracePointOf("kernel.wait"), 0, whom);
  }
  __device__ __forceinline__ ~TracedWait() {
    if (whom != traceNoPeer) writeTrace(record + 1, tracePointOf("kernel.wait"), 1, whom);
  }
};

template <u32 point>
struct TracePoint {
  static constexpr u32 number = point;
};

}  // namespace weftline

#define WEFTLINE_TRACE_BEGIN(point) \
  weftline::tracePhase(weftline::TracePoint<weftline::tracePointOf(point)>::number, 0)
#define WEFTLINE_TRACE_END(point) weftline::tracePhase(weftline::TracePoint<weftline::tracePointOf(point)>::number, 1)
#define WEFTLINE_TRACE_KERNEL() const weftline::TracedKernel weftlineTracedKernel
#define WEFTLINE_TRACE_WAIT(peer, rank) const weftline::TracedWait weftlineTracedWait(peer, rank)
#define WEFTLINE_TRACE_LATER_WAIT() weftline::TracedWait weftlineTracedWait
#define WEFTLINE_TRACE_WAIT_BEGINS(peer, rank) weftlineTracedWait.begin(peer, rank)
#endif

#ifndef WEFTLINE_TRACE_BEGIN
#define WEFTLINE_TRACE_BEGIN(point)
#define WEFTLINE_TRACE_END(point)
#endif
#ifndef WEFTLINE_TRACE_KERNEL
#define WEFTLINE_TRACE_KERNEL()
#define WEFTLINE_TRACE_WAIT(peer, rank)
#define WEFTLINE_TRACE_LATER_WAIT()
#define WEFTLINE_TRACE_WAIT_BEGINS(peer, rank)
#endif
