// Kernels that are launched while their predecessor in the stream still runs (launch attribute of sm_90 and newer).
#pragma once
#include "weftline/types.cuh"

namespace weftline {

// ORDER: the predecessor is over, and what it wrote is visible. Nothing of its memory may be touched before.
__device__ __forceinline__ void awaitPredecessor() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// All threads call this, behind the last wait for a peer: blocks of the next kernel may take multiprocessors from now on. Earlier they
// could take those that a peer's kernel on this GPU needs, for which this one waits.
__device__ __forceinline__ void letSuccessorStart() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

}  // namespace weftline
