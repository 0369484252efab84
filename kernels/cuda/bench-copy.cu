// What dispatch and combine are measured against: the same rows between the same memory, copied and nothing else.
//
// The table says where each row goes; nothing is counted, numbered, summed or told. Ranks meet before and after, as in
// the kernels that these are compared with. How many warps, how many parts in flight and how large they are is the
// caller's choice, who tries what is fastest.
#include "weftline/abi.cuh"
#include "weftline/copy/bulk-copy.cuh"
#include "weftline/collective/rank-barrier.cuh"
#include "weftline/types.cuh"

using namespace weftline;

namespace {

// One warp's share: every step-th token from the first, each in parts; an item is one part of one token.
struct Share {
  u32 first;
  u32 step;
  u32 parts;
  u32 items;
};

__device__ __forceinline__ Share shareOf(const BenchCopyArguments& a) {
  Share share;
  share.step = gridDim.x * (blockDim.x / lanesPerWarp);
  share.first = blockIdx.x + (threadIdx.x / lanesPerWarp) * gridDim.x;
  share.parts = (a.rowBytes + a.partBytes - 1) / a.partBytes;
  share.items = share.first < a.tokens ? (a.tokens - share.first + share.step - 1) / share.step * share.parts : 0;
  return share;
}

// Lane l works for this rank, so that not all ranks begin with the same one.
__device__ __forceinline__ u32 peerOfLane(const BenchCopyArguments& a) {
  return laneIndex() < a.ranks ? (a.rank + 1 + laneIndex()) % a.ranks : 0;
}

// -1 where the token has no row at the lane's rank, and for lanes without a rank.
__device__ __forceinline__ i32 rowAt(const BenchCopyArguments& a, u32 peer, u32 token) {
  if (laneIndex() >= a.ranks || token >= a.tokens) return -1;
  return static_cast<const i32*>(a.table)[static_cast<u64>(token) * a.ranks + peer];
}

// The lanes copy one token's bytes to all ranks that `row` names; for what the engine does not move.
template <typename Vector>
__device__ void pushPlain(const BenchCopyArguments& a, void* const* targets, i32 row, const void* from, u32 bytes) {
  const u32 count = bytes / sizeof(Vector);
  for (u32 first = 0; first < count; first += lanesPerWarp) {
    const u32 index = first + laneIndex();
    Vector value = {};
    if (index < count) value = static_cast<const Vector*>(from)[index];
    for (u32 lane = 0, r = a.rank; lane < a.ranks; ++lane) {
      r = r + 1 == a.ranks ? 0 : r + 1;
      const i32 place = __shfl_sync(0xffffffffu, row, lane);
      if (place >= 0 && index < count) static_cast<Vector*>(targets[r])[static_cast<u64>(place) * count + index] = value;
    }
  }
}

__device__ void pushSides(const BenchCopyArguments& a, i32 row, u32 token) {
  const u8* from = static_cast<const u8*>(a.localSides) + static_cast<u64>(token) * a.sideBytes;
  if (a.sideBytes % 16 == 0) pushPlain<uint4>(a, a.sides, row, from, a.sideBytes);
  else pushPlain<u32>(a, a.sides, row, from, a.sideBytes);
}

#if WEFTLINE_BULK_COPY

constexpr u32 barrierBytes = 1024;

struct Part {
  u32 token;
  u32 at;
  u32 bytes;
};

__device__ __forceinline__ Part partOf(const BenchCopyArguments& a, const Share& share, u32 item) {
  Part part;
  part.token = share.first + item / share.parts * share.step;
  part.at = item % share.parts * a.partBytes;
  part.bytes = min(a.partBytes, a.rowBytes - part.at);
  return part;
}

__device__ __forceinline__ void loadPart(const BenchCopyArguments& a, const Part& part, u8* slot, u64* barrier) {
  __syncwarp();
  if (laneIndex() != 0) return;
  barrierArriveExpect(barrier, part.bytes);
  bulkLoad(slot, static_cast<const u8*>(a.local) + static_cast<u64>(part.token) * a.rowBytes + part.at, part.bytes, barrier);
}

// Row t of this rank to its place at every rank. While one part is stored the next ones are being loaded.
__device__ void pushRows(const BenchCopyArguments& a, u8* slots, u64* barriers) {
  const Share share = shareOf(a);
  const u32 peer = peerOfLane(a);
  u8* rows = static_cast<u8*>(a.rows[peer]);
  i32 row = -1;
  i32 nextRow = rowAt(a, peer, share.first);
  u32 loaded = 0;
  u32 loadSlot = 0;
  u32 slot = 0;
  u32 phase = 0;
  for (u32 item = 0; item < share.items; ++item) {
    while (loaded < share.items && loaded < item + a.slots) {
      // The slot was stored from one item ago.
      bulkWaitRead<0>();
      loadPart(a, partOf(a, share, loaded), slots + loadSlot * a.partBytes, &barriers[loadSlot]);
      ++loaded;
      loadSlot = loadSlot + 1 == a.slots ? 0 : loadSlot + 1;
    }
    const Part part = partOf(a, share, item);
    if (part.at == 0) {
      row = nextRow;
      nextRow = rowAt(a, peer, part.token + share.step);
      if (a.sideBytes != 0) pushSides(a, row, part.token);
    }
    barrierWait(&barriers[slot], phase);
    if (row >= 0) {
      bulkStore(rows + static_cast<u64>(row) * a.rowBytes + part.at, slots + slot * a.partBytes, part.bytes);
      bulkCommit();
    }
    if (++slot == a.slots) {
      slot = 0;
      phase ^= 1;
    }
  }
  bulkWait<0>();
  fenceProxyAsync();
}

// Begins to load a part of every row of a token, one behind the other; returns how many there are.
__device__ __forceinline__ u32 beginPull(const BenchCopyArguments& a, const Part& part, const u8* rows, i32 row, u8* slot,
                                         u64* barrier) {
  const u32 holders = __ballot_sync(0xffffffffu, row >= 0);
  if (laneIndex() == 0 && holders != 0) barrierArriveExpect(barrier, __popc(holders) * part.bytes);
  __syncwarp();
  if (row >= 0) {
    const u32 place = __popc(holders & ((1u << laneIndex()) - 1));
    bulkLoad(slot + place * a.partBytes, rows + static_cast<u64>(row) * a.rowBytes + part.at, part.bytes, barrier);
  }
  return __popc(holders);
}

// All rows of a token from where they lie; one of them, in turn, becomes the token's row here, as combine writes one.
__device__ void pullRows(const BenchCopyArguments& a, u8* slots, u64* barriers) {
  const Share share = shareOf(a);
  const u32 peer = peerOfLane(a);
  const u8* rows = static_cast<const u8*>(a.rows[peer]);
  const u32 stride = a.ranks * a.partBytes;
  i32 row = -1;
  i32 nextRow = rowAt(a, peer, share.first);
  u32 loaded = 0;
  u32 loadSlot = 0;
  u32 slot = 0;
  // A bit per slot.
  u32 phases = 0;
  // Rows in each slot, 4 bits per slot.
  u32 held = 0;
  for (u32 item = 0; item < share.items; ++item) {
    while (loaded < share.items && loaded < item + a.slots) {
      const Part part = partOf(a, share, loaded);
      if (part.at == 0) {
        row = nextRow;
        nextRow = rowAt(a, peer, part.token + share.step);
      }
      // The slot was stored from one item ago.
      if (laneIndex() == 0) bulkWaitRead<0>();
      __syncwarp();
      const u32 count = beginPull(a, part, rows, row, slots + loadSlot * stride, &barriers[loadSlot]);
      held = (held & ~(15u << (4 * loadSlot))) | (count << (4 * loadSlot));
      ++loaded;
      loadSlot = loadSlot + 1 == a.slots ? 0 : loadSlot + 1;
    }
    const Part part = partOf(a, share, item);
    const u32 count = (held >> (4 * slot)) & 15u;
    if (count != 0) {
      barrierWait(&barriers[slot], (phases >> slot) & 1);
      phases ^= 1u << slot;
      if (laneIndex() == 0) {
        u8* out = static_cast<u8*>(a.local) + static_cast<u64>(part.token) * a.rowBytes + part.at;
        bulkStore(out, slots + slot * stride + part.token % count * a.partBytes, part.bytes);
        bulkCommit();
      }
    }
    slot = slot + 1 == a.slots ? 0 : slot + 1;
  }
  if (laneIndex() == 0) bulkWait<0>();
  fenceProxyAsync();
}

// Up to 4 barriers per warp, made by its first lane.
__device__ __forceinline__ u64* makeBarriers(const BenchCopyArguments& a, u8* shared) {
  u64* barriers = reinterpret_cast<u64*>(shared) + 4 * (threadIdx.x / lanesPerWarp);
  if (laneIndex() == 0) {
    for (u32 slot = 0; slot < a.slots; ++slot) warpRowBarrierInit(&barriers[slot]);
  }
  return barriers;
}

#else

__device__ void pullRowsPlain(const BenchCopyArguments& a) {
  const Share share = shareOf(a);
  const u32 peer = peerOfLane(a);
  for (u32 token = share.first; token < a.tokens; token += share.step) {
    const i32 row = rowAt(a, peer, token);
    u8* out = static_cast<u8*>(a.local) + static_cast<u64>(token) * a.rowBytes;
    for (u32 lane = 0, r = a.rank; lane < a.ranks; ++lane) {
      r = r + 1 == a.ranks ? 0 : r + 1;
      const i32 place = __shfl_sync(0xffffffffu, row, lane);
      if (place >= 0) warpCopyVectors(out, static_cast<const u8*>(a.rows[r]) + static_cast<u64>(place) * a.rowBytes, a.rowBytes);
    }
  }
}

#endif

// This serves where there is no engine, or for rows that are no multiple of 16 bytes.
__device__ void pushRowsPlain(const BenchCopyArguments& a) {
  const Share share = shareOf(a);
  const u32 peer = peerOfLane(a);
  for (u32 token = share.first; token < a.tokens; token += share.step) {
    const i32 row = rowAt(a, peer, token);
    const u8* from = static_cast<const u8*>(a.local) + static_cast<u64>(token) * a.rowBytes;
    if (a.rowBytes % 16 == 0) pushPlain<uint4>(a, a.rows, row, from, a.rowBytes);
    else pushPlain<uint2>(a, a.rows, row, from, a.rowBytes);
    if (a.sideBytes != 0) pushSides(a, row, token);
  }
}

// The way in and out of both copies.
template <typename Copy>
__device__ __forceinline__ void copyTogether(const BenchCopyArguments& a, const Copy& copy) {
  const WaitScope scope = {static_cast<TrapRecord*>(a.trap), trapKernelBenchCopy, a.rank, a.timeoutNs, sharedWaits()};
  if (!enterTogether({a.peers, a.ranks, a.rank, a.openingEpoch, a.call}, scope)) return;
  copy();
  leaveTogether({a.peers, a.ranks, a.rank, a.closingEpoch, a.call}, static_cast<u32*>(a.counter), nullptr, scope);
}

}  // namespace

// All ranks have come, then the device does nothing for a while: what is enqueued behind it starts everywhere at once.
extern "C" __global__ void benchMeet(const __grid_constant__ BenchMeetArguments a) {
  const WaitScope scope = {static_cast<TrapRecord*>(a.trap), trapKernelBenchMeet, a.rank, a.timeoutNs, sharedWaits()};
  if (!enterTogether({a.peers, a.ranks, a.rank, a.epoch, a.call}, scope)) return;
  const u64 start = globalTimer();
  while (globalTimer() - start < a.holdNs) {
  }
}

extern "C" __global__ void __launch_bounds__(1024, 1) benchPush(const __grid_constant__ BenchCopyArguments a) {
#if WEFTLINE_BULK_COPY
  extern __shared__ __align__(128) u8 shared[];
  u64* barriers = makeBarriers(a, shared);
  u8* slots = shared + barrierBytes + static_cast<u64>(threadIdx.x / lanesPerWarp) * a.slots * a.partBytes;
  copyTogether(a, [&] { a.rowBytes % 16 == 0 ? pushRows(a, slots, barriers) : pushRowsPlain(a); });
#else
  copyTogether(a, [&] { pushRowsPlain(a); });
#endif
}

extern "C" __global__ void __launch_bounds__(1024, 1) benchPull(const __grid_constant__ BenchCopyArguments a) {
#if WEFTLINE_BULK_COPY
  extern __shared__ __align__(128) u8 shared[];
  u64* barriers = makeBarriers(a, shared);
  u8* slots = shared + barrierBytes + static_cast<u64>(threadIdx.x / lanesPerWarp) * a.slots * a.ranks * a.partBytes;
  // ORDER: peers wrote their rows before they arrived; the copy engine reads them after.
  copyTogether(a, [&] {
    fenceProxyAsync();
    pullRows(a, slots, barriers);
  });
#else
  copyTogether(a, [&] { pullRowsPlain(a); });
#endif
}
