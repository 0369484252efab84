// Rows of bf16 as rows of fp8 e4m3fn with one f32 scale for each 128 columns, and back. A warp per group of columns.
//
// The same bits as kernels/wasm/fp8.ts: the conversion is done by integers, so that it is alike on every architecture.
#include "weftline/abi.cuh"
#include "weftline/types.cuh"

using namespace weftline;

namespace {

constexpr u32 columnsPerLane = fp8Group / lanesPerWarp;
constexpr f32 fp8Max = 448.0f;
constexpr f32 smallestAmax = 1e-4f;
// The largest finite bf16: what an infinity counts as.
constexpr u32 bf16MaxBits = 0x7f7f;

// element * scale to nearest, ties to even, saturating at 448; NaN becomes 0x7f with its sign.
__device__ __forceinline__ u32 toE4m3(f32 element, f32 scale) {
  // Of the element, because a product that is NaN loses its sign here. The scale is positive.
  const u32 sign = (__float_as_uint(element) >> 24) & 0x80u;
  const f32 value = element * scale;
  if (value != value) return sign | 0x7fu;
  const f32 magnitude = fminf(fabsf(value), fp8Max);
  if (magnitude < 0.015625f) {
    // Next to 2^14 an f32 counts in steps of 2^-9, the smallest e4m3, so the addition itself rounds.
    return sign | (__float_as_uint(__fadd_rn(magnitude, 16384.0f)) - __float_as_uint(16384.0f));
  }
  const u32 bits = __float_as_uint(magnitude);
  return sign | (((bits + 0x7ffffu + ((bits >> 20) & 1u)) >> 20) - (120u << 3));
}

// Exact: its bits are those of an f32 that is 2^120 times too small.
__device__ __forceinline__ f32 fromE4m3(u32 code) {
  const u32 magnitude = code & 0x7fu;
  const f32 value = magnitude == 0x7fu ? __uint_as_float(0x7fc00000u)
                                       : __uint_as_float(magnitude << 20) * 1.329227995784916e36f;
  return __uint_as_float(__float_as_uint(value) | ((code & 0x80u) << 24));
}

// Which group this warp works on, and its lane's columns in it.
struct Place {
  u64 row;
  u32 group;
  u32 column;
  bool inRow;
};

__device__ __forceinline__ bool findPlace(const Fp8RowsArguments& a, Place& place) {
  const u32 groups = (a.columns + fp8Group - 1) / fp8Group;
  const u64 warp = static_cast<u64>(blockIdx.x) * (blockDim.x / lanesPerWarp) + threadIdx.x / lanesPerWarp;
  place.row = warp / groups;
  place.group = static_cast<u32>(warp % groups);
  place.column = place.group * fp8Group + laneIndex() * columnsPerLane;
  // Rows are multiples of 8 columns, so a lane's four are all inside or all outside.
  place.inRow = place.column < a.columns;
  return place.row < a.rows;
}

__device__ __forceinline__ u32 magnitudeOf(u32 bits) {
  const u32 magnitude = bits & 0x7fffu;
  return magnitude <= 0x7f80u ? magnitude : 0;
}

}  // namespace

extern "C" __global__ void __launch_bounds__(256) quantizeRows(const __grid_constant__ Fp8RowsArguments a) {
  Place at;
  if (!findPlace(a, at)) return;
  const u64 first = at.row * a.columns + at.column;
  uint2 pairs = make_uint2(0, 0);
  if (at.inRow) pairs = *reinterpret_cast<const uint2*>(static_cast<const u16*>(a.x) + first);
  // As integers, magnitudes order like the numbers they stand for.
  u32 most = max(max(magnitudeOf(pairs.x), magnitudeOf(pairs.x >> 16)), max(magnitudeOf(pairs.y), magnitudeOf(pairs.y >> 16)));
#pragma unroll
  for (u32 step = lanesPerWarp / 2; step > 0; step /= 2) most = max(most, __shfl_xor_sync(0xffffffffu, most, step));
  const f32 amax = fmaxf(__uint_as_float(min(most, bf16MaxBits) << 16), smallestAmax);
  f32 inverse = amax / fp8Max;
  f32 scale = fp8Max / amax;
  if (a.roundScale != 0) {
    // The exponent of the next power of two: one more than that of `inverse`, unless its mantissa is zero.
    const u32 exponent = (__float_as_uint(inverse) + 0x7fffffu) >> 23;
    inverse = __uint_as_float(exponent << 23);
    scale = __uint_as_float((254u - exponent) << 23);
  }
  const u32 groups = (a.columns + fp8Group - 1) / fp8Group;
  if (laneIndex() == 0) static_cast<f32*>(a.scales)[at.row * groups + at.group] = inverse;
  if (!at.inRow) return;
  const u32 codes = toE4m3(lowBf16ToFloat(pairs.x), scale) | toE4m3(highBf16ToFloat(pairs.x), scale) << 8 |
                    toE4m3(lowBf16ToFloat(pairs.y), scale) << 16 | toE4m3(highBf16ToFloat(pairs.y), scale) << 24;
  *reinterpret_cast<u32*>(static_cast<u8*>(a.data) + first) = codes;
}

extern "C" __global__ void __launch_bounds__(256) dequantizeRows(const __grid_constant__ Fp8RowsArguments a) {
  Place at;
  if (!findPlace(a, at) || !at.inRow) return;
  const u32 groups = (a.columns + fp8Group - 1) / fp8Group;
  const f32 scale = static_cast<const f32*>(a.scales)[at.row * groups + at.group];
  const u64 first = at.row * a.columns + at.column;
  const u32 codes = *reinterpret_cast<const u32*>(static_cast<const u8*>(a.data) + first);
  const uint2 pairs = make_uint2(packBf16(fromE4m3(codes & 0xffu) * scale, fromE4m3(codes >> 8 & 0xffu) * scale),
                                 packBf16(fromE4m3(codes >> 16 & 0xffu) * scale, fromE4m3(codes >> 24) * scale));
  *reinterpret_cast<uint2*>(static_cast<u16*>(a.x) + first) = pairs;
}
