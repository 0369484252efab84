// Rows whose words show that they have come, so that no fence and no flag has to follow them.
//
// The memory that they travel to is empty between calls: all its words are lowLatencyEmpty, which no word of such rows ever is. A
// receiver reads a part of a row until none of its words is empty, and then stores the empty word there again. When all parts have
// been read, the slot is given up, and the next rows may come.
#pragma once
#include "weftline/abi.cuh"
#include "weftline/low-latency/rank-flags.cuh"
#include "weftline/memory-order.cuh"
#include "weftline/trace.cuh"
#include "weftline/types.cuh"
#include "weftline/wait.cuh"

namespace weftline {

__device__ __forceinline__ bool hasEmptyWord(uint2 words) { return max(words.x, words.y) == lowLatencyEmpty; }

__device__ __forceinline__ bool hasEmptyWord(uint4 words) {
  return max(max(words.x, words.y), max(words.z, words.w)) == lowLatencyEmpty;
}

__device__ __forceinline__ void makeEmpty(uint2& words) { words = make_uint2(lowLatencyEmpty, lowLatencyEmpty); }

__device__ __forceinline__ void makeEmpty(uint4& words) {
  words = make_uint4(lowLatencyEmpty, lowLatencyEmpty, lowLatencyEmpty, lowLatencyEmpty);
}

template <class Words>
__device__ __forceinline__ void storeEmpty(Words* to) {
  Words words;
  makeEmpty(words);
  storeWordsSystem(to, words);
}

__device__ __forceinline__ void storeEmpty(u32* word) { storeRelaxedSystem(word, lowLatencyEmpty); }

// A wait of one thread for words of a peer, which keeps no time of its own.
struct WordWait {
  u32 polls = 0;

  // After each look that did not find them: see mustEndWait().
  __device__ __forceinline__ bool isOver(const LowLatencyRanks& all, const WaitScope& scope) {
    return mustEndWait(all, scope, ++polls);
  }
};

// One thread calls this; it returns when the word that look() reads has this call's number, or a later one, in its lower half. False
// when the caller must leave.
template <class Look>
__device__ __forceinline__ bool awaitCall(const LowLatencyRanks& all, u32 number, const WaitScope& scope, WaitFor whom,
                                          const Look& look) {
  WordWait wait;
  WEFTLINE_TRACE_LATER_WAIT();
#pragma unroll 1
  while (!epochReached(static_cast<u32>(look()), number)) {
    if (wait.polls == 0) {
      WEFTLINE_TRACE_WAIT_BEGINS(whom.peer, scope.rank);
    }
    if (!wait.isOver(all, scope)) continue;
    endWait(all, number, scope, whom);
    return false;
  }
  return true;
}

// A warp calls this; it returns when all lanes have loaded what they wait for. load() loads it; isMissing(), called by all lanes, says
// whether some of the lane's words were still empty; peer() says whose words they are. False when the warp must leave.
template <class IsMissing, class Load, class Peer>
__device__ __forceinline__ bool awaitWords(const LowLatencyRanks& all, u32 number, const WaitScope& scope, u32 channel,
                                           const IsMissing& isMissing, const Load& load, const Peer& peer) {
  constexpr u32 lanes = 0xffffffffu;
  WordWait wait;
  WEFTLINE_TRACE_LATER_WAIT();
#pragma unroll 1
  for (;;) {
    load();
    const u32 missing = __ballot_sync(lanes, isMissing());
    if (missing == 0) return true;
    const u32 of = __shfl_sync(lanes, peer(), __ffs(missing) - 1);
    // One warp speaks for its block.
    if (threadIdx.x == 0 && wait.polls == 0) {
      WEFTLINE_TRACE_WAIT_BEGINS(of, scope.rank);
    }
    if (!__any_sync(lanes, laneIndex() == 0 && wait.isOver(all, scope))) continue;
    // Nothing is kept over the call.
    if (laneIndex() == 0) endWait(all, number, scope, {of, channel});
    return false;
  }
}

}  // namespace weftline
