// Sums of rows that lie anywhere: a warp pulls the rows of one item through shared memory in chunks of columns, adds them
// in f32 in a given order and rounds once to the rows' dtype. While one chunk is summed the copy engine brings the next.
#pragma once
#include "weftline/copy/bulk-copy.cuh"
#include "weftline/copy/stage-pair.cuh"
#include "weftline/ep/element.cuh"
#include "weftline/types.cuh"

namespace weftline {

// What all items of one kernel share.
struct GatherShape {
  u32 items;
  u32 rowBytes;
  // Shared memory of a warp: two stages of stageBytes, each for one part of every row, and partBytes for the sum.
  u32 stageBytes;
  u32 partBytes;
};

// Shared memory of one warp, besides its barriers.
__device__ __forceinline__ u64 gatherBytes(const GatherShape& shape) {
  return static_cast<u64>(stagesPerWarp) * shape.stageBytes + shape.partBytes;
}

// What one warp is at: an item, and the part of its row.
struct GatherPart {
  u32 item;
  u32 at;
  u32 bytes;
  // The item's rows, and bytes of every part but the last: equal ones, as large as that many rows leave room for.
  u32 rows;
  u32 each;
};

// The first part of an item with these rows. Large parts begin at whole lines of memory.
__device__ __forceinline__ GatherPart firstPart(const GatherShape& shape, u32 item, const u8* row) {
  constexpr u32 line = 128;
  const u32 rows = __popc(__ballot_sync(0xffffffffu, row != nullptr));
  const u32 most = min(shape.partBytes, (rows == 0 ? shape.stageBytes : shape.stageBytes / rows) & ~15u);
  if (most >= shape.rowBytes) return {item, 0, shape.rowBytes, rows, shape.rowBytes};
  // Parts that are small would leave too much of a stage empty, rounded down to lines.
  const u32 unit = most < 8 * line ? 16 : line;
  const u32 whole = most & ~(unit - 1);
  const u32 parts = (shape.rowBytes + whole - 1) / whole;
  const u32 each = ((shape.rowBytes + parts - 1) / parts + unit - 1) & ~(unit - 1);
  return {item, 0, each, rows, each};
}

// Loads the part of every row into consecutive slots of a stage, lane by lane; each lane starts its own.
__device__ __forceinline__ void beginPart(const GatherPart& part, const u8* row, u8* stage, u64* barrier) {
  u32 holders = __ballot_sync(0xffffffffu, row != nullptr);
#if WEFTLINE_BULK_COPY
  const u32 lane = laneIndex();
  if (lane == 0 && holders != 0) barrierArriveExpect(barrier, __popc(holders) * part.bytes);
  __syncwarp();
  if (row != nullptr) {
    const u32 slot = __popc(holders & ((1u << lane) - 1));
    bulkLoad(stage + slot * part.each, row + part.at, part.bytes, barrier);
  }
#else
  for (u32 slot = 0; holders != 0; holders &= holders - 1, ++slot) {
    const u64 from = __shfl_sync(0xffffffffu, reinterpret_cast<u64>(row), __ffs(holders) - 1);
    warpCopyVectors(stage + slot * part.each, reinterpret_cast<const u8*>(from) + part.at, part.bytes);
  }
#endif
}

// The usual case: the compiler knows the number of rows. Two or three rows are too few loads to keep a warp busy, so two
// steps are unrolled.
template <class Element, u32 rows>
__device__ __forceinline__ void sumKnown(u32 each, const u8* stage, u8* out, u32 bytes) {
#pragma unroll (rows <= 3 ? 2 : 1)
  for (u32 column = laneIndex() * 16; column < bytes; column += lanesPerWarp * 16) {
    uint4 vectors[rows];
#pragma unroll
    for (u32 slot = 0; slot < rows; ++slot) {
      vectors[slot] = *reinterpret_cast<const uint4*>(stage + slot * each + column);
    }
    f32 sum[Element::perVector];
    Element::start(sum, vectors[0]);
#pragma unroll
    for (u32 slot = 1; slot < rows; ++slot) Element::add(sum, vectors[slot]);
    *reinterpret_cast<uint4*>(out + column) = Element::round(sum);
  }
}

// More than 8 rows, or none, whose sum is zero.
template <class Element>
__device__ __forceinline__ void sumAny(const GatherPart& part, const u8* stage, u8* out) {
  for (u32 column = laneIndex() * 16; column < part.bytes; column += lanesPerWarp * 16) {
    f32 sum[Element::perVector] = {};
#pragma unroll 1
    for (u32 slot = 0; slot < part.rows; ++slot) {
      const uint4 vector = *reinterpret_cast<const uint4*>(stage + slot * part.each + column);
      if (slot == 0) Element::start(sum, vector);
      else Element::add(sum, vector);
    }
    *reinterpret_cast<uint4*>(out + column) = Element::round(sum);
  }
}

template <class Element>
__device__ __forceinline__ void sumPart(const GatherPart& part, const u8* stage, u8* out) {
  switch (part.rows) {
    case 2:
      return sumKnown<Element, 2>(part.each, stage, out, part.bytes);
    case 3:
      return sumKnown<Element, 3>(part.each, stage, out, part.bytes);
    case 4:
      return sumKnown<Element, 4>(part.each, stage, out, part.bytes);
    case 5:
      return sumKnown<Element, 5>(part.each, stage, out, part.bytes);
    case 6:
      return sumKnown<Element, 6>(part.each, stage, out, part.bytes);
    case 7:
      return sumKnown<Element, 7>(part.each, stage, out, part.bytes);
    case 8:
      return sumKnown<Element, 8>(part.each, stage, out, part.bytes);
    default:
      return sumAny<Element>(part, stage, out);
  }
}

// All blocks of a kernel together sum all items. Element: see element.cuh. Source says what an item is made of, all 32 lanes calling together:
//   Place placeAt(item)            what this lane must know of the item; asked for one item ahead, nothing past the end
//   const u8* rowAt(place)         the row that this lane adds, in the order of lanes, or null
//   u8* outAt(item, row)           where the sum goes; null for nowhere
//   void begin(item)               once per item, before its sum is stored
template <class Element, class Source>
__device__ __forceinline__ void gatherSums(const GatherShape& shape, const Source& source, u8* memory, u64* barriers) {
  const u32 step = gridDim.x * (blockDim.x / lanesPerWarp);
  const u32 firstItem = blockIdx.x + (threadIdx.x / lanesPerWarp) * gridDim.x;
  u8* result = memory + gatherBytes(shape) - shape.partBytes;
  // The part that is summed, and the row of its item that this lane adds.
  const u8* row = source.rowAt(source.placeAt(firstItem));
  GatherPart part = firstPart(shape, firstItem, row);
  auto nextPlace = source.placeAt(firstItem + step);
  StagePair stages(memory, barriers, shape.stageBytes);
  const auto begin = [&](const GatherPart& loaded, const u8* loadedRow, u32 stage) {
    if (loaded.item < shape.items) beginPart(loaded, loadedRow, stages.at(stage), &barriers[stage]);
  };
  begin(part, row, stages.current);
  // Whether the part before had a single row, which is stored from where it was loaded.
  bool wasAlone = false;
#pragma unroll 1
  for (; part.item < shape.items; stages.swap()) {
    // The part that is loaded meanwhile.
    GatherPart next = part;
    const u8* nextRow = row;
    next.at += part.each;
    next.bytes = min(part.each, shape.rowBytes - next.at);
    if (next.at >= shape.rowBytes) {
      nextRow = source.rowAt(nextPlace);
      next = firstPart(shape, part.item + step, nextRow);
      nextPlace = source.placeAt(next.item + step);
    }
    // The other stage is free once all lanes have summed it or, for a single row, once the copy engine has read it.
    __syncwarp();
    if (wasAlone) warpWaitStoresRead<0>();
    begin(next, nextRow, stages.current ^ 1);
    if (part.at == 0) source.begin(part.item);
    if (part.rows > 0) stages.await();
    // A single row is stored as it was loaded, so its bits stay the same.
    const bool isAlone = part.rows == 1;
    if (!isAlone) {
      // The copy engine must have read the previous result.
      warpWaitStoresRead<0>();
      sumPart<Element>(part, stages.at(stages.current), result);
      warpRowWritten();
    }
    u8* out = source.outAt(part.item, row);
    if (out != nullptr) {
      // Two calls, because one call with a choice of the address made sums of 8 rows slower.
      if (isAlone) warpStoreRow(out + part.at, stages.at(stages.current), part.bytes);
      else warpStoreRow(out + part.at, result, part.bytes);
    }
    warpCommitStores();
    part = next;
    row = nextRow;
    wasAlone = isAlone;
  }
  warpWaitStoresWritten();
}

}  // namespace weftline
