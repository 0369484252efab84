// Products of groups of bf16 rows with a bf16 matrix for each group, in one launch: out = x * transpose(w), f32.
//
// A block computes a tile of 64 rows of one group by 128 columns with tensor cores (mma m16n8k16). Pieces 64 deep come
// by asynchronous copies, three stages in turn. Rows, columns and depth may end anywhere that is a multiple of 8 (rows:
// anywhere): what lies beyond is loaded as zero and never stored. The order of a sum depends on k alone, so a row's
// result is the same bits whatever else is in the batch.
#include "weftline/abi.cuh"
#include "weftline/types.cuh"

using namespace weftline;

namespace {

constexpr u32 threads = 256;
constexpr u32 depth = 64;
constexpr u32 stages = 3;
// 16 bytes: what one asynchronous copy moves and one row of a tensor core's matrix holds.
constexpr u32 chunkElements = 8;
constexpr u32 chunksPerRow = depth / chunkElements;
constexpr u32 rowBytes = depth * 2;
constexpr u32 xBytes = groupedTileRows * rowBytes;
constexpr u32 stageBytes = (groupedTileRows + groupedTileColumns) * rowBytes;
// Two rows of four warps; each computes 32 by 32.
constexpr u32 warpsAcross = 4;
constexpr u32 warpRows = 32;
constexpr u32 warpColumns = 32;
constexpr u32 rowTiles = warpRows / 16;
constexpr u32 columnTiles = warpColumns / 8;

// The place of chunk `chunk` of a row in a stage. Eight rows' chunks of one number lie in different banks.
__device__ __forceinline__ u32 swizzled(u32 row, u32 chunk) {
  return row * rowBytes + ((chunk ^ (row & 7)) * 16);
}

// Copies 16 bytes, or zeros when `valid` is not set; `global` is a good address either way.
__device__ __forceinline__ void copyChunk(u32 shared, const void* global, bool valid) {
  const u32 bytes = valid ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(global), "r"(bytes) : "memory");
}

__device__ __forceinline__ void commitCopies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

template <u32 pending>
__device__ __forceinline__ void waitCopies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
}

// Four 8 by 8 matrices; lane l gives the address of row l % 8 of matrix l / 8.
__device__ __forceinline__ void loadMatrices(u32 (&m)[4], u32 shared) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
               : "r"(shared)
               : "memory");
}

__device__ __forceinline__ void multiplyAdd(f32 (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// The group whose tiles hold `tile`: the last one that begins at or before it and is not empty.
__device__ __forceinline__ u32 groupOf(const u32* tileStarts, u32 groups, u32 tile) {
  u32 low = 0;
  u32 high = groups;
  while (high - low > 1) {
    const u32 middle = (low + high) / 2;
    if (tileStarts[middle] <= tile) low = middle;
    else high = middle;
  }
  return low;
}

// What one block computes.
struct Tile {
  const u16* x;
  const u16* w;
  u32 rows;
  u32 columns;
  u32 k;
};

// One piece of x and w into a stage; `at` is its first element of k.
__device__ __forceinline__ void loadPiece(const Tile& tile, u32 stage, u32 at) {
#pragma unroll
  for (u32 step = 0; step < (groupedTileRows + groupedTileColumns) * chunksPerRow / threads; ++step) {
    const u32 index = step * threads + threadIdx.x;
    const u32 chunk = index % chunksPerRow;
    const u32 row = index / chunksPerRow;
    const bool isX = row < groupedTileRows;
    const u32 line = isX ? row : row - groupedTileRows;
    const u32 element = at + chunk * chunkElements;
    const bool valid = line < (isX ? tile.rows : tile.columns) && element < tile.k;
    const u16* base = isX ? tile.x : tile.w;
    copyChunk(stage + (isX ? 0 : xBytes) + swizzled(line, chunk), valid ? base + static_cast<u64>(line) * tile.k + element : base,
              valid);
  }
}

__device__ __forceinline__ void multiplyPiece(f32 (&sums)[rowTiles][columnTiles][4], u32 stage, u32 firstRow, u32 firstColumn) {
  const u32 lane = laneIndex();
#pragma unroll
  for (u32 step = 0; step < depth / 16; ++step) {
    u32 a[rowTiles][4];
    u32 b[columnTiles / 2][4];
    // x: rows 0-7 and 8-15 of the first eight of k, then of the second eight.
#pragma unroll
    for (u32 i = 0; i < rowTiles; ++i) {
      loadMatrices(a[i], stage + swizzled(firstRow + i * 16 + lane % 16, step * 2 + lane / 16));
    }
    // w: both halves of k of columns 0-7, then of columns 8-15.
#pragma unroll
    for (u32 j = 0; j < columnTiles / 2; ++j) {
      loadMatrices(b[j], stage + xBytes + swizzled(firstColumn + j * 16 + lane / 16 * 8 + lane % 8, step * 2 + lane / 8 % 2));
    }
#pragma unroll
    for (u32 i = 0; i < rowTiles; ++i) {
#pragma unroll
      for (u32 j = 0; j < columnTiles; ++j) multiplyAdd(sums[i][j], a[i], b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]);
    }
  }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(threads, 2)
    groupedProduct(const __grid_constant__ GroupedProductArguments a) {
  extern __shared__ __align__(128) u8 shared[];
  const u32* tileStarts = static_cast<const u32*>(a.tileStarts);
  const u32* starts = static_cast<const u32*>(a.starts);
  const u32 group = groupOf(tileStarts, a.groups, blockIdx.y);
  const u32 tileRow = starts[group] + (blockIdx.y - tileStarts[group]) * groupedTileRows;
  const u32 tileColumn = blockIdx.x * groupedTileColumns;
  const Tile tile = {static_cast<const u16*>(a.x) + static_cast<u64>(tileRow) * a.k,
                     static_cast<const u16*>(a.w) + (static_cast<u64>(group) * a.n + tileColumn) * a.k,
                     min(groupedTileRows, starts[group + 1] - tileRow), min(groupedTileColumns, a.n - tileColumn), a.k};
  const u32 memory = static_cast<u32>(__cvta_generic_to_shared(shared));
  const u32 pieces = (a.k + depth - 1) / depth;
  const u32 warp = threadIdx.x / lanesPerWarp;
  const u32 firstRow = warp / warpsAcross * warpRows;
  const u32 firstColumn = warp % warpsAcross * warpColumns;
  f32 sums[rowTiles][columnTiles][4] = {};
  // A group of copies is committed for every piece, there or not, so that the count of pending ones is always known.
  for (u32 piece = 0; piece < stages - 1; ++piece) {
    if (piece < pieces) loadPiece(tile, memory + piece * stageBytes, piece * depth);
    commitCopies();
  }
  for (u32 piece = 0; piece < pieces; ++piece) {
    waitCopies<stages - 2>();
    // All copies of this piece are there, and all warps have done with the stage that is loaded next.
    __syncthreads();
    const u32 next = piece + stages - 1;
    if (next < pieces) loadPiece(tile, memory + next % stages * stageBytes, next * depth);
    commitCopies();
    multiplyPiece(sums, memory + piece % stages * stageBytes, firstRow, firstColumn);
  }
  const u32 lane = laneIndex();
  f32* out = static_cast<f32*>(a.out) + static_cast<u64>(tileRow) * a.n + tileColumn;
#pragma unroll
  for (u32 i = 0; i < rowTiles; ++i) {
#pragma unroll
    for (u32 half = 0; half < 2; ++half) {
      const u32 row = firstRow + i * 16 + half * 8 + lane / 4;
      if (row >= tile.rows) continue;
#pragma unroll
      for (u32 j = 0; j < columnTiles; ++j) {
        const u32 column = firstColumn + j * 8 + lane % 4 * 2;
        if (column >= tile.columns) continue;
        *reinterpret_cast<float2*>(out + static_cast<u64>(row) * a.n + column) =
            make_float2(sums[i][j][half * 2], sums[i][j][half * 2 + 1]);
      }
    }
  }
}
