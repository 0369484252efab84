// Counts for getDispatchLayout: tokens per rank, choices per expert, and the ranks of each token.
#include "weftline/abi.cuh"
#include "weftline/ep/token-layout.cuh"
#include "weftline/types.cuh"

using namespace weftline;

// The counts are zero before; sums of whole numbers do not depend on their order.
extern "C" __global__ void __launch_bounds__(256) epLayout(const __grid_constant__ EpLayoutArguments a) {
  __shared__ u32 experts[epMaxExperts];
  __shared__ u32 counts[epMaxGroupRanks];
  __shared__ u32 badCell;
  for (u32 expert = threadIdx.x; expert < a.experts; expert += blockDim.x) experts[expert] = 0;
  if (threadIdx.x < epMaxGroupRanks) counts[threadIdx.x] = 0;
  if (threadIdx.x == 0) badCell = noBadCell;
  __syncthreads();
  const Routing routing = {a.topk, nullptr, a.topkColumns, a.indexBytes, a.experts, a.ranks};
  const TokenRange range = tokensOfBlock(a.tokens);
  for (u32 token = range.first + threadIdx.x; token < range.end; token += blockDim.x) {
    const u32 mask = ranksFromChoices<WEFTLINE_COLUMNS>(routing, token, experts, &badCell);
    for (u32 r = 0; r < a.ranks; ++r) {
      const bool goes = (mask >> r) & 1;
      static_cast<u8*>(a.isTokenInRank)[static_cast<u64>(token) * a.ranks + r] = goes;
      if (goes) atomicAdd(&counts[r], 1u);
    }
  }
  __syncthreads();
  if (threadIdx.x < a.ranks) atomicAdd(static_cast<u32*>(a.numTokensPerRank) + threadIdx.x, counts[threadIdx.x]);
  u32* perExpert = static_cast<u32*>(a.numTokensPerExpert);
  for (u32 expert = threadIdx.x; expert < a.experts; expert += blockDim.x) {
    if (experts[expert] != 0) atomicAdd(perExpert + expert, experts[expert]);
  }
}
