// Copies ranges from where they lie to where they belong, in memory of this GPU or of one that it reaches: the pieces of all
// rows of a table, of which each warp takes some that follow one another.
//
// Rows say how many pieces come before them, and a warp finds the rows of its pieces by halving. Pieces are short enough to
// keep all warps busy, and begin at multiples of 16 bytes in their ranges, so that what is aligned stays aligned.
#include "weftline/abi.cuh"
#include "weftline/copy/fragments.cuh"
#include "weftline/types.cuh"

using namespace weftline;

namespace {

constexpr u32 threads = copyRangesThreads;
constexpr u32 warps = threads / lanesPerWarp;
constexpr u32 batch = 4;

// The last row that begins at this piece or before it.
__device__ __forceinline__ u32 rowOf(const CopyRow* rows, u32 count, u32 piece) {
  u32 low = 0;
  u32 high = count;
  while (high - low > 1) {
    const u32 middle = (low + high) / 2;
    if (rows[middle].firstPiece <= piece) low = middle;
    else high = middle;
  }
  return low;
}

__device__ __forceinline__ Fragment pieceOf(const CopyRangesArguments& a, u32 piece) {
  const CopyRow* const rows = static_cast<const CopyRow*>(a.rows);
  // Where every row is one piece, there is nothing to look for.
  const CopyRow& row = rows[a.pieces == a.count ? piece : rowOf(rows, a.count, piece)];
  const u32 within = piece - row.firstPiece;
  const u32 range = within / row.piecesOfRange;
  const u64 offset = static_cast<u64>(within - range * row.piecesOfRange) * copyPieceBytes;
  Fragment fragment;
  fragment.to = static_cast<u8*>(row.to) + range * row.toStride + offset;
  fragment.from = static_cast<const u8*>(row.from) + range * row.fromStride + offset;
  fragment.bytes = static_cast<u32>(min(row.bytes - offset, static_cast<u64>(copyPieceBytes)));
  return fragment;
}

template <bool isSmall>
__device__ __forceinline__ void copyPieces(const CopyRangesArguments& a) {
  const u32 lane = laneIndex();
  const u32 group = a.piecesOfWarp;
  const u64 step = static_cast<u64>(gridDim.x) * warps * group;
  // Neighbours go to different multiprocessors.
  u64 first = static_cast<u64>(blockIdx.x + (threadIdx.x / lanesPerWarp) * gridDim.x) * group;
  for (; first < a.pieces; first += step) {
    const u32 count = static_cast<u32>(min(static_cast<u64>(group), a.pieces - first));
    Fragment mine = {nullptr, nullptr, 0};
    if (lane < count) mine = pieceOf(a, static_cast<u32>(first) + lane);
    if constexpr (isSmall) {
      moveFragments<batch>(mine);
    } else {
      for (u32 from = 0; from < count; ++from) {
        Fragment one;
        one.to = reinterpret_cast<u8*>(__shfl_sync(0xffffffffu, reinterpret_cast<u64>(mine.to), from));
        one.from = reinterpret_cast<const u8*>(__shfl_sync(0xffffffffu, reinterpret_cast<u64>(mine.from), from));
        one.bytes = __shfl_sync(0xffffffffu, mine.bytes, from);
        moveFragment<batch>(one);
      }
    }
  }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(threads, 1) copyRangesSmall(const __grid_constant__ CopyRangesArguments a) {
  copyPieces<true>(a);
}

extern "C" __global__ void __launch_bounds__(threads, 1) copyRangesLarge(const __grid_constant__ CopyRangesArguments a) {
  copyPieces<false>(a);
}
