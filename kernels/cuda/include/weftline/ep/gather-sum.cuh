// Sums of rows that lie anywhere: a warp pulls the rows of one item through shared memory in chunks of columns, adds them
// in f32 in a given order and rounds once to the rows' dtype. While one chunk is summed the copy engine brings the next ones.
#pragma once
#include "weftline/copy/bulk-copy.cuh"
#include "weftline/copy/stage-ring.cuh"
#include "weftline/ep/element.cuh"
#include "weftline/types.cuh"

namespace weftline {

// What all items of one kernel share.
struct GatherShape {
  u32 items;
  u32 rowBytes;
  // Shared memory of a warp: for the parts of all rows that are summed at once, so many times; and for their sum.
  u32 stages;
  u32 stageBytes;
  u32 partBytes;
};

// Rows added before those of an item, a row per item each; null for none.
struct Biases {
  const void* first;
  const void* second;
};

// Shared memory of one warp, besides its barriers, one for each stage.
__device__ __forceinline__ u64 gatherBytes(const GatherShape& shape) {
  return static_cast<u64>(shape.stages) * shape.stageBytes + shape.partBytes;
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

// The usual case, with everything known to the compiler: `rows` rows, no bias.
template <class Element, u32 rows>
__device__ __forceinline__ void sumKnown(u32 each, const u8* stage, u8* out, u32 bytes) {
#pragma unroll 2
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

// Any number of rows, after the biases. One addend alone travels bit for bit; none is zero.
template <class Element>
__device__ __forceinline__ void sumAny(const GatherShape& shape, const Biases& biases, const GatherPart& part,
                                       const u8* stage, u8* out) {
  const u64 offset = static_cast<u64>(part.item) * shape.rowBytes + part.at;
  const u8* addends[2] = {static_cast<const u8*>(biases.first), static_cast<const u8*>(biases.second)};
  const u32 count = part.rows + (addends[0] != nullptr) + (addends[1] != nullptr);
  for (u32 column = laneIndex() * 16; column < part.bytes; column += lanesPerWarp * 16) {
    f32 sum[Element::perVector] = {};
    uint4 only = make_uint4(0, 0, 0, 0);
    bool started = false;
    for (u32 index = 0; index < part.rows + 2; ++index) {
      const u8* from = index < 2 ? (addends[index] == nullptr ? nullptr : addends[index] + offset)
                                 : stage + (index - 2) * part.each;
      if (from == nullptr) continue;
      only = *reinterpret_cast<const uint4*>(from + column);
      if (started) Element::add(sum, only);
      else Element::start(sum, only);
      started = true;
    }
    *reinterpret_cast<uint4*>(out + column) = count <= 1 ? only : Element::round(sum);
  }
}

template <class Element>
__device__ __forceinline__ void sumPart(const GatherShape& shape, const Biases& biases, const GatherPart& part,
                                        const u8* stage, u8* out) {
  const bool biased = biases.first != nullptr || biases.second != nullptr;
  switch (biased ? 0 : part.rows) {
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
      return sumAny<Element>(shape, biases, part, stage, out);
  }
}

// The parts of a warp, one behind the other. Places are read one item ahead, so that nobody waits for them. A kernel has two
// cursors, one for loading and one for adding up: what the source reads must not change before both are done.
template <class Source>
struct GatherCursor {
  GatherPart part;
  // Of the part's item, which this lane adds.
  const u8* row;
  typename Source::Place nextPlace;

  __device__ __forceinline__ GatherCursor(const GatherShape& shape, const Source& source, u32 item, u32 step)
      : row(source.rowAt(source.placeAt(item))), nextPlace(source.placeAt(item + step)) {
    part = firstPart(shape, item, row);
  }

  __device__ __forceinline__ void advance(const GatherShape& shape, const Source& source, u32 step) {
    part.at += part.each;
    part.bytes = min(part.each, shape.rowBytes - part.at);
    if (part.at < shape.rowBytes) return;
    row = source.rowAt(nextPlace);
    part = firstPart(shape, part.item + step, row);
    nextPlace = source.placeAt(part.item + step);
  }
};

// All blocks of a kernel together sum all items. Element: see element.cuh. Source says what an item is made of, all 32 lanes calling together:
//   Place placeAt(item)            what this lane must know of the item; asked for one item ahead, nothing past the end
//   const u8* rowAt(place)         the row that this lane adds, in the order of lanes, or null
//   u8* outAt(item, row)           where the sum goes; null for nowhere
//   void begin(item)               once per item, before its sum is stored
template <class Element, class Source>
__device__ __forceinline__ void gatherSums(const GatherShape& shape, const Source& source, const Biases& biases,
                                           u8* memory, u64* barriers) {
  const u32 step = gridDim.x * (blockDim.x / lanesPerWarp);
  const u32 firstItem = blockIdx.x + (threadIdx.x / lanesPerWarp) * gridDim.x;
  u8* result = memory + static_cast<u64>(shape.stages) * shape.stageBytes;
  // What is loaded next, and what is summed next.
  GatherCursor<Source> loaded(shape, source, firstItem, step);
  GatherCursor<Source> summed = loaded;
  StageRing ring(memory, barriers, shape.stages, shape.stageBytes);
  const auto loadNext = [&](u32 stage) {
    if (loaded.part.item >= shape.items) return;
    beginPart(loaded.part, loaded.row, ring.at(stage), &ring.barriers[stage]);
    loaded.advance(shape, source, step);
  };
  ring.fill(loadNext);
#pragma unroll 1
  while (summed.part.item < shape.items) {
    // All lanes have summed what that stage held.
    __syncwarp();
    loadNext(ring.free);
    const GatherPart& part = summed.part;
    if (part.at == 0) source.begin(part.item);
    if (part.rows > 0) ring.await();
    // The result before must have left its slot.
    warpWaitStoresRead<0>();
    sumPart<Element>(shape, biases, part, ring.at(ring.used), result);
    warpRowWritten();
    u8* out = source.outAt(part.item, summed.row);
    if (out != nullptr) warpStoreRow(out + part.at, result, part.bytes);
    warpCommitStores();
    summed.advance(shape, source, step);
    ring.advance();
  }
  warpWaitStoresWritten();
}

}  // namespace weftline
