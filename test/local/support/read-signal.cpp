// readSignal of signal.cuh, which the test puts in here, on threads of a processor that stand for those of a block or a warp:
// they poll a counter, and all must leave the loop in the same turn, or their next barriers pair wrongly.
#include <atomic>
#include <barrier>
#include <cstdio>
#include <thread>
#include <vector>

#define __device__
#define __forceinline__ inline
#define __shared__ static

constexpr unsigned MEMBERS = 32;
struct Extent { unsigned x, y, z; };
thread_local Extent threadIdx;
constexpr Extent blockDim = {MEMBERS, 1, 1};
std::barrier<> together(MEMBERS);
unsigned long long exchanged[MEMBERS];

inline void __syncthreads() { together.arrive_and_wait(); }
inline int __syncthreads_or(int) { return 0; }
inline void __syncwarp(unsigned) { together.arrive_and_wait(); }
inline unsigned __activemask() { return ~0u; }
inline int __ffs(unsigned mask) { return __builtin_ffs(mask); }
template <class Value>
Value __shfl_sync(unsigned, Value value, int from) {
  together.arrive_and_wait();
  exchanged[threadIdx.x] = value;
  together.arrive_and_wait();
  return static_cast<Value>(exchanged[from]);
}

namespace weftline {
using u32 = unsigned int;
using u64 = unsigned long long;
constexpr u32 lanesPerWarp = 32;
inline u32 laneIndex() { return threadIdx.x; }
// The peer: the counter goes on between the looks of any two threads.
std::atomic<u64> looks{0};
inline u64 loadAcquireSystem(const u64*) { return looks++ / 3; }
}  // namespace weftline

// LEVEL
// READ_SIGNAL

template <weftline::Level level>
unsigned countParted() {
  std::atomic<unsigned> parted{0};
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < MEMBERS; i++) threads.emplace_back([&, i] {
    threadIdx = {i, 0, 0};
    for (unsigned long long round = 1; round <= 5; round++) {
      const unsigned long long wanted = round * 5;
      // Bounded, so that threads which part do not wait for each other for ever.
      unsigned long long seen = 0;
      do {
        seen = weftline::readSignal<level>(nullptr);
        together.arrive_and_wait();
        exchanged[i] = seen;
        together.arrive_and_wait();
        for (unsigned other = 0; other < MEMBERS; other++) if ((exchanged[other] < wanted) != (seen < wanted)) parted = 1;
        together.arrive_and_wait();
      } while (!parted && seen < wanted);
      if (parted) break;
    }
  });
  for (auto& thread : threads) thread.join();
  weftline::looks = 0;
  return parted;
}

int main() {
  std::printf("%u %u\n", countParted<weftline::Level::Block>(), countParted<weftline::Level::Warp>());
}
