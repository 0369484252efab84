// Rows of bf16 as rows of fp8 e4m3fn with one f32 scale for each 128 columns, and back. A warp per group of columns.
#include "weftline/abi.cuh"
#include "weftline/fp8.cuh"
#include "weftline/types.cuh"

using namespace weftline;

namespace {

constexpr u32 columnsPerLane = fp8Group / lanesPerWarp;
// The group that this warp works on, and its lane's columns in it.
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

}  // namespace

extern "C" __global__ void __launch_bounds__(256) quantizeRows(const __grid_constant__ Fp8RowsArguments a) {
  Place at;
  if (!findPlace(a, at)) return;
  const u64 first = at.row * a.columns + at.column;
  uint2 pairs = make_uint2(0, 0);
  if (at.inRow) pairs = *reinterpret_cast<const uint2*>(static_cast<const u16*>(a.x) + first);
  // As integers, magnitudes order like the numbers they stand for.
  u32 most = max(magnitudeOf(pairs.x), magnitudeOf(pairs.y));
#pragma unroll
  for (u32 step = lanesPerWarp / 2; step > 0; step /= 2) most = max(most, __shfl_xor_sync(0xffffffffu, most, step));
  const Fp8Scale scale = fp8ScaleOf(most, a.roundScale != 0);
  const u32 groups = (a.columns + fp8Group - 1) / fp8Group;
  if (laneIndex() == 0) static_cast<f32*>(a.scales)[at.row * groups + at.group] = scale.stored;
  if (!at.inRow) return;
  const u32 codes = toE4m3(pairs, scale.factor);
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
