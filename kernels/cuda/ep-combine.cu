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

// Lane r: where the token's row lies at rank r in its source's numbering, -1 for none (and for other lanes).
__device__ __forceinline__ i32 placeAt(const EpCombineArguments& a, u32 token) {
  if (laneIndex() >= a.ranks || token >= a.tokens) return -1;
  return static_cast<const i32*>(a.rowTable)[static_cast<u64>(token) * a.ranks + laneIndex()];
}

// Loads the item's part of every row into consecutive slots of a stage, rank by rank; each lane starts its own.
__device__ __forceinline__ void beginItem(const EpCombineArguments& a, const Item& item, i32 row, u8* stage,
                                          u64* barrier) {
  const u32 holders = __ballot_sync(0xffffffffu, row >= 0);
  const u32 lane = laneIndex();
#if WEFTLINE_BULK_COPY
  if (lane == 0 && holders != 0) barrierArriveExpect(barrier, __popc(holders) * item.bytes);
  __syncwarp();
  if (row >= 0) {
    const u32 slot = __popc(holders & ((1u << lane) - 1));
    const u8* from = static_cast<const u8*>(a.peers[lane]) + a.rowsOffset + static_cast<u64>(row) * a.rowBytes;
    bulkLoad(stage + slot * a.chunkBytes, from + item.at, item.bytes, barrier);
  }
#else
  u32 slot = 0;
  for (u32 r = 0; r < a.ranks; ++r) {
    const i32 place = __shfl_sync(0xffffffffu, row, r);
    if (place < 0) continue;
    const u8* from = static_cast<const u8*>(a.peers[r]) + a.rowsOffset + static_cast<u64>(place) * a.rowBytes;
    warpCopyVectors(stage + slot++ * a.chunkBytes, from + item.at, item.bytes);
  }
#endif
}

__device__ __forceinline__ void addVector(f32 (&sum)[8], const uint4& v) {
  const u32 words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
  for (u32 q = 0; q < 4; ++q) {
    sum[2 * q] += lowBf16ToFloat(words[q]);
    sum[2 * q + 1] += highBf16ToFloat(words[q]);
  }
}

__device__ __forceinline__ void startVector(f32 (&sum)[8], const uint4& v) {
  const u32 words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
  for (u32 q = 0; q < 4; ++q) {
    sum[2 * q] = lowBf16ToFloat(words[q]);
    sum[2 * q + 1] = highBf16ToFloat(words[q]);
  }
}

__device__ __forceinline__ uint4 roundVector(const f32 (&sum)[8]) {
  return make_uint4(packBf16(sum[0], sum[1]), packBf16(sum[2], sum[3]), packBf16(sum[4], sum[5]),
                    packBf16(sum[6], sum[7]));
}

// The usual case, with everything known to the compiler: `rows` rows, no bias.
template <u32 rows>
__device__ __forceinline__ void sumRows(const EpCombineArguments& a, const u8* stage, u8* out, u32 bytes) {
#pragma unroll 2
  for (u32 column = laneIndex() * 16; column < bytes; column += lanesPerWarp * 16) {
    uint4 vectors[rows];
#pragma unroll
    for (u32 slot = 0; slot < rows; ++slot) {
      vectors[slot] = *reinterpret_cast<const uint4*>(stage + slot * a.chunkBytes + column);
    }
    f32 sum[8];
    startVector(sum, vectors[0]);
#pragma unroll
    for (u32 slot = 1; slot < rows; ++slot) addVector(sum, vectors[slot]);
    *reinterpret_cast<uint4*>(out + column) = roundVector(sum);
  }
}

// With biases, which are added before the rows. One addend alone travels bit for bit; none is zero.
__device__ void sumAny(const EpCombineArguments& a, const Item& item, const u8* stage, u32 rows, u8* out) {
  const u64 offset = static_cast<u64>(item.token) * a.rowBytes + item.at;
  const u8* addends[2] = {static_cast<const u8*>(a.bias0), static_cast<const u8*>(a.bias1)};
  const u32 count = rows + (addends[0] != nullptr) + (addends[1] != nullptr);
  for (u32 column = laneIndex() * 16; column < item.bytes; column += lanesPerWarp * 16) {
    f32 sum[8] = {};
    uint4 only = make_uint4(0, 0, 0, 0);
    bool started = false;
    for (u32 index = 0; index < rows + 2; ++index) {
      const u8* from = index < 2 ? (addends[index] == nullptr ? nullptr : addends[index] + offset)
                                 : stage + (index - 2) * a.chunkBytes;
      if (from == nullptr) continue;
      only = *reinterpret_cast<const uint4*>(from + column);
      if (started) addVector(sum, only);
      else startVector(sum, only);
      started = true;
    }
    *reinterpret_cast<uint4*>(out + column) = count <= 1 ? only : roundVector(sum);
  }
}

__device__ void sumItem(const EpCombineArguments& a, const Item& item, const u8* stage, u32 rows, u8* out) {
  const bool biased = a.bias0 != nullptr || a.bias1 != nullptr;
  switch (biased ? 0 : rows) {
    case 2:
      return sumRows<2>(a, stage, out, item.bytes);
    case 3:
      return sumRows<3>(a, stage, out, item.bytes);
    case 4:
      return sumRows<4>(a, stage, out, item.bytes);
    case 5:
      return sumRows<5>(a, stage, out, item.bytes);
    case 6:
      return sumRows<6>(a, stage, out, item.bytes);
    case 7:
      return sumRows<7>(a, stage, out, item.bytes);
    case 8:
      return sumRows<8>(a, stage, out, item.bytes);
    default:
      return sumAny(a, item, stage, rows, out);
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
  const u32 step = gridDim.x * (blockDim.x / lanesPerWarp);
  const u32 firstToken = blockIdx.x + (threadIdx.x / lanesPerWarp) * gridDim.x;
  const u32 mine = firstToken < a.tokens ? (a.tokens - firstToken + step - 1) / step : 0;
  const u32 chunks = (a.rowBytes + a.chunkBytes - 1) / a.chunkBytes;
  const u64 stageBytes = static_cast<u64>(a.ranks) * a.chunkBytes;
  const i32 firstRow =
      laneIndex() < a.ranks ? static_cast<i32>(static_cast<const EpPlan*>(a.plan)->firstRow[laneIndex()]) : 0;
  u8* result = memory + stages * stageBytes;
  // The item being summed and the one being loaded; places are asked for one token ahead.
  Item item = {firstToken, 0, min(a.chunkBytes, a.rowBytes)};
  i32 place = placeAt(a, firstToken);
  i32 row = place < 0 ? -1 : place + firstRow;
  i32 nextPlace = placeAt(a, firstToken + step);
  u32 phases = 0;
  if (mine > 0) beginItem(a, item, row, memory, &barriers[0]);
  for (u32 index = 0; index < mine * chunks; ++index) {
    const u32 stage = index & 1;
    Item next = {item.token, item.at + a.chunkBytes, 0};
    i32 nextRow = row;
    if (next.at >= a.rowBytes) {
      next.token += step;
      next.at = 0;
      nextRow = nextPlace < 0 ? -1 : nextPlace + firstRow;
      nextPlace = placeAt(a, next.token + step);
    }
    next.bytes = min(a.chunkBytes, a.rowBytes - next.at);
    // All lanes have summed what that stage held.
    __syncwarp();
    if (index + 1 < mine * chunks) beginItem(a, next, nextRow, memory + (stage ^ 1) * stageBytes, &barriers[stage ^ 1]);
    if (item.at == 0 && a.outWeights != nullptr) sumWeights(a, item.token);
    const u32 rows = __popc(__ballot_sync(0xffffffffu, row >= 0));
    if (rows > 0) {
      warpWaitRow(&barriers[stage], (phases >> stage) & 1);
      phases ^= 1u << stage;
    }
    // The result before must have left its slot.
    warpWaitStoresRead<0>();
    sumItem(a, item, memory + stage * stageBytes, rows, result);
    warpRowWritten();
    u8* out = static_cast<u8*>(a.out) + static_cast<u64>(item.token) * a.rowBytes + item.at;
    warpStoreRow(out, result, item.bytes);
    warpCommitStores();
    item = next;
    row = nextRow;
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
  const RankBarrier opening = {a.peers, a.ranks, a.rank, a.openingEpoch, a.openingCall};
  if (!enterTogether(opening, scope)) return;
  // ORDER: peers wrote their rows before they arrived; the copy engine reads them after.
  fenceProxyAsync();
  const u64 warpBytes = (static_cast<u64>(stages) * a.ranks + 1) * a.chunkBytes;
  combineTokens(a, shared + barrierBytes + warp * warpBytes, barriers);
  leaveTogether({a.peers, a.ranks, a.rank, a.closingEpoch, a.closingCall}, static_cast<u32*>(a.counter), scope);
}
