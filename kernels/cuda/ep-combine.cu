// Combine: each rank pulls the rows of its tokens from all ranks that hold them, sums them in f32 in rank order after the
// biases, and rounds once to bf16.
//
// A warp per token, in chunks of columns: while one chunk is summed the copy engine brings the next.
#include "weftline/abi.cuh"
#include "weftline/bulk-copy.cuh"
#include "weftline/rank-barrier.cuh"
#include "weftline/types.cuh"

using namespace weftline;

namespace {

constexpr u32 barrierBytes = 1024;
constexpr u32 stages = 2;

// What one warp is at: a token, the part of its row, and where that comes from.
struct Item {
  u32 token;
  u32 at;
  u32 bytes;
};

__device__ __forceinline__ Item itemAt(const EpCombineArguments& a, u32 index, u32 chunks) {
  const u32 warps = blockDim.x / lanesPerWarp;
  const u32 warp = threadIdx.x / lanesPerWarp;
  const u32 turn = index / chunks;
  const u32 at = (index - turn * chunks) * a.chunkBytes;
  return {blockIdx.x + warp * gridDim.x + turn * gridDim.x * warps, at, min(a.chunkBytes, a.rowBytes - at)};
}

__device__ __forceinline__ const u8* sourceRow(const EpCombineArguments& a, u32 rank, u32 token) {
  const i32 row = static_cast<const i32*>(a.rowTable)[static_cast<u64>(token) * a.ranks + rank];
  if (row < 0) return nullptr;
  const u64 place = static_cast<u64>(static_cast<const EpPlan*>(a.plan)->firstRow[rank]) + row;
  return static_cast<const u8*>(a.peers[rank]) + a.rowsOffset + place * a.rowBytes;
}

// Loads the item's part of every row into consecutive slots of a stage; the number of rows, the same for all lanes.
__device__ u32 beginItem(const EpCombineArguments& a, const Item& item, u8* stage, u64* barrier) {
  u32 rows = 0;
  const u8* sources[epMaxRanks];
#pragma unroll
  for (u32 r = 0; r < epMaxRanks; ++r) {
    sources[r] = r < a.ranks ? sourceRow(a, r, item.token) : nullptr;
    rows += sources[r] != nullptr;
  }
#if WEFTLINE_BULK_COPY
  __syncwarp();
  if (laneIndex() == 0 && rows > 0) barrierArriveExpect(barrier, rows * item.bytes);
#endif
  u32 slot = 0;
#pragma unroll
  for (u32 r = 0; r < epMaxRanks; ++r) {
    if (sources[r] == nullptr) continue;
    u8* to = stage + slot * a.chunkBytes;
#if WEFTLINE_BULK_COPY
    if (laneIndex() == 0) bulkLoad(to, sources[r] + item.at, item.bytes, barrier);
#else
    warpCopyVectors(to, sources[r] + item.at, item.bytes);
#endif
    ++slot;
  }
  return rows;
}

__device__ __forceinline__ void load8(const void* from, f32 (&values)[8]) {
  const uint4 v = *static_cast<const uint4*>(from);
  const u32 words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
  for (u32 q = 0; q < 4; ++q) {
    values[2 * q] = lowBf16ToFloat(words[q]);
    values[2 * q + 1] = highBf16ToFloat(words[q]);
  }
}

__device__ __forceinline__ void accumulate(f32 (&sum)[8], const void* from, bool first) {
  f32 values[8];
  load8(from, values);
#pragma unroll
  for (u32 q = 0; q < 8; ++q) sum[q] = first ? values[q] : sum[q] + values[q];
}

// One row alone travels bit for bit; several are added from the first on, not from zero.
__device__ void sumItem(const EpCombineArguments& a, const Item& item, const u8* stage, u32 rows, u8* out) {
  const u64 offset = static_cast<u64>(item.token) * a.rowBytes + item.at;
  const u8* biases[2] = {static_cast<const u8*>(a.bias0), static_cast<const u8*>(a.bias1)};
  const u32 addends = rows + (biases[0] != nullptr) + (biases[1] != nullptr);
  for (u32 column = laneIndex() * 16; column < item.bytes; column += lanesPerWarp * 16) {
    uint4 result = make_uint4(0, 0, 0, 0);
    if (addends == 1) {
      const u8* only = rows == 1 ? stage : (biases[0] != nullptr ? biases[0] : biases[1]) + offset;
      result = *reinterpret_cast<const uint4*>(only + column);
    } else if (addends > 1) {
      f32 sum[8];
      bool first = true;
#pragma unroll
      for (u32 b = 0; b < 2; ++b) {
        if (biases[b] == nullptr) continue;
        accumulate(sum, biases[b] + offset + column, first);
        first = false;
      }
      for (u32 slot = 0; slot < rows; ++slot) {
        accumulate(sum, stage + slot * a.chunkBytes + column, first);
        first = false;
      }
      result.x = packBf16(sum[0], sum[1]);
      result.y = packBf16(sum[2], sum[3]);
      result.z = packBf16(sum[4], sum[5]);
      result.w = packBf16(sum[6], sum[7]);
    }
    *reinterpret_cast<uint4*>(out + column) = result;
  }
}

__device__ void sumWeights(const EpCombineArguments& a, u32 token) {
  const u32 lane = laneIndex();
  if (lane >= a.topkColumns) return;
  f32 sum = 0;
  for (u32 r = 0; r < a.ranks; ++r) {
    const i32 row = static_cast<const i32*>(a.rowTable)[static_cast<u64>(token) * a.ranks + r];
    if (row < 0) continue;
    const u64 place = static_cast<u64>(static_cast<const EpPlan*>(a.plan)->firstRow[r]) + row;
    const volatile f32* weights =
        reinterpret_cast<const volatile f32*>(static_cast<const u8*>(a.peers[r]) + a.weightsOffset);
    sum += weights[place * a.topkColumns + lane];
  }
  static_cast<f32*>(a.outWeights)[static_cast<u64>(token) * a.topkColumns + lane] = sum;
}

__device__ void combineTokens(const EpCombineArguments& a, u8* memory, u64* barriers) {
  const u32 warps = blockDim.x / lanesPerWarp;
  const u32 warp = threadIdx.x / lanesPerWarp;
  const u32 first = blockIdx.x + warp * gridDim.x;
  const u32 mine = first < a.tokens ? (a.tokens - first + gridDim.x * warps - 1) / (gridDim.x * warps) : 0;
  const u32 chunks = (a.rowBytes + a.chunkBytes - 1) / a.chunkBytes;
  const u32 items = mine * chunks;
  const u64 stageBytes = static_cast<u64>(a.ranks) * a.chunkBytes;
  u8* result = memory + stages * stageBytes;
  u32 rows[stages] = {0, 0};
  u32 phases[stages] = {0, 0};
  if (items > 0) rows[0] = beginItem(a, itemAt(a, 0, chunks), memory, &barriers[0]);
  for (u32 index = 0; index < items; ++index) {
    const u32 stage = index & 1;
    const Item item = itemAt(a, index, chunks);
    __syncwarp();
    if (index + 1 < items) {
      const u32 next = beginItem(a, itemAt(a, index + 1, chunks), memory + (stage ^ 1) * stageBytes, &barriers[stage ^ 1]);
      if (stage == 0) rows[1] = next;
      else rows[0] = next;
    }
    const u32 here = stage == 0 ? rows[0] : rows[1];
    if (item.at == 0 && a.outWeights != nullptr) sumWeights(a, item.token);
    if (here > 0) {
      warpWaitRow(&barriers[stage], (stage == 0 ? phases[0] : phases[1]) & 1);
      if (stage == 0) ++phases[0];
      else ++phases[1];
    }
    // The result before must have left its slot.
    warpWaitStoresRead<0>();
    sumItem(a, item, memory + stage * stageBytes, here, result);
    warpRowWritten();
    u8* out = static_cast<u8*>(a.out) + static_cast<u64>(item.token) * a.rowBytes + item.at;
    warpStoreRow(out, result, item.bytes);
    warpCommitStores();
  }
  warpWaitStoresWritten();
}

}  // namespace

extern "C" __global__ void __launch_bounds__(256) epCombine(const __grid_constant__ EpCombineArguments a) {
  extern __shared__ __align__(128) u8 shared[];
  const u32 warp = threadIdx.x / lanesPerWarp;
  u64* barriers = reinterpret_cast<u64*>(shared) + stages * warp;
  if (laneIndex() == 0) {
    for (u32 stage = 0; stage < stages; ++stage) warpRowBarrierInit(&barriers[stage]);
  }
  const WaitScope scope = {static_cast<TrapRecord*>(a.trap), trapKernelEpCombine, a.rank, a.timeoutNs};
  u32 status = epStatusGood;
  if (threadIdx.x < a.ranks) {
    const RankBarrier opening = {a.peers, a.ranks, a.rank, a.openingEpoch, a.openingCall};
    if (blockIdx.x == 0) signalRank(opening, threadIdx.x);
    status = awaitRank(opening, threadIdx.x, scope);
  }
  if (__syncthreads_or(status != epStatusGood)) return;
  // ORDER: peers wrote their rows before they arrived; the copy engine reads them after.
  fenceProxyAsync();
  const u64 warpBytes = (static_cast<u64>(stages) * a.ranks + 1) * a.chunkBytes;
  combineTokens(a, shared + barrierBytes + warp * warpBytes, barriers);
  __syncthreads();
  __shared__ u32 last;
  if (threadIdx.x == 0) {
    fenceSystem();
    last = fetchAddAcquireReleaseGpu(static_cast<u32*>(a.counter), 1) == gridDim.x - 1;
  }
  __syncthreads();
  if (last == 0) return;
  if (threadIdx.x < a.ranks) {
    const RankBarrier closing = {a.peers, a.ranks, a.rank, a.closingEpoch, a.closingCall};
    signalRank(closing, threadIdx.x);
    awaitRank(closing, threadIdx.x, scope);
  }
  if (threadIdx.x == 0) *static_cast<u32*>(a.counter) = 0;
}
