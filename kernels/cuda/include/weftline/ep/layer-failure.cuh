// Why a layer's dispatch with a bound on its rows failed, for a host that does not wait for it.
#pragma once
#include "weftline/abi.cuh"
#include "weftline/ep/exchange-record.cuh"
#include "weftline/memory-order.cuh"
#include "weftline/types.cuh"

namespace weftline {

// See LayerHostPlan.
struct LayerFailure {
  u32 status;
  u32 detail;
  u32 culprit;
  u32 extent;
};

// One thread calls this. The first failure stays until the host has taken note.
__device__ __forceinline__ void keepFailure(LayerHostPlan* host, const LayerFailure& failure, u32 sequence) {
  if (!isJudged(failure.status) || loadRelaxedSystem(&host->failedSequence) != 0) return;
  host->failedStatus = failure.status;
  host->failedDetail = failure.detail;
  host->failedCulprit = failure.culprit;
  host->failedExtent = failure.extent;
  // ORDER: publishes the reason.
  storeReleaseSystem(&host->failedSequence, sequence);
}

}  // namespace weftline
