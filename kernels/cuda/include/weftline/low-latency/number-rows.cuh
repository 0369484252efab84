// What a token's choices say, read once by those who send its row and once by those who number it.
//
// Rows by expert lie at the receiver where their token stands at the sender, so a row is sent without knowing anything about others.
// Its place at its experts depends on all tokens before it: the blocks that do not send count the choices of those, and four warps of
// each number its tokens. The last block counts all choices, and tells them before the links are full of rows. Rows by rank stand
// close together, and are numbered before they are sent.
#pragma once
#include "weftline/abi.cuh"
#include "weftline/fp8.cuh"
#include "weftline/low-latency/block-share.cuh"
#include "weftline/low-latency/rank-flags.cuh"
#include "weftline/types.cuh"

namespace weftline {

constexpr u32 columnsPerVector = 8;
// That encode a group of columns together.
constexpr u32 lanesPerGroup = fp8Group / columnsPerVector;

// Tokens of a block that are numbered, and sent, together.
constexpr u32 lowLatencyBatch = 8;
// Threads of a block: those that bring rows to peers, then those that number.
constexpr u32 lowLatencyNumbering = 128;
constexpr u32 lowLatencySending = lowLatencyThreads - lowLatencyNumbering;
static_assert(lowLatencyBatch <= lowLatencySending / lanesPerWarp, "a warp for the choices of each token");

// Shared memory for numbers by expert: of the sending half, then of the receiving one. A function, so that the compiler sees that
// it is shared memory.
__device__ __forceinline__ u32* sharedExperts() {
  __shared__ u32 numbers[2 * epMaxExperts];
  return numbers;
}

// How many of the tokens so far go to each expert.
__device__ __forceinline__ u32* sentToExperts() { return sharedExperts(); }

// The last block counts here, until it has told them, how many of all tokens go to each expert.
__device__ __forceinline__ u32* allToExperts() { return sharedExperts() + epMaxExperts; }

struct LowLatencySendShared {
  // Slots at all peers are free, or the block must leave.
  bool isFree;
  // Rows by rank: how many of the tokens so far go to each.
  u32 ranks[lowLatencyMostRanks];
  // Rows of the tokens of a batch at each rank, or -1. Rows by expert have those of two batches in turn, others the first ones.
  i32 rows[2][lowLatencyBatch][lowLatencyMostRanks];
  // Scales of the groups of columns that the threads have encoded, of two turns.
  f32 scales[2][lowLatencySending / lanesPerGroup];
  // Expert of each choice or -1, and row among this rank's for it.
  i32 choices[lowLatencyBatch][lanesPerWarp];
  u32 places[lowLatencyBatch][lanesPerWarp];
};

constexpr i32 noExpert = -1;
constexpr i32 badExpert = -2;

// A choice as it was given, on its way: what has to wait for it comes after the loads of others.
__device__ __forceinline__ int2 loadChoice(const LowLatencyDispatchArguments& a, u64 cell) {
  if (a.indexBytes == 8) return static_cast<const int2*>(a.topk)[cell];
  return make_int2(static_cast<const i32*>(a.topk)[cell], 0);
}

__device__ __forceinline__ i32 expertOf(const LowLatencyDispatchArguments& a, int2 choice) {
  const i32 sign = choice.x >> 31;
  const bool isWhole = a.indexBytes != 8 || choice.y == sign;
  return isWhole && choice.x >= noExpert && choice.x < static_cast<i32>(a.experts) ? choice.x : badExpert;
}

// The lane's choice of a token.
__device__ __forceinline__ i32 laneChoice(const LowLatencyDispatchArguments& a, u32 token) {
  if (laneIndex() >= a.topkColumns) return noExpert;
  return expertOf(a, loadChoice(a, static_cast<u64>(token) * a.topkColumns + laneIndex()));
}

// The rank that has an expert, by a multiplication: exact, for there are at most epMaxExperts.
struct ExpertRank {
  u32 factor;

  __device__ __forceinline__ explicit ExpertRank(const LowLatencyDispatchArguments& a) : factor(a.rankFactor) {}

  __device__ __forceinline__ u32 operator()(i32 expert) const {
    const u32 number = static_cast<u32>(expert);
    return factor == 0 ? number : __umulhi(number, factor);
  }

  // Bits of the ranks that have one of the lanes' experts.
  __device__ __forceinline__ u32 ofLanes(i32 expert) const {
    return __reduce_or_sync(0xffffffffu, expert >= 0 ? 1u << (*this)(expert) : 0u);
  }
};

// Index of a thread among those that number; lowLatencyNumbering or more for all others. By rank, the last warps of a block number and
// the others send. By expert, the first warps number: the last ones plan meanwhile, and rows are placed later.
__device__ __forceinline__ u32 numberingThread() {
  return lowLatencyIsRankMajor ? threadIdx.x - lowLatencySending : threadIdx.x;
}

__device__ __forceinline__ bool isNumbering() { return numberingThread() < lowLatencyNumbering; }
__device__ __forceinline__ bool isSending() { return threadIdx.x < lowLatencySending; }

// A barrier of so many threads of a block. All lanes of a warp come to it together, whatever ways they took before.
template <u32 barrier, u32 threads>
__device__ __forceinline__ void meetThreads() {
  __syncwarp();
  asm volatile("bar.sync %0, %1;" ::"n"(barrier), "n"(threads) : "memory");
}

// The threads that number wait for each other, and so do the others.
__device__ __forceinline__ void meetNumbering() { meetThreads<1, lowLatencyNumbering>(); }
__device__ __forceinline__ void meetSending() { meetThreads<2, lowLatencySending>(); }

// Once per kernel: the other threads of a block that sends wait here until its senders have begun; the senders do not wait.
__device__ __forceinline__ void awaitSending() { meetThreads<3, lowLatencyThreads>(); }
__device__ __forceinline__ void letOthersGoOn() {
  __syncwarp();
  asm volatile("bar.arrive 3, %0;" ::"n"(lowLatencyThreads) : "memory");
}

// Rows by expert: the first half of the blocks send rows, the others number choices and place what comes. Stores to peers wait for the
// links, and all other loads and stores of the same multiprocessor wait behind them.
__device__ __forceinline__ u32 sendingBlocks() { return max(gridDim.x / 2, 1u); }
__device__ __forceinline__ BlockTeam senders() { return {blockIdx.x, sendingBlocks()}; }
__device__ __forceinline__ BlockTeam numberers() {
  if (gridDim.x == 1) return allBlocks();
  return {blockIdx.x - sendingBlocks(), gridDim.x - sendingBlocks()};
}

// The blocks that place rows whose words show that they have come: all of them in a kernel behind a hook, which sends nothing.
__device__ __forceinline__ BlockTeam placersOf(const LowLatencyDispatchArguments& a) {
  return (a.phases & lowLatencyPhaseSend) != 0 ? numberers() : allBlocks();
}

// All lanes, which have choices of whole tokens side by side, call this: an expert that an earlier choice of the same token names becomes
// none. `column`: number of the lane's choice. A loop, because matching all lanes at once takes longer.
template <u32 count>
__device__ __forceinline__ void dropRepeated(i32 (&experts)[count], u32 column, u32 columns) {
  bool isRepeated[count] = {};
#pragma unroll 1
  for (u32 back = 1; back < columns; ++back) {
#pragma unroll
    for (u32 j = 0; j < count; ++j) {
      const i32 other = __shfl_up_sync(0xffffffffu, experts[j], back);
      isRepeated[j] = isRepeated[j] || (back <= column && other == experts[j]);
    }
  }
#pragma unroll
  for (u32 j = 0; j < count; ++j) {
    if (isRepeated[j]) experts[j] = noExpert;
  }
}

// All threads count the experts that tokens 0 to begin - 1 go to, and in the last block also those of all tokens: an expert that a
// token names more than once gets one row of it. Each thread calls meanwhile() once, while its first choices are on their way.
template <class Meanwhile>
__device__ __forceinline__ void countChoices(const LowLatencyDispatchArguments& a, u32 begin, const Meanwhile& meanwhile) {
  // Only a few, because every thread executes the instructions for all of them.
  constexpr u32 together = 2;
  const u32 before = begin * a.topkColumns;
  const u32 cells = isLastBlock() ? a.tokens * a.topkColumns : before;
  // A warp takes as many whole tokens as it has lanes for.
  const Divisor byColumns(a.topkColumns);
  const u32 lanes = byColumns.quotient(lanesPerWarp) * a.topkColumns;
  const u32 column = laneIndex() - byColumns.quotient(laneIndex()) * a.topkColumns;
  const u32 step = lowLatencyThreads / lanesPerWarp * lanes;
  const u32 mine = laneIndex() < lanes ? threadIdx.x / lanesPerWarp * lanes + laneIndex() : cells;
  u32 first = 0;
#pragma unroll 1
  do {
    int2 choices[together];
#pragma unroll
    for (u32 j = 0; j < together; ++j) {
      const u32 cell = mine + first + j * step;
      choices[j] = make_int2(noExpert, noExpert);
      if (cell < cells) choices[j] = loadChoice(a, cell);
    }
    if (first == 0) {
      for (u32 expert = threadIdx.x; expert < a.experts; expert += lowLatencyThreads) {
        sentToExperts()[expert] = 0;
        if (isLastBlock()) allToExperts()[expert] = 0;
      }
      meanwhile();
      __syncwarp();
      __syncthreads();
    }
    i32 experts[together];
#pragma unroll
    for (u32 j = 0; j < together; ++j) experts[j] = expertOf(a, choices[j]);
    dropRepeated(experts, column, a.topkColumns);
#pragma unroll
    for (u32 j = 0; j < together; ++j) {
      const u32 cell = mine + first + j * step;
      if (cell >= cells || experts[j] < 0) continue;
      if (cell < before) atomicAdd(&sentToExperts()[experts[j]], 1u);
      if (isLastBlock()) atomicAdd(&allToExperts()[experts[j]], 1u);
    }
    __syncwarp();
    first += together * step;
  } while (first < cells);
  __syncthreads();
}

// Bits of the ranks that a token goes to.
__device__ __forceinline__ u32 ranksOfToken(const LowLatencyDispatchArguments& a, u32 token, const ExpertRank& rankOf) {
  constexpr u32 together = 8;
  u32 ranks = 0;
  for (u32 first = 0; first < a.topkColumns; first += together) {
    int2 choices[together];
#pragma unroll
    for (u32 j = 0; j < together; ++j) {
      choices[j] = make_int2(noExpert, noExpert);
      if (first + j < a.topkColumns) choices[j] = loadChoice(a, static_cast<u64>(token) * a.topkColumns + first + j);
    }
#pragma unroll
    for (u32 j = 0; j < together; ++j) {
      const i32 expert = expertOf(a, choices[j]);
      if (expert >= 0) ranks |= 1u << rankOf(expert);
    }
  }
  return ranks;
}

// Adds one to the count of each bit.
__device__ __forceinline__ void countBits(u32* counts, u32 bits) {
  for (; bits != 0; bits &= bits - 1) atomicAdd(&counts[__ffs(bits) - 1], 1u);
}

// Rows by rank, by all threads: the ranks of tokens 0 to end - 1. Visible behind a synchronisation.
__device__ __forceinline__ void countRanks(const LowLatencyDispatchArguments& a, LowLatencySendShared& shared, u32 end,
                                           const ExpertRank& rankOf) {
  for (u32 token = threadIdx.x; token < end; token += blockDim.x) countBits(shared.ranks, ranksOfToken(a, token, rankOf));
}

// A warp tells where a token's row goes; `row` is that at the lane's rank, if it gets it.
__device__ __forceinline__ void keepRows(const LowLatencyDispatchArguments& a, i32 (&rows)[lowLatencyMostRanks], u32 ranks, i32 row,
                                         u32 token) {
  if constexpr (lowLatencyIsMasked) ranks &= a.active;
  if (laneIndex() >= a.ranks) return;
  const i32 kept = (ranks >> laneIndex() & 1u) != 0 ? row : -1;
  rows[laneIndex()] = kept;
  static_cast<i32*>(a.sentRows)[static_cast<u64>(token) * a.ranks + laneIndex()] = kept;
}

// Rows by rank, by one warp: tokens first to first + count - 1, in their order.
__device__ __forceinline__ void numberRanks(const LowLatencyDispatchArguments& a, LowLatencySendShared& shared, u32 first,
                                            u32 count, const ExpertRank& rankOf) {
  const u32 lane = laneIndex();
  u32 next = lane < a.ranks ? shared.ranks[lane] : 0;
  for (u32 local = 0; local < count; ++local) {
    const u32 ranks = rankOf.ofLanes(laneChoice(a, first + local));
    keepRows(a, shared.rows[0][local], ranks, static_cast<i32>(next), first + local);
    next += ranks >> lane & 1u;
  }
  if (lane < a.ranks) shared.ranks[lane] = next;
}

// One warp calls this, once countChoices() has counted all tokens before: the choices of tokens first to first + count - 1, in token order.
// Lane j has choice j. Choices of one expert have one place; one that is out of range ends the call.
__device__ inline void numberChoices(const LowLatencyDispatchArguments& a, LowLatencySendShared& shared, u32 first, u32 count,
                                     u32 number, const WaitScope& scope) {
  const u32 lane = laneIndex();
  const bool isColumn = lane < a.topkColumns;
  for (u32 local = 0; local < count; ++local) {
    const u64 cell = static_cast<u64>(first + local) * a.topkColumns + lane;
    const i32 expert = shared.choices[local][lane];
    const u32 equals = __match_any_sync(0xffffffffu, expert);
    const u32 bad = __ballot_sync(0xffffffffu, expert == badExpert);
    if (bad != 0 && lane == static_cast<u32>(__ffs(bad)) - 1) {
      failCall({a.peers, a.ranks, a.rank}, scope, {a.rank, waitWord(lowLatencyWaitRows, a.call)},
               {lowLatencyFailureBadChoice, number, static_cast<u32>(cell), 0});
    }
    const bool isGood = expert >= 0;
    if constexpr (lowLatencyIsElastic) {
      if (isColumn) static_cast<i32*>(a.keptChoices)[cell] = isGood ? expert : noExpert;
    }
    u32 place = 0;
    if constexpr (!lowLatencyIsRankMajor) {
      const bool isFirst = static_cast<u32>(__ffs(equals)) - 1 == lane;
      if (isGood) place = sentToExperts()[expert];
      // All lanes with this expert have read its place.
      __syncwarp();
      if (isGood && isFirst) sentToExperts()[expert] = place + 1;
    }
    // The records of this token are not sent: whoever waits for them finds the failure instead.
    const bool isKept = !lowLatencyRowsShow || bad == 0;
    shared.choices[local][lane] = !isKept ? badExpert : isGood ? expert : noExpert;
    shared.places[local][lane] = place;
    if (isColumn && a.sentPlaces != nullptr) {
      static_cast<int2*>(a.sentPlaces)[cell] = make_int2(isGood ? expert : noExpert, static_cast<i32>(place));
    }
    // The next token may have the same experts in other lanes.
    __syncwarp();
  }
}

}  // namespace weftline
