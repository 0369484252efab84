// What sparse all-reduces do with a tensor of a GPU: mark its blocks, number those that count, move them out and sums in.
//
// Marking is bound by memory: a group of lanes reads a block, with several loads under way in each lane. Everything else is
// about the few blocks that count, or about a byte and two words for each block.
#include "weftline/abi.cuh"
#include "weftline/memory-order.cuh"
#include "weftline/types.cuh"

using namespace weftline;

namespace {

constexpr u32 markThreads = 256;
constexpr u32 moveThreads = 256;
constexpr u32 infinitySafe = 0xffffffffu;

// Whether an element of the word counts: its magnitude is above the limit, or it is a NaN, which as bits is above all.
template <u32 format>
__device__ __forceinline__ bool counts(u32 word, u32 limit) {
  if (format == reductionFormatF32) return (word & 0x7fffffffu) > limit;
  if (format == reductionFormatI32) return (static_cast<i32>(word) < 0 ? 0u - word : word) > limit;
  return ((word << 16) & 0x7fffffffu) > limit || (word & 0x7fff0000u) > limit;
}

struct Found {
  bool counts;
  // Bits of all words that were read.
  u32 bits;
};

template <u32 format>
__device__ __forceinline__ void look(Found& found, const uint4& v, u32 limit) {
  found.counts = found.counts || counts<format>(v.x, limit) || counts<format>(v.y, limit) ||
                 counts<format>(v.z, limit) || counts<format>(v.w, limit);
  found.bits |= v.x | v.y | v.z | v.w;
}

// `width` lanes of a warp that agree on the block call this. Elements behind the last whole vector are looked at one by one.
template <u32 format, u32 width>
__device__ Found lookAtBlock(const u8* block, u32 bytes, u32 limit, bool isAligned, u32 lane, u32 mask) {
  constexpr u32 loads = width == 32 ? 4 : 2;
  constexpr u32 step = width * 16;
  Found found = {false, 0};
  u32 at = 0;
  if (isAligned) {
    for (; at + loads * step <= bytes; at += loads * step) {
      uint4 v[loads];
#pragma unroll
      for (u32 i = 0; i < loads; ++i) v[i] = __ldcs(reinterpret_cast<const uint4*>(block + at + i * step) + lane);
#pragma unroll
      for (u32 i = 0; i < loads; ++i) look<format>(found, v[i], limit);
      if (__any_sync(mask, found.counts)) return {true, 0};
    }
    uint4 v[loads];
#pragma unroll
    for (u32 i = 0; i < loads; ++i) {
      const u32 from = at + i * step + lane * 16;
      v[i] = from + 16 <= bytes ? __ldcs(reinterpret_cast<const uint4*>(block + from)) : uint4{};
    }
#pragma unroll
    for (u32 i = 0; i < loads; ++i) look<format>(found, v[i], limit);
    at = bytes & ~15u;
  }
  constexpr u32 elementBytes = format == reductionFormatBf16 ? 2 : 4;
  for (u32 from = at + lane * elementBytes; from < bytes; from += width * elementBytes) {
    const u32 word = elementBytes == 2 ? *reinterpret_cast<const u16*>(block + from)
                                       : *reinterpret_cast<const u32*>(block + from);
    found.counts = found.counts || counts<format>(word, limit);
    found.bits |= word;
  }
  found.counts = __any_sync(mask, found.counts);
  return found;
}

template <typename Word>
__device__ __forceinline__ void clearWords(u8* to, u32 bytes, u32 lane, u32 width) {
  for (u32 at = lane * sizeof(Word); at < bytes; at += width * sizeof(Word)) *reinterpret_cast<Word*>(to + at) = Word{};
}

template <u32 format, u32 width>
__device__ void mark(const SparseMarkArguments& a) {
  const u32 lane = threadIdx.x % width;
  const u32 mask = width == 32 ? 0xffffffffu : ((1u << (width % 32)) - 1) << (laneIndex() / width * width);
  const u32 step = gridDim.x * (markThreads / width);
  const bool isAligned = a.isAligned != 0;
  for (u32 block = blockIdx.x * (markThreads / width) + threadIdx.x / width; block < a.blocks; block += step) {
    const u64 from = static_cast<u64>(block) * a.blockBytes;
    const u64 left = a.bytes - from;
    const u32 bytes = left < a.blockBytes ? static_cast<u32>(left) : a.blockBytes;
    const Found found = lookAtBlock<format, width>(static_cast<const u8*>(a.input) + from, bytes, a.limit, isAligned, lane, mask);
    if (lane == 0) static_cast<u8*>(a.marks)[block] = found.counts ? 0 : 1;
    if (found.counts) continue;
    if (a.input == a.output && !__any_sync(mask, found.bits != 0)) continue;
    u8* to = static_cast<u8*>(a.output) + from;
    if (!isAligned) clearWords<u16>(to, bytes, lane, width);
    else {
      clearWords<uint4>(to, bytes & ~15u, lane, width);
      clearWords<u16>(to + (bytes & ~15u), bytes & 15u, lane, width);
    }
  }
}

template <u32 width>
__device__ __forceinline__ void markAs(const SparseMarkArguments& a) {
  if (a.format == reductionFormatF32) mark<reductionFormatF32, width>(a);
  else if (a.format == reductionFormatBf16) mark<reductionFormatBf16, width>(a);
  else mark<reductionFormatI32, width>(a);
}

// Thread 0 gets the sum over the block. By all threads of up to 32 warps.
__device__ u32 blockSum(u32 value) {
  __shared__ u32 sums[lanesPerWarp];
  __syncthreads();
  const u32 sum = __reduce_add_sync(0xffffffffu, value);
  if (laneIndex() == 0) sums[threadIdx.x / lanesPerWarp] = sum;
  __syncthreads();
  if (threadIdx.x >= lanesPerWarp) return 0;
  return __reduce_add_sync(0xffffffffu, threadIdx.x < blockDim.x / lanesPerWarp ? sums[threadIdx.x] : 0);
}

__device__ __forceinline__ u32 markOf(const SparseIndexArguments& a, u32 block) {
  return static_cast<const u8*>(a.marks)[block];
}

// Both loops over a lane's places of a segment: the thread's segment and lane.
struct Segment {
  u32 lane;
  u32 number;
};

__device__ __forceinline__ bool segmentOf(const SparseIndexArguments& a, Segment& segment) {
  const u64 index = static_cast<u64>(blockIdx.x - a.groups) * blockDim.x + threadIdx.x;
  if (index >= static_cast<u64>(a.segments) * a.stride) return false;
  segment.lane = static_cast<u32>(index % a.stride);
  segment.number = static_cast<u32>(index / a.stride);
  return true;
}

// Places are counted in 64 bits: the one behind the last may be above 2^32.
__device__ __forceinline__ u64 placeOf(const SparseIndexArguments& a, const Segment& segment, u32 place) {
  return (static_cast<u64>(segment.number) * sparseSegmentPlaces + place) * a.stride + segment.lane;
}

template <typename Word, bool isGather>
__device__ __forceinline__ void moveWords(u8* tensor, u8* packed, u32 bytes, u32 lane) {
  constexpr u32 step = lanesPerWarp * sizeof(Word);
  constexpr u32 loads = 4;
  const u8* from = isGather ? tensor : packed;
  u8* to = isGather ? packed : tensor;
  u32 at = lane * sizeof(Word);
  for (; at + (loads - 1) * step < bytes; at += loads * step) {
    Word v[loads];
#pragma unroll
    for (u32 i = 0; i < loads; ++i) v[i] = *reinterpret_cast<const Word*>(from + at + i * step);
#pragma unroll
    for (u32 i = 0; i < loads; ++i) *reinterpret_cast<Word*>(to + at + i * step) = v[i];
  }
  for (; at < bytes; at += step) *reinterpret_cast<Word*>(to + at) = *reinterpret_cast<const Word*>(from + at);
}

// A warp for each block.
template <bool isGather>
__device__ void moveBlocks(const SparseMoveArguments& a) {
  const u32 step = gridDim.x * (moveThreads / lanesPerWarp);
  for (u32 index = blockIdx.x * (moveThreads / lanesPerWarp) + threadIdx.x / lanesPerWarp; index < a.count; index += step) {
    const u64 from = static_cast<u64>(static_cast<const u32*>(a.list)[index]) * a.blockBytes;
    const u64 left = a.bytes - from;
    const u32 bytes = left < a.blockBytes ? static_cast<u32>(left) : a.blockBytes;
    u8* tensor = static_cast<u8*>(a.tensor) + from;
    u8* packed = static_cast<u8*>(a.packed) + static_cast<u64>(index) * a.blockBytes;
    const u32 whole = bytes / a.unit * a.unit;
    if (a.unit == 16) moveWords<uint4, isGather>(tensor, packed, whole, laneIndex());
    else if (a.unit == 4) moveWords<u32, isGather>(tensor, packed, whole, laneIndex());
    else moveWords<u16, isGather>(tensor, packed, whole, laneIndex());
    if (whole < bytes) moveWords<u16, isGather>(tensor + whole, packed + whole, bytes - whole, laneIndex());
  }
}

}  // namespace

// A warp of blocks of few bytes reads four at a time.
extern "C" __global__ void __launch_bounds__(markThreads) sparseMark(const __grid_constant__ SparseMarkArguments a) {
  if (a.blockBytes >= 512) markAs<32>(a);
  else markAs<8>(a);
}

// The first thread blocks count those of each group that count, the others find the first one of each segment.
extern "C" __global__ void __launch_bounds__(sparseGroupBlocks) sparseSurvey(const __grid_constant__ SparseIndexArguments a) {
  if (blockIdx.x < a.groups) {
    const u32 block = blockIdx.x * sparseGroupBlocks + threadIdx.x;
    const u32 sum = blockSum(block < a.blocks && markOf(a, block) == 0 ? 1 : 0);
    if (threadIdx.x == 0) static_cast<u32*>(a.counts)[blockIdx.x] = sum;
    return;
  }
  Segment segment;
  if (!segmentOf(a, segment)) return;
  u32 first = infinitySafe;
  for (u32 place = 0; place < sparseSegmentPlaces && first == infinitySafe; ++place) {
    const u64 block = placeOf(a, segment, place);
    if (block >= a.blocks) break;
    if (markOf(a, static_cast<u32>(block)) == 0) first = static_cast<u32>(block);
  }
  static_cast<u32*>(a.firsts)[static_cast<u64>(segment.number) * a.stride + segment.lane] = first;
}

// Behind sparseSurvey: the first thread blocks number the blocks that count, the others look ahead in each lane.
extern "C" __global__ void __launch_bounds__(sparseGroupBlocks) sparseIndex(const __grid_constant__ SparseIndexArguments a) {
  __shared__ u32 before;
  __shared__ u32 warps[lanesPerWarp];
  if (blockIdx.x < a.groups) {
    u32 share = 0;
    for (u32 group = threadIdx.x; group < blockIdx.x; group += blockDim.x) share += static_cast<const u32*>(a.counts)[group];
    const u32 sum = blockSum(share);
    if (threadIdx.x == 0) before = sum;
    const u32 block = blockIdx.x * sparseGroupBlocks + threadIdx.x;
    const bool isOwn = block < a.blocks && markOf(a, block) == 0;
    const u32 within = warpInclusiveSum(isOwn ? 1 : 0);
    if (laneIndex() == lanesPerWarp - 1) warps[threadIdx.x / lanesPerWarp] = within;
    __syncthreads();
    u32 number = before + within - 1;
    for (u32 warp = 0; warp < threadIdx.x / lanesPerWarp; ++warp) number += warps[warp];
    if (block < a.blocks) static_cast<u32*>(a.numbers)[block] = isOwn ? number : sparseNoBlock;
    if (isOwn) static_cast<u32*>(a.list)[number] = block;
    if (block == a.blocks - 1) *static_cast<u32*>(a.found) = number + 1;
    return;
  }
  Segment segment;
  if (!segmentOf(a, segment)) return;
  u32 next = infinitySafe;
  for (u32 behind = segment.number + 1; behind < a.segments && next == infinitySafe; ++behind) {
    next = static_cast<const u32*>(a.firsts)[static_cast<u64>(behind) * a.stride + segment.lane];
  }
  if (next == infinitySafe) next = a.infinity + segment.lane;
  for (u32 place = sparseSegmentPlaces; place-- > 0;) {
    const u64 block = placeOf(a, segment, place);
    if (block >= a.blocks) continue;
    static_cast<u32*>(a.nexts)[block] = next;
    if (markOf(a, static_cast<u32>(block)) == 0) next = static_cast<u32>(block);
  }
}

extern "C" __global__ void __launch_bounds__(moveThreads) sparseGather(const __grid_constant__ SparseMoveArguments a) {
  moveBlocks<true>(a);
}

extern "C" __global__ void __launch_bounds__(moveThreads) sparseScatter(const __grid_constant__ SparseMoveArguments a) {
  moveBlocks<false>(a);
}

// One thread. The stream has ended the kernels that wrote the parts, so whoever sees the sum sees them.
extern "C" __global__ void sparseTell(const __grid_constant__ SparseTellArguments a) {
  addReleaseSystem(static_cast<u32*>(a.flag), a.parts);
}

// A plain read: as many loads under way as the mark kernel has, and nothing that depends on what they bring.
extern "C" __global__ void __launch_bounds__(markThreads) benchRead(const __grid_constant__ BenchReadArguments a) {
  const u64 step = static_cast<u64>(gridDim.x) * markThreads;
  const u64 count = a.bytes / 16;
  const uint4* from = static_cast<const uint4*>(a.input);
  u32 bits = 0;
  u64 at = static_cast<u64>(blockIdx.x) * markThreads + threadIdx.x;
  for (; at + 3 * step < count; at += 4 * step) {
    uint4 v[4];
#pragma unroll
    for (u32 i = 0; i < 4; ++i) v[i] = __ldcs(from + at + i * step);
#pragma unroll
    for (u32 i = 0; i < 4; ++i) bits |= v[i].x | v[i].y | v[i].z | v[i].w;
  }
  for (; at < count; at += step) {
    const uint4 v = __ldcs(from + at);
    bits |= v.x | v.y | v.z | v.w;
  }
  if (bits == 0x5eed5eedu) *static_cast<u32*>(a.sink) = bits;
}
