// Sums of rows in f32 by one warp, from memory to memory: a lane has a vector of each part of 512 bytes, several parts at once.
// A row that a sum of another host is may be f32, not rounded. One row alone travels bit for bit, unless its dtype changes;
// no row is zero.
#pragma once
#include "weftline/ep/element.cuh"
#include "weftline/types.cuh"

namespace weftline {

// Element: see element.cuh.
template <class Element>
struct RowSum {
  static constexpr u32 depth = 4;
  static constexpr u32 partBytes = lanesPerWarp * 16;

  // Vectors of f32 that one vector of the rows becomes.
  static constexpr u32 widening = Element::perVector / 4;

  f32 sums[depth][Element::perVector];
  uint4 only[depth];
  u32 count;
  // Start of this lane's first part, and end of the row.
  u32 first;
  u32 end;

  // The parts of a row from `begin` on. `rowBytes`: a multiple of 16.
  __device__ __forceinline__ RowSum(u32 begin, u32 rowBytes) : count(0), first(begin + laneIndex() * 16), end(rowBytes) {
#pragma unroll
    for (u32 k = 0; k < depth; ++k) {
      only[k] = make_uint4(0, 0, 0, 0);
#pragma unroll
      for (u32 i = 0; i < Element::perVector; ++i) sums[k][i] = 0;
    }
  }

  __device__ __forceinline__ bool has(u32 k) const { return first + k * partBytes < end; }

  // Rows may have been written by peers during this kernel: loads go past the first-level cache.
  __device__ __forceinline__ void add(const u8* row) {
#pragma unroll
    for (u32 k = 0; k < depth; ++k) {
      if (has(k)) only[k] = __ldcg(reinterpret_cast<const uint4*>(row + first + k * partBytes));
    }
#pragma unroll
    for (u32 k = 0; k < depth; ++k) {
      if (count == 0) Element::start(sums[k], only[k]);
      else Element::add(sums[k], only[k]);
    }
    ++count;
  }

  // A row of f32.
  __device__ __forceinline__ void addWide(const u8* row) {
#pragma unroll
    for (u32 k = 0; k < depth; ++k) {
      if (!has(k)) continue;
      const uint4* part = reinterpret_cast<const uint4*>(row + widening * (first + k * partBytes));
#pragma unroll
      for (u32 v = 0; v < widening; ++v) {
        f32 values[4];
        F32Element::start(values, __ldcg(part + v));
#pragma unroll
        for (u32 i = 0; i < 4; ++i) sums[k][4 * v + i] = count == 0 ? values[i] : sums[k][4 * v + i] + values[i];
      }
    }
    // It must be rounded, so it is not one row alone.
    count += 2;
  }

  __device__ __forceinline__ void store(u8* row) const {
#pragma unroll
    for (u32 k = 0; k < depth; ++k) {
      if (has(k)) *reinterpret_cast<uint4*>(row + first + k * partBytes) = count <= 1 ? only[k] : Element::round(sums[k]);
    }
  }

  __device__ __forceinline__ void storeWide(u8* row) const {
#pragma unroll
    for (u32 k = 0; k < depth; ++k) {
      if (!has(k)) continue;
      uint4* part = reinterpret_cast<uint4*>(row + widening * (first + k * partBytes));
#pragma unroll
      for (u32 v = 0; v < widening; ++v) {
        const f32 values[4] = {sums[k][4 * v], sums[k][4 * v + 1], sums[k][4 * v + 2], sums[k][4 * v + 3]};
        part[v] = F32Element::round(values);
      }
    }
  }
};

}  // namespace weftline
