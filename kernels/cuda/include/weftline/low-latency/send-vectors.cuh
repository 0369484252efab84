// The vectors of columns of a token's row and their scales, which the threads of a block quantise and store to peers.
#pragma once
#include "weftline/abi.cuh"
#include "weftline/fp8.cuh"
#include "weftline/low-latency/block-share.cuh"
#include "weftline/low-latency/number-rows.cuh"
#include "weftline/low-latency/rank-flags.cuh"
#include "weftline/memory-order.cuh"
#include "weftline/types.cuh"

namespace weftline {

// Address of a row of the source's slot of a region at rank r, of rows of `bytes`.
__device__ __forceinline__ u8* slotOf(const LowLatencyDispatchArguments& a, u32 r, u32 source, u64 offset, u64 row, u64 bytes) {
  return static_cast<u8*>(a.peers[r]) + offset + (static_cast<u64>(source) * a.maxTokens + row) * bytes;
}

__device__ __forceinline__ u32 scaleWordsOf(const LowLatencyDispatchArguments& a) {
  if (lowLatencyIsBf16) return 0;
  const u32 groups = (a.hidden + fp8Group - 1) / fp8Group;
  return a.scaleKind == lowLatencyScaleUe8m0 ? (groups + 3) / 4 : groups;
}

// The word of a row's scales that has the one of a group.
__device__ __forceinline__ u32 scaleWordOf(const LowLatencyDispatchArguments& a, u32 group) {
  return a.scaleKind == lowLatencyScaleUe8m0 ? group / 4 : group;
}

// Address of a word of scales in the source's slot at rank r. Rows by rank have the scales of a group side by side, as the result has
// them; others those of a row.
__device__ __forceinline__ u8* scaleAt(const LowLatencyDispatchArguments& a, u32 r, u32 source, u32 row, u32 word) {
  const u32 words = scaleWordsOf(a);
  const u64 block = static_cast<u64>(source) * a.maxTokens * words;
  const u64 index = block + (lowLatencyIsRankMajor ? static_cast<u64>(word) * a.maxTokens + row : static_cast<u64>(row) * words + word);
  return static_cast<u8*>(a.peers[r]) + a.scalesOffset + index * 4;
}

// `at`: address of its word.
__device__ __forceinline__ void storeScale(const LowLatencyDispatchArguments& a, u8* at, u32 group, f32 stored) {
  if (a.scaleKind != lowLatencyScaleUe8m0) {
    storeRelaxedSystem(reinterpret_cast<u32*>(at), __float_as_uint(stored));
    return;
  }
  storeRelaxedSystem(at + group % 4, static_cast<u8>(__float_as_uint(stored) >> 23));
  if ((group + 1) * fp8Group < a.hidden) return;
  for (u32 byte = group % 4 + 1; byte < 4; ++byte) storeRelaxedSystem(at + byte, static_cast<u8>(0));
}

// A vector of 8 columns for each thread and step; those of a group of columns are neighbours.
struct SendVectors {
  const LowLatencyDispatchArguments& a;
  u32 perRow;
  // Vectors with what fills the last group of columns.
  u32 padded;

  __device__ __forceinline__ explicit SendVectors(const LowLatencyDispatchArguments& arguments)
      : a(arguments), perRow(arguments.hidden / columnsPerVector),
        padded((perRow + lanesPerGroup - 1) / lanesPerGroup * lanesPerGroup) {}

  // A vector of a token of a batch.
  struct Place {
    u32 local;
    u32 vector;
  };

  // None for those that number.
  __device__ __forceinline__ Place firstPlace() const { return firstPlace(threadIdx.x); }

  __device__ __forceinline__ Place firstPlace(u32 thread) const {
    Place place = {thread < lowLatencySending ? 0 : lowLatencyBatch, thread};
    wrap(place);
    return place;
  }

  __device__ __forceinline__ Place after(Place place) const {
    place.vector += lowLatencySending;
    wrap(place);
    return place;
  }

  __device__ __forceinline__ void wrap(Place& place) const {
#pragma unroll 1
    for (; place.vector >= padded; place.vector -= padded) ++place.local;
  }

  __device__ __forceinline__ uint4 load(u32 first, u32 count, Place place) const {
    if (place.local >= count || place.vector >= perRow) return make_uint4(0, 0, 0, 0);
    return static_cast<const uint4*>(a.x)[static_cast<u64>(first + place.local) * perRow + place.vector];
  }

  // The rank's own row first, so that it can be placed while the others are on their way; then from the next rank on, which spreads the
  // load over the links.
  template <class Store>
  __device__ __forceinline__ void toRanks(const i32 (&rows)[lowLatencyMostRanks], const Store& store) const {
#pragma unroll 1
    for (u32 step = 0, r = a.rank; step < a.ranks; ++step) {
      const i32 row = rows[r];
      if (row >= 0) store(r, static_cast<u32>(row));
      r = r + 1 == a.ranks ? 0 : r + 1;
    }
  }

  // What is sent of a vector: of fp8 its codes in x and y, and the scale of its group in z. By the lanes of whole groups.
  __device__ __forceinline__ uint4 encode(uint4 value) const {
    if (lowLatencyIsBf16) return value;
    const u32 lanes = 0xffffu << (laneIndex() & 16u);
    u32 most = magnitudeOf(value);
#pragma unroll
    for (u32 step = lanesPerGroup / 2; step > 0; step /= 2) most = max(most, __shfl_xor_sync(lanes, most, step));
    const Fp8Scale scale = fp8ScaleOf(most, a.scaleKind != lowLatencyScaleF32);
    return make_uint4(toE4m3(make_uint2(value.x, value.y), scale.factor),
                      toE4m3(make_uint2(value.z, value.w), scale.factor), __float_as_uint(scale.stored), 0);
  }

  __device__ __forceinline__ void send(const i32 (&rows)[lowLatencyMostRanks], u32 vector, uint4 encoded) const {
    if (vector >= perRow) return;
    if (lowLatencyIsBf16) {
      toRanks(rows, [&](u32 r, u32 row) {
        reinterpret_cast<uint4*>(slotOf(a, r, a.rank, a.rowsOffset, row, a.hidden * 2ull))[vector] = encoded;
      });
      return;
    }
    const bool isFirst = lowLatencyIsRankMajor && vector % lanesPerGroup == 0;
    toRanks(rows, [&](u32 r, u32 row) {
      storeWordsSystem(reinterpret_cast<uint2*>(slotOf(a, r, a.rank, a.rowsOffset, row, a.hidden)) + vector,
                       make_uint2(encoded.x, encoded.y));
      if (isFirst) storeScaleAt(r, row, vector / lanesPerGroup, __uint_as_float(encoded.z));
    });
  }

  __device__ __forceinline__ void storeScaleAt(u32 r, u32 row, u32 group, f32 stored) const {
    storeScale(a, scaleAt(a, r, a.rank, row, scaleWordOf(a, group)), group, stored);
  }

  // Turns in which the threads encode the vectors of `count` tokens.
  __device__ __forceinline__ u32 turns(u32 count) const {
    return Divisor(lowLatencySending).quotient(count * padded + lowLatencySending - 1);
  }

  // The scales of the vectors of one turn are sent side by side: one by one, each of them would cross a link in a packet of its own.
  // They go before the rows, because a receiver needs both.
  __device__ __forceinline__ void keepScale(f32 (&scales)[lowLatencySending / lanesPerGroup], uint4 encoded) const {
    if (!lowLatencyIsBf16 && threadIdx.x % lanesPerGroup == 0) {
      scales[threadIdx.x / lanesPerGroup] = __uint_as_float(encoded.z);
    }
  }

  // `place`: of the first vector of the thread's group.
  __device__ __forceinline__ void sendScale(const f32 (&scales)[lowLatencySending / lanesPerGroup],
                                            const i32 (&rows)[lowLatencyBatch][lowLatencyMostRanks], u32 count, Place place) const {
    if (lowLatencyIsBf16 || threadIdx.x >= lowLatencySending / lanesPerGroup) return;
    if (place.local >= count || place.vector >= perRow) return;
    toRanks(rows[place.local], [&](u32 r, u32 row) {
      storeScaleAt(r, row, place.vector / lanesPerGroup, scales[threadIdx.x]);
    });
  }
};

}  // namespace weftline
