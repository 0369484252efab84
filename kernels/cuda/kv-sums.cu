// CRC-32 (that of zlib) of the ranges of blocks of a KV cache, where they lie: a thread block for each range.
//
// Thread t takes words t, t + T, t + 2T ... of a range, as if zeros stood before it so that its words are a multiple of T; what it
// has so far is multiplied by x^(32 T) for each further word, by tables, and at the end by x^(32 (T - t)), which is what stands
// behind its last word. Checksums are linear, so that the exclusive or of all threads is that of the range.
#include "weftline/abi.cuh"
#include "weftline/types.cuh"

using namespace weftline;

namespace {

constexpr u32 threads = kvSumThreads;
constexpr u32 warps = threads / lanesPerWarp;
constexpr u32 polynomial = 0xedb88320u;
constexpr u32 tableWords = 1024;

// Reflected: bit 31 is the coefficient of x^0.
__device__ __forceinline__ u32 multiply(u32 a, u32 b) {
  u32 product = 0;
#pragma unroll
  for (u32 bit = 0; bit < 32; ++bit) {
    if ((a << bit & 0x80000000u) != 0) product ^= b;
    b = (b >> 1) ^ ((b & 1u) != 0 ? polynomial : 0u);
  }
  return product;
}

__device__ __forceinline__ u32 follow(const u32* tables, u32 state, u32 word) {
  return tables[state & 0xffu] ^ tables[256 + (state >> 8 & 0xffu)] ^ tables[512 + (state >> 16 & 0xffu)] ^
         tables[768 + (state >> 24)] ^ word;
}

}  // namespace

extern "C" __global__ void __launch_bounds__(threads) kvBlockSums(const __grid_constant__ KvSumArguments a) {
  __shared__ u32 tables[tableWords];
  __shared__ u32 sums[warps];
  const u32* given = static_cast<const u32*>(a.tables);
  for (u32 at = threadIdx.x; at < tableWords; at += threads) tables[at] = given[at];
  const u32 shift = given[tableWords + threadIdx.x];
  const u32 ranges = a.blocks * a.parts;
  for (u32 range = blockIdx.x; range < ranges; range += gridDim.x) {
    const KvSumPart& part = static_cast<const KvSumPart*>(a.partTable)[range % a.parts];
    const u64 block = static_cast<const u32*>(a.list)[range / a.parts];
    const u32* words = reinterpret_cast<const u32*>(static_cast<const u8*>(part.address) + block * part.stride);
    const u32 count = static_cast<u32>(part.bytes / 4);
    const u32 zeros = (threads - count % threads) % threads;
    // The tables, and the sums of the range before, have been written and read.
    __syncthreads();
    u32 state = 0;
    if (threadIdx.x >= zeros) state = words[threadIdx.x - zeros];
    if (threadIdx.x == zeros) state = ~state;
#pragma unroll 4
    for (u32 at = threads + threadIdx.x; at < zeros + count; at += threads) {
      state = follow(tables, state, words[at - zeros]);
    }
    u32 sum = __reduce_xor_sync(0xffffffffu, multiply(shift, state));
    if (laneIndex() == 0) sums[threadIdx.x / lanesPerWarp] = sum;
    __syncthreads();
    if (threadIdx.x >= lanesPerWarp) continue;
    sum = __reduce_xor_sync(0xffffffffu, threadIdx.x < warps ? sums[threadIdx.x] : 0);
    if (threadIdx.x == 0) static_cast<u32*>(a.sums)[range] = ~sum;
  }
}
