// Reductions of runs in the order of their sources, ((r0 + r1) + r2) + …, as src/collectives/reference.ts has them.
#pragma once
#include "weftline/abi.cuh"
#include "weftline/collectives/move-range.cuh"
#include "weftline/types.cuh"

namespace weftline {

// A NaN of either side becomes the result; -0 is less than +0.
__device__ __forceinline__ f32 largest(f32 a, f32 b) {
  f32 result;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
  return result;
}

__device__ __forceinline__ f32 smallest(f32 a, f32 b) {
  f32 result;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
  return result;
}

__device__ __forceinline__ i32 largest(i32 a, i32 b) { return max(a, b); }
__device__ __forceinline__ i32 smallest(i32 a, i32 b) { return min(a, b); }
__device__ __forceinline__ f32 sumOf(f32 a, f32 b) { return __fadd_rn(a, b); }
__device__ __forceinline__ i32 sumOf(i32 a, i32 b) { return static_cast<i32>(static_cast<u32>(a) + static_cast<u32>(b)); }

template <typename Value, u32 count>
__device__ __forceinline__ void combineAll(Value (&values)[count], const Value (&others)[count], u32 reduction) {
  if (reduction == reductionSum) {
#pragma unroll
    for (u32 at = 0; at < count; ++at) values[at] = sumOf(values[at], others[at]);
  } else if (reduction == reductionMax) {
#pragma unroll
    for (u32 at = 0; at < count; ++at) values[at] = largest(values[at], others[at]);
  } else {
#pragma unroll
    for (u32 at = 0; at < count; ++at) values[at] = smallest(values[at], others[at]);
  }
}

// How each dtype is read into values that are computed with, by vectors of 16 bytes and by elements, and written.
struct ReducedF32 {
  using Value = f32;
  using Element = u32;
  static constexpr u32 perVector = 4;
  static constexpr u32 batch = 4;

  static __device__ __forceinline__ f32 load(u32 bits) { return __uint_as_float(bits); }
  static __device__ __forceinline__ u32 store(f32 value) {
    const u32 bits = __float_as_uint(value);
    return (bits & 0x7fffffffu) > 0x7f800000u ? 0x7fc00000u : bits;
  }
  static __device__ __forceinline__ void unpack(f32 (&values)[4], const uint4& v) {
    values[0] = load(v.x);
    values[1] = load(v.y);
    values[2] = load(v.z);
    values[3] = load(v.w);
  }
  static __device__ __forceinline__ uint4 pack(const f32 (&values)[4]) {
    return make_uint4(store(values[0]), store(values[1]), store(values[2]), store(values[3]));
  }
};

struct ReducedI32 {
  using Value = i32;
  using Element = u32;
  static constexpr u32 perVector = 4;
  static constexpr u32 batch = 4;

  static __device__ __forceinline__ i32 load(u32 bits) { return static_cast<i32>(bits); }
  static __device__ __forceinline__ u32 store(i32 value) { return static_cast<u32>(value); }
  static __device__ __forceinline__ void unpack(i32 (&values)[4], const uint4& v) {
    values[0] = load(v.x);
    values[1] = load(v.y);
    values[2] = load(v.z);
    values[3] = load(v.w);
  }
  static __device__ __forceinline__ uint4 pack(const i32 (&values)[4]) {
    return make_uint4(store(values[0]), store(values[1]), store(values[2]), store(values[3]));
  }
};

struct ReducedBf16 {
  using Value = f32;
  using Element = u16;
  static constexpr u32 perVector = 8;
  static constexpr u32 batch = 2;

  static __device__ __forceinline__ f32 load(u16 bits) { return bf16ToFloat(bits); }
  static __device__ __forceinline__ u16 store(f32 value) { return floatToBf16(value); }
  static __device__ __forceinline__ void unpack(f32 (&values)[8], const uint4& v) {
    const u32 words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (u32 q = 0; q < 4; ++q) {
      values[2 * q] = lowBf16ToFloat(words[q]);
      values[2 * q + 1] = highBf16ToFloat(words[q]);
    }
  }
  static __device__ __forceinline__ uint4 pack(const f32 (&values)[8]) {
    return make_uint4(packBf16(values[0], values[1]), packBf16(values[2], values[3]), packBf16(values[4], values[5]),
                      packBf16(values[6], values[7]));
  }
};

// What is reduced: two sources or more, in the order of the ranks. In shared memory.
template <u32 mostSources, u32 mostTargets>
struct ReducedRunOf {
  const u8* sources[mostSources];
  u8* targets[mostTargets];
};
using ReducedRun = ReducedRunOf<collectiveMaxRanks, collectiveMaxRanks>;

template <u32 batch>
__device__ __forceinline__ void loadBatch(uint4 (&vectors)[batch], const u8* source, u64 index, u64 step) {
  const uint4* from = reinterpret_cast<const uint4*>(source) + index;
#pragma unroll
  for (u32 part = 0; part < batch; ++part) vectors[part] = __ldcg(from + part * step);
}

template <class Of, u32 batch>
__device__ __forceinline__ void combineBatch(typename Of::Value (&sums)[batch][Of::perVector], const uint4 (&vectors)[batch],
                                             u32 reduction) {
#pragma unroll
  for (u32 part = 0; part < batch; ++part) {
    typename Of::Value values[Of::perVector];
    Of::unpack(values, vectors[part]);
    combineAll(sums[part], values, reduction);
  }
}

// With two sources, as much is under way as registers hold, for they are packed until they are added.
template <class Of, u32 batch, class Run>
__device__ __forceinline__ u64 reducePairs(const Run& run, u32 targets, u32 reduction, u64 index, u64 step, u64 count) {
  for (; index + (batch - 1) * step < count; index += batch * step) {
    uint4 lefts[batch];
    uint4 rights[batch];
    loadBatch(lefts, run.sources[0], index, step);
    loadBatch(rights, run.sources[1], index, step);
#pragma unroll
    for (u32 part = 0; part < batch; ++part) {
      typename Of::Value sums[Of::perVector];
      typename Of::Value values[Of::perVector];
      Of::unpack(sums, lefts[part]);
      Of::unpack(values, rights[part]);
      combineAll(sums, values, reduction);
      lefts[part] = Of::pack(sums);
    }
    for (u32 target = 0; target < targets; ++target) {
      uint4* to = reinterpret_cast<uint4*>(run.targets[target]) + index;
#pragma unroll
      for (u32 part = 0; part < batch; ++part) to[part * step] = lefts[part];
    }
  }
  return index;
}

// The next source is under way while one is added.
template <class Of, u32 batch, class Run>
__device__ __forceinline__ u64 reduceBatches(const Run& run, u32 sources, u32 targets, u32 reduction, u64 index, u64 step,
                                             u64 count) {
  for (; index + (batch - 1) * step < count; index += batch * step) {
    uint4 even[batch];
    uint4 odd[batch];
    typename Of::Value sums[batch][Of::perVector];
    loadBatch(even, run.sources[0], index, step);
    loadBatch(odd, run.sources[1], index, step);
#pragma unroll
    for (u32 part = 0; part < batch; ++part) Of::unpack(sums[part], even[part]);
    for (u32 next = 2;; next += 2) {
      if (next < sources) loadBatch(even, run.sources[next], index, step);
      combineBatch<Of>(sums, odd, reduction);
      if (next >= sources) break;
      if (next + 1 < sources) loadBatch(odd, run.sources[next + 1], index, step);
      combineBatch<Of>(sums, even, reduction);
      if (next + 1 >= sources) break;
    }
    uint4 results[batch];
#pragma unroll
    for (u32 part = 0; part < batch; ++part) results[part] = Of::pack(sums[part]);
    for (u32 target = 0; target < targets; ++target) {
      uint4* to = reinterpret_cast<uint4*>(run.targets[target]) + index;
#pragma unroll
      for (u32 part = 0; part < batch; ++part) to[part * step] = results[part];
    }
  }
  return index;
}

template <class Of, class Run>
__device__ inline void reduceElements(const Run& run, u32 sources, u32 targets, u32 reduction, u64 index, u64 step,
                                      u64 count) {
  using Element = typename Of::Element;
  for (; index < count; index += step) {
    typename Of::Value sum[1] = {Of::load(__ldcg(reinterpret_cast<const Element*>(run.sources[0]) + index))};
    for (u32 source = 1; source < sources; ++source) {
      const typename Of::Value value[1] = {Of::load(__ldcg(reinterpret_cast<const Element*>(run.sources[source]) + index))};
      combineAll(sum, value, reduction);
    }
    for (u32 target = 0; target < targets; ++target) reinterpret_cast<Element*>(run.targets[target])[index] = Of::store(sum[0]);
  }
}

// Whole vectors where all sources and targets are aligned to them.
template <class Of, class Run>
__device__ __forceinline__ void reduceAs(const Run& run, u32 sources, u32 targets, u32 reduction, u64 bytes,
                                         const Share& share) {
  u64 all = 0;
  for (u32 source = 0; source < sources; ++source) all |= addressBits(run.sources[source]);
  for (u32 target = 0; target < targets; ++target) all |= addressBits(run.targets[target]);
  const u64 vectors = (all & 15) == 0 ? bytes / 16 : 0;
  u64 index = share.first;
  if (sources == 2) index = reducePairs<Of, 8>(run, targets, reduction, index, share.step, vectors);
  else index = reduceBatches<Of, Of::batch>(run, sources, targets, reduction, index, share.step, vectors);
  reduceBatches<Of, 1>(run, sources, targets, reduction, index, share.step, vectors);
  const u64 first = vectors * Of::perVector;
  reduceElements<Of>(run, sources, targets, reduction, first + share.first, share.step, bytes / sizeof(typename Of::Element));
}

// What one rank alone has is copied, not rounded.
template <class Of, class Run>
__device__ __forceinline__ void reduceRange(const Run& run, u32 sources, u32 targets, u32 reduction, u64 bytes,
                                            const Share& share) {
  if (sources == 1) copyRange(run.targets[0], run.sources[0], bytes, share);
  else reduceAs<Of>(run, sources, targets, reduction, bytes, share);
}

// The type for a number, as the host names the dtype.
template <u32 format>
struct ReducedOf;
template <>
struct ReducedOf<reductionFormatBf16> : ReducedBf16 {};
template <>
struct ReducedOf<reductionFormatF32> : ReducedF32 {};
template <>
struct ReducedOf<reductionFormatI32> : ReducedI32 {};

}  // namespace weftline
