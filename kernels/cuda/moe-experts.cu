// What the experts of a rank do besides their two products: sorting choices by expert, bringing rows together, SwiGLU,
// and the weighted sum of a row's results.
//
// Slots number the choices by expert, then row, then column. Where the numerics are those of the CPU kernels: products
// and sums in f32, a row's experts in ascending order, one rounding to bf16 after SwiGLU and one at the end.
#include "weftline/abi.cuh"
#include "weftline/types.cuh"

using namespace weftline;

namespace {

constexpr u32 listThreads = 1024;
constexpr u32 listWarps = listThreads / lanesPerWarp;
constexpr u32 maxColumns = 32;

__device__ __forceinline__ i32 expertAt(const MoeListChoicesArguments& a, u32 choice) {
  if (choice >= a.choices) return -1;
  return a.indexBytes == 8 ? static_cast<i32>(static_cast<const i64*>(a.topk)[choice])
                           : static_cast<const i32*>(a.topk)[choice];
}

__device__ __forceinline__ f32 silu(f32 x) { return x / (1.0f + expf(-x)); }

__device__ __forceinline__ u32 gatePair(f32 gate0, f32 gate1, f32 up0, f32 up1) {
  return packBf16(silu(gate0) * up0, silu(gate1) * up1);
}

}  // namespace

// Brings a few words from the arguments to memory: in the order of the stream, with no host memory that must outlive it.
extern "C" __global__ void __launch_bounds__(256) moeStoreWords(const __grid_constant__ MoeStoreWordsArguments a) {
  for (u32 index = threadIdx.x; index < a.count; index += blockDim.x) static_cast<u32*>(a.to)[index] = a.words[index];
}

// A block per expert. Each warp counts its part of the choices, then numbers them from where the warps before it end.
extern "C" __global__ void __launch_bounds__(listThreads)
    moeListChoices(const __grid_constant__ MoeListChoicesArguments a) {
  __shared__ u32 counts[listWarps];
  const u32 warp = threadIdx.x / lanesPerWarp;
  const u32 lane = laneIndex();
  const i32 expert = static_cast<i32>(blockIdx.x);
  const u32 part = (a.choices + listThreads - 1) / listThreads * lanesPerWarp;
  const u32 begin = warp * part;
  const u32 end = min(begin + part, a.choices);
  u32 mine = 0;
  for (u32 at = begin; at < end; at += lanesPerWarp) {
    mine += __popc(__ballot_sync(0xffffffffu, expertAt(a, at + lane) == expert));
  }
  if (lane == 0) counts[warp] = mine;
  __syncthreads();
  u32 slot = static_cast<const u32*>(a.starts)[expert];
  for (u32 before = 0; before < warp; ++before) slot += counts[before];
  i32* slots = static_cast<i32*>(a.slots);
  for (u32 at = begin; at < end; at += lanesPerWarp) {
    const u32 choice = at + lane;
    const i32 chosen = expertAt(a, choice);
    const u32 here = __ballot_sync(0xffffffffu, chosen == expert);
    if (chosen == expert) slots[choice] = static_cast<i32>(slot + __popc(here & ((1u << lane) - 1)));
    // Choices of no expert here have no block of their own.
    else if (expert == 0 && choice < a.choices && (chosen < 0 || chosen >= static_cast<i32>(a.experts))) slots[choice] = -1;
    slot += __popc(here);
  }
}

// A warp per row: read once, written to the slot of each of its choices.
extern "C" __global__ void __launch_bounds__(256) moeGatherRows(const __grid_constant__ MoeGatherRowsArguments a) {
  const u32 row = blockIdx.x * (blockDim.x / lanesPerWarp) + threadIdx.x / lanesPerWarp;
  if (row >= a.rows) return;
  const u32 lane = laneIndex();
  const u64 cell = static_cast<u64>(row) * a.columns + lane;
  const i32 slot = lane < a.columns ? static_cast<const i32*>(a.slots)[cell] : -1;
  const u32 chosen = __ballot_sync(0xffffffffu, slot >= 0);
  const uint4* from = reinterpret_cast<const uint4*>(static_cast<const u8*>(a.x) + static_cast<u64>(row) * a.rowBytes);
  for (u32 first = 0; first < a.rowBytes / 16; first += lanesPerWarp) {
    const u32 index = first + lane;
    const bool inRow = index < a.rowBytes / 16;
    const uint4 vector = inRow ? from[index] : make_uint4(0, 0, 0, 0);
    for (u32 rest = chosen; rest != 0; rest &= rest - 1) {
      const u64 place = static_cast<u64>(__shfl_sync(0xffffffffu, slot, __ffs(rest) - 1)) * a.rowBytes;
      if (inRow) reinterpret_cast<uint4*>(static_cast<u8*>(a.out) + place)[index] = vector;
    }
  }
}

// out[i, j] = bf16(silu(x[i, j]) * x[i, width + j]), eight columns per thread.
extern "C" __global__ void __launch_bounds__(256) moeSwiglu(const __grid_constant__ MoeSwigluArguments a) {
  const u32 vectors = a.width / 8;
  const u64 index = static_cast<u64>(blockIdx.x) * blockDim.x + threadIdx.x;
  const u64 row = index / vectors;
  if (row >= a.rows) return;
  const u32 column = static_cast<u32>(index % vectors) * 8;
  const f32* gate = static_cast<const f32*>(a.x) + row * 2 * a.width + column;
  const float4 g0 = *reinterpret_cast<const float4*>(gate);
  const float4 g1 = *reinterpret_cast<const float4*>(gate + 4);
  const float4 u0 = *reinterpret_cast<const float4*>(gate + a.width);
  const float4 u1 = *reinterpret_cast<const float4*>(gate + a.width + 4);
  const uint4 result = make_uint4(gatePair(g0.x, g0.y, u0.x, u0.y), gatePair(g0.z, g0.w, u0.z, u0.w),
                                  gatePair(g1.x, g1.y, u1.x, u1.y), gatePair(g1.z, g1.w, u1.z, u1.w));
  *reinterpret_cast<uint4*>(static_cast<u16*>(a.out) + row * a.width + column) = result;
}

// A block per row: out = bf16(sum of weight * y over the row's slots in ascending order).
extern "C" __global__ void __launch_bounds__(256) moeSumRows(const __grid_constant__ MoeSumRowsArguments a) {
  __shared__ i32 slots[maxColumns];
  __shared__ f32 weights[maxColumns];
  __shared__ u32 count;
  const u64 row = blockIdx.x;
  if (threadIdx.x < lanesPerWarp) {
    const u32 lane = laneIndex();
    const bool column = lane < a.columns;
    const u64 cell = row * a.columns + lane;
    i32 slot = -1;
    if (column) slot = a.slots == nullptr ? static_cast<i32>(row) : static_cast<const i32*>(a.slots)[cell];
    u32 place = 0;
    for (u32 other = 0; other < lanesPerWarp; ++other) {
      const i32 its = __shfl_sync(0xffffffffu, slot, other);
      place += its >= 0 && its < slot;
    }
    if (slot >= 0) {
      slots[place] = slot;
      weights[place] = a.weights == nullptr ? 1.0f : static_cast<const f32*>(a.weights)[cell];
    }
    const u32 chosen = __popc(__ballot_sync(0xffffffffu, slot >= 0));
    if (lane == 0) count = chosen;
  }
  __syncthreads();
  for (u32 column = threadIdx.x * 8; column < a.hidden; column += blockDim.x * 8) {
    f32 sum[8] = {};
    for (u32 index = 0; index < count; ++index) {
      const float4* y = reinterpret_cast<const float4*>(static_cast<const f32*>(a.y) +
                                                        static_cast<u64>(slots[index]) * a.hidden + column);
      const float4 low = y[0];
      const float4 high = y[1];
      const f32 values[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
      for (u32 q = 0; q < 8; ++q) sum[q] = __fadd_rn(sum[q], __fmul_rn(weights[index], values[q]));
    }
    *reinterpret_cast<uint4*>(static_cast<u16*>(a.out) + row * a.hidden + column) =
        make_uint4(packBf16(sum[0], sum[1]), packBf16(sum[2], sum[3]), packBf16(sum[4], sum[5]), packBf16(sum[6], sum[7]));
  }
}
