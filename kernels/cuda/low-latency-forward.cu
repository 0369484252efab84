// What a low-latency dispatch across hosts has before each half of the kernel of one host: lowLatencySendHosts sends each other host
// one message, and lowLatencyForward puts the rows of such messages to the ranks of this host, as their source would.
#define WEFTLINE_GROUP 2
#include "weftline/abi.cuh"
#include "weftline/launch-order.cuh"
#include "weftline/low-latency/host-message.cuh"
#include "weftline/low-latency/number-rows.cuh"
#include "weftline/low-latency/rank-flags.cuh"
#include "weftline/low-latency/row-part.cuh"
#include "weftline/low-latency/send-rows.cuh"
#include "weftline/low-latency/send-vectors.cuh"
#include "weftline/trace.cuh"
#include "weftline/types.cuh"

using namespace weftline;

namespace {

struct SendHostsShared {
  // Bits of the ranks of each way's host, and how many of the tokens so far go there.
  u32 ranksOfWay[epMaxWays];
  u32 rowsOfWay[epMaxWays];
  // Rows in the messages of the tokens of a batch, or -1.
  i32 rows[lowLatencyBatch][epMaxWays];
};

__device__ __forceinline__ DispatchMessage outMessageOf(const LowLatencyDispatchArguments& a, u32 way) {
  const EpNetwork& network = networkOf(a);
  return DispatchMessage(a, networkAt(network, outMessage(network, a, way)), a.tokens, network.wayRanks[way]);
}

// All threads call this: how many rows of tokens 0 to end - 1 go each way and, by rank, to each rank. Visible behind a synchronisation.
__device__ __forceinline__ void countBefore(const LowLatencyDispatchArguments& a, LowLatencySendShared& shared,
                                            SendHostsShared& hosts, u32 end, const ExpertRank& rankOf) {
  const u32 ways = networkOf(a).ways;
  for (u32 token = threadIdx.x; token < end; token += blockDim.x) {
    const u32 ranks = ranksOfToken(a, token, rankOf);
    if constexpr (lowLatencyIsRankMajor) countBits(shared.ranks, ranks);
    for (u32 way = 0; way < ways; ++way) {
      if ((ranks & hosts.ranksOfWay[way]) != 0) atomicAdd(&hosts.rowsOfWay[way], 1u);
    }
  }
}

// One warp calls this: the rows of tokens first to first + count - 1 in the messages and, by rank, at all ranks.
__device__ __forceinline__ void numberWays(const LowLatencyDispatchArguments& a, LowLatencySendShared& shared,
                                           SendHostsShared& hosts, u32 first, u32 count, const ExpertRank& rankOf) {
  const u32 ways = networkOf(a).ways;
  const u32 lane = laneIndex();
  const u32 ofWay = lane < ways ? hosts.ranksOfWay[lane] : 0;
  u32 next = lane < ways ? hosts.rowsOfWay[lane] : 0;
  u32 nextAtRank = lowLatencyIsRankMajor ? shared.ranks[lane] : 0;
  for (u32 local = 0; local < count; ++local) {
    const u32 ranks = rankOf.ofLanes(laneChoice(a, first + local));
    const bool goesThere = (ranks & ofWay) != 0;
    const i32 row = goesThere ? static_cast<i32>(next) : -1;
    if (lane < ways) {
      hosts.rows[local][lane] = row;
      static_cast<i32*>(a.sentWays)[static_cast<u64>(first + local) * ways + lane] = row;
    }
    next += goesThere ? 1 : 0;
    if constexpr (lowLatencyIsRankMajor) {
      shared.rows[0][local][lane] = (ranks >> lane & 1u) != 0 ? static_cast<i32>(nextAtRank) : -1;
      nextAtRank += ranks >> lane & 1u;
    }
  }
  if (lane < ways) hosts.rowsOfWay[lane] = next;
  if constexpr (lowLatencyIsRankMajor) shared.ranks[lane] = nextAtRank;
}

// All threads write where the tokens of a batch stand, and their choices, to the messages.
__device__ __forceinline__ void writeBeside(const LowLatencyDispatchArguments& a, const LowLatencySendShared& shared,
                                            const SendHostsShared& hosts, u32 first, u32 count, u32 number) {
  const EpNetwork& network = networkOf(a);
  const u32 warp = threadIdx.x / lanesPerWarp;
  const u32 lane = laneIndex();
  for (u32 item = warp; item < count * network.ways; item += blockDim.x / lanesPerWarp) {
    const u32 local = item / network.ways;
    const u32 way = item - local * network.ways;
    const u32 token = first + local;
    const DispatchMessage message = outMessageOf(a, way);
    if (lane == 0) message.placesOf(token)[0] = hosts.rows[local][way];
    const u32 there = hosts.ranksOfWay[way];
    if (lowLatencyIsRankMajor && (there >> lane & 1u) != 0) {
      message.placesOf(token)[1 + __popc(there & ((1u << lane) - 1))] = shared.rows[0][local][lane];
    }
    const f32 weight = weightAt(a, token);
    if (lane >= a.topkColumns) continue;
    const i32 expert = shared.choices[local][lane];
    message.choicesOf(token)[lane] = {expert < 0 ? noExpert : expert, shared.places[local][lane], weight, number};
  }
}

// All threads write the rows of a batch, quantised, to the messages.
__device__ __forceinline__ void writeRows(const LowLatencyDispatchArguments& a, const SendVectors& vectors,
                                          const SendHostsShared& hosts, u32 first, u32 count) {
  const u32 ways = networkOf(a).ways;
  const Divisor byRow(vectors.padded);
  // Lanes of a group of columns come to an end together.
  for (u32 at = threadIdx.x; at < count * vectors.padded; at += blockDim.x) {
    const u32 local = byRow.quotient(at);
    const u32 vector = at - local * vectors.padded;
    const uint4 encoded = vectors.encode(vectors.load(first, count, {local, vector}));
    if (vector >= vectors.perRow) continue;
    for (u32 way = 0; way < ways; ++way) {
      const i32 row = hosts.rows[local][way];
      if (row < 0) continue;
      const DispatchMessage message = outMessageOf(a, way);
      if constexpr (lowLatencyIsBf16) {
        reinterpret_cast<uint4*>(message.rowAt(row))[vector] = encoded;
      } else {
        reinterpret_cast<uint2*>(message.rowAt(row))[vector] = make_uint2(encoded.x, encoded.y);
        const u32 group = vector / lanesPerGroup;
        if (vector % lanesPerGroup != 0) continue;
        storeScale(a, message.scalesOf(row) + scaleWordOf(a, group) * 4, group, __uint_as_float(encoded.z));
      }
    }
  }
}

// One thread per way of the last block to come: the message goes.
__device__ __forceinline__ void sendWay(const LowLatencyDispatchArguments& a, u32 way, u32 number, const WaitScope& scope) {
  const EpNetwork& network = networkOf(a);
  const LowLatencyHostsDone& done = hostsDoneOf(a);
  const u32 bad = __ldcg(&done.badChoice);
  const u32 rows = __ldcg(&done.rows[way]);
  const DispatchMessage message = outMessageOf(a, way);
  auto* header = reinterpret_cast<LowLatencyHostMessage*>(message.header);
  header->tokens = a.tokens;
  header->rows = rows;
  header->call = a.call;
  header->number = number;
  header->failure = bad == 0 ? lowLatencyFailureNone : lowLatencyFailureBadChoice;
  header->detail = ~bad;
  const u32 slot = network.waySlot[way];
  const u32 channel = channelOf(network, slot);
  sendMessage(ranksOf(a), network, wayRequest(network, way, channel), channel, inMessage(network, a, slot),
              outMessage(network, a, way), bad == 0 ? message.bytes(rows) : sizeof(LowLatencyHostMessage), networkCellRows, scope,
              {network.wayForwarder[way], waitWord(lowLatencyWaitRows, a.call)});
}

// The message of a source as it came, whose numbers are checked here once.
struct Arrived {
  u32 tokens;
  u32 rows;
  u32 call;
  u32 number;
  u32 failure;
  u32 detail;
};

struct ForwardShared {
  Arrived arrived;
  // The row in the message of each token of a batch.
  i32 rows[lowLatencyBatch];
  // And where it stands at each rank of this host, or -1.
  i32 places[lowLatencyBatch][epMaxRanks];
  // 'rank-major': rows at each rank of this host.
  u32 ranks[epMaxRanks];
};

// All threads call this: the message of the source is here, and all ranks of this host have let its slot go. False when the block must
// leave.
__device__ __forceinline__ bool awaitMessage(const LowLatencyDispatchArguments& a, ForwardShared& shared, u32 slot, u32 number,
                                             u32 uses, const WaitScope& scope) {
  const EpNetwork& network = networkOf(a);
  const u32 source = network.servedRank[slot];
  const LowLatencyRanks all = ranksOf(a);
  bool isHere = true;
  if (threadIdx.x == 0) {
    const bool isTimed = a.waitStats != nullptr && blockIdx.x == 0;
    const u64 began = isTimed ? globalTimer() : 0;
    isHere = awaitCell(all, network, networkCellRows, number, scope, {source, waitWord(lowLatencyWaitRows, a.call)});
    if (isTimed) static_cast<u64*>(a.waitStats)[source] += globalTimer() - began;
    if (isHere) {
      const volatile u32* words = reinterpret_cast<const volatile u32*>(networkAt(network, inMessage(network, a, slot)));
      const Arrived told = {words[0], words[1], words[2], words[3], words[4], words[5]};
      shared.arrived = told;
      // What is in another call, or fails, brings no rows.
      const bool isSame = told.call == a.call && told.failure == lowLatencyFailureNone;
      shared.arrived.tokens = isSame ? min(told.tokens, a.maxTokens) : 0;
      shared.arrived.rows = min(told.rows, shared.arrived.tokens);
    }
  }
  const u32 here = threadIdx.x - lanesPerWarp;
  if (here < ranksHere(a)) {
    const u32 r = network.localRanks[here];
    const LowLatencyFlags* flags = flagsAt(a.peers[source], r);
    isHere = awaitPeer(all, PlainWord{&flags->released[a.slot], flags}, uses, scope, {r, waitWord(lowLatencyWaitSlot, a.call)});
  }
  if (threadIdx.x < epMaxRanks) shared.ranks[threadIdx.x] = 0;
  return __syncthreads_and(isHere);
}

// A warp puts what goes beside the rows of a token to all ranks of this host. Lane j has choice j.
__device__ __forceinline__ void forwardBeside(const LowLatencyDispatchArguments& a, ForwardShared& shared,
                                              const DispatchMessage& message, u32 slot, u32 local, u32 token) {
  const EpNetwork& network = networkOf(a);
  const u32 source = network.servedRank[slot];
  const u32 lane = laneIndex();
  const u32 here = ranksHere(a);
  LowLatencyChoice choice = {noExpert, 0, 0.0f, 0};
  if (lane < a.topkColumns) choice = message.choicesOf(token)[lane];
  i32 row = message.placesOf(token)[0];
  if (row >= static_cast<i32>(shared.arrived.rows)) row = -1;
  if (lane == 0) shared.rows[local] = row;
  for (u32 index = 0; index < here; ++index) {
    const u32 r = network.localRanks[index];
    const i32 ofRank = choice.expert - static_cast<i32>(r * a.expertsPerRank);
    const bool isThere = choice.expert >= 0 && ofRank >= 0 && ofRank < static_cast<i32>(a.expertsPerRank);
    const bool goesThere = __any_sync(0xffffffffu, isThere) && row >= 0;
    i32 place = goesThere ? static_cast<i32>(token) : -1;
    if (lowLatencyIsRankMajor && goesThere) {
      place = message.placesOf(token)[1 + index];
      if (place >= static_cast<i32>(a.maxTokens)) place = -1;
    }
    if (lane == 0) {
      shared.places[local][index] = place;
      if (row >= 0) {
        const u64 cell = (static_cast<u64>(slot) * a.maxTokens + row) * here + index;
        static_cast<i32*>(a.servedRows)[cell] = place;
      }
    }
    if (lane >= a.topkColumns) continue;
    const i32 chosen = isThere ? ofRank : noExpert;
    if constexpr (!lowLatencyIsRankMajor) {
      u8* at = slotOf(a, r, source, a.choicesOffset, token, a.topkColumns * sizeof(LowLatencyChoice)) +
               lane * sizeof(LowLatencyChoice);
      // The fields of a LowLatencyChoice.
      storeRelaxedSystem(at, static_cast<u32>(chosen) | static_cast<u64>(choice.place) << 32,
                         __float_as_uint(choice.weight) | static_cast<u64>(choice.number) << 32);
      continue;
    }
    if (place < 0) continue;
    if (lane == 0) *reinterpret_cast<u32*>(slotOf(a, r, source, a.sourcesOffset, place, 4)) = token;
    u8* at = slotOf(a, r, source, a.choicesOffset, place, a.topkColumns * a.indexBytes) + lane * a.indexBytes;
    if (a.indexBytes == 8) *reinterpret_cast<int2*>(at) = make_int2(chosen, chosen >> 31);
    else *reinterpret_cast<i32*>(at) = chosen;
    if (a.weights == nullptr) continue;
    reinterpret_cast<f32*>(slotOf(a, r, source, a.weightsOffset, place, a.topkColumns * 4))[lane] = isThere ? choice.weight : 0.0f;
  }
}

// All threads put the rows of a batch to the ranks of this host, each read once.
__device__ __forceinline__ void forwardRows(const LowLatencyDispatchArguments& a, const ForwardShared& shared,
                                            const DispatchMessage& message, u32 source, u32 count) {
  const EpNetwork& network = networkOf(a);
  const u32 here = ranksHere(a);
  const u32 vectors = message.rowBytes / sizeof(RowVector);
  const u32 words = scaleWordsOf(a);
  const Divisor byRow(vectors + words);
  for (u32 at = threadIdx.x; at < count * (vectors + words); at += blockDim.x) {
    const u32 local = byRow.quotient(at);
    const u32 part = at - local * (vectors + words);
    const i32 row = shared.rows[local];
    if (row < 0) continue;
    if (part < vectors) {
      const RowVector value = reinterpret_cast<const RowVector*>(message.rowAt(row))[part];
      for (u32 index = 0; index < here; ++index) {
        const i32 place = shared.places[local][index];
        if (place < 0) continue;
        u8* to = slotOf(a, network.localRanks[index], source, a.rowsOffset, place, message.rowBytes);
        storeWordsSystem(reinterpret_cast<RowVector*>(to) + part, value);
      }
      continue;
    }
    const u32 word = part - vectors;
    const u32 scale = reinterpret_cast<const u32*>(message.scalesOf(row))[word];
    for (u32 index = 0; index < here; ++index) {
      const i32 place = shared.places[local][index];
      if (place < 0) continue;
      storeRelaxedSystem(reinterpret_cast<u32*>(scaleAt(a, network.localRanks[index], source, place, word)), scale);
    }
  }
}

// All threads of the last block tell how many rows the source has for each rank and each expert here, and its call.
__device__ __forceinline__ void forwardCounts(const LowLatencyDispatchArguments& a, ForwardShared& shared,
                                              const DispatchMessage& message, u32 slot, u32 number) {
  const EpNetwork& network = networkOf(a);
  const u32 source = network.servedRank[slot];
  const u32 here = ranksHere(a);
  for (u32 expert = threadIdx.x; expert < a.experts; expert += blockDim.x) allToExperts()[expert] = 0;
  __syncthreads();
  if constexpr (lowLatencyIsRankMajor) {
    for (u32 at = threadIdx.x; at < message.tokens * here; at += blockDim.x) {
      const u32 token = at / here;
      if (message.placesOf(token)[0] >= 0 && message.placesOf(token)[1 + at % here] >= 0) atomicAdd(&shared.ranks[at % here], 1u);
    }
  } else {
    for (u32 cell = threadIdx.x; cell < message.tokens * a.topkColumns; cell += blockDim.x) {
      const LowLatencyChoice choice = message.choicesOf(0)[cell];
      // Choices of one expert by the same token have one place, and places have no gaps.
      if (choice.expert >= 0 && choice.expert < static_cast<i32>(a.experts)) {
        atomicMax(&allToExperts()[choice.expert], choice.place + 1);
      }
    }
  }
  __syncthreads();
  for (u32 at = threadIdx.x; !lowLatencyIsRankMajor && at < here * a.expertsPerRank; at += blockDim.x) {
    const u32 r = network.localRanks[at / a.expertsPerRank];
    const u32 expert = at % a.expertsPerRank;
    u64* counts = countsAt(a, r, number) + static_cast<u64>(source) * a.expertsPerRank;
    storeRelaxedSystem(counts + expert, callCell(number, allToExperts()[r * a.expertsPerRank + expert]));
  }
  const u32 index = threadIdx.x;
  if (index == 0) static_cast<u32*>(a.servedCounts)[slot] = shared.arrived.rows;
  if (index >= here) return;
  LowLatencyFlags* flags = flagsAt(a.peers[network.localRanks[index]], source);
  tellDispatch(flags, number, shared.arrived.call, lowLatencyIsRankMajor ? shared.ranks[index] : message.tokens);
  if (lowLatencyRowsShow) addRelaxedSystem(&flags->arrived, lowLatencyUnit);
}

// All threads put the dispatch of the source in that slot to the ranks of this host. False when the block must leave.
__device__ __forceinline__ bool forward(const LowLatencyDispatchArguments& a, ForwardShared& shared, u32 slot, u32 number, u32 uses,
                                        const WaitScope& scope) {
  const EpNetwork& network = networkOf(a);
  const u32 source = network.servedRank[slot];
  if (!awaitMessage(a, shared, slot, number, uses, scope)) return false;
  const Arrived& arrived = shared.arrived;
  if (arrived.failure != lowLatencyFailureNone) {
    // Its reason is told as the source tells it on its own host.
    if (isLastBlock() && threadIdx.x == 0) {
      tellFailure({a.peers, a.ranks, source}, {arrived.failure, arrived.number, arrived.detail, 0});
    }
    return true;
  }
  const DispatchMessage message(a, networkAt(network, inMessage(network, a, slot)), arrived.tokens, ranksHere(a));
  if (isLastBlock()) forwardCounts(a, shared, message, slot, number);
  const BlockShare mine(arrived.tokens);
  for (u32 first = mine.begin; first < mine.end; first += lowLatencyBatch) {
    const u32 count = min(mine.end - first, lowLatencyBatch);
    const u32 local = threadIdx.x / lanesPerWarp;
    if (local < count) forwardBeside(a, shared, message, slot, local, first + local);
    __syncthreads();
    forwardRows(a, shared, message, source, count);
    __syncthreads();
  }
  if constexpr (lowLatencyRowsShow) return true;
  __syncthreads();
  // ORDER: publishes what this block wrote.
  if (threadIdx.x < ranksHere(a)) {
    addReleaseSystem(&flagsAt(a.peers[network.localRanks[threadIdx.x]], source)->arrived, blockShare());
  }
  return true;
}

}  // namespace

extern "C" __global__ void __launch_bounds__(lowLatencyThreads, 1)
    lowLatencySendHosts(const __grid_constant__ LowLatencyDispatchArguments a) {
  awaitPredecessor();
  WEFTLINE_TRACE_KERNEL();
  __shared__ LowLatencySendShared shared;
  __shared__ SendHostsShared hosts;
  const EpNetwork& network = networkOf(a);
  const LowLatencyBlock& own = *static_cast<const LowLatencyBlock*>(a.blocks);
  const WaitScope scope = {static_cast<TrapRecord*>(a.trap), trapKernelLowLatencyDispatch, a.rank, a.timeoutNs, sharedWaits()};
  const u32 number = own.dispatches + 1;
  const ExpertRank rankOf(a);
  if (threadIdx.x < network.ways) {
    u32 ranks = 0;
    for (u32 r = 0; r < a.ranks; ++r) ranks |= network.hostOf[r] == network.wayHost[threadIdx.x] ? 1u << r : 0u;
    hosts.ranksOfWay[threadIdx.x] = ranks;
    hosts.rowsOfWay[threadIdx.x] = 0;
  }
  if (threadIdx.x < lowLatencyMostRanks) shared.ranks[threadIdx.x] = 0;
  __syncthreads();
  const BlockShare mine(a.tokens);
  const bool isNeeded = mine.begin != mine.end || isLastBlock();
  if constexpr (!lowLatencyIsRankMajor) countChoices(a, isNeeded ? mine.begin : 0, [] {});
  if (isNeeded) countBefore(a, shared, hosts, mine.begin, rankOf);
  bool isFree = true;
  if (threadIdx.x < network.ways) {
    // What an earlier dispatch left in this slot has been forwarded.
    const WaitFor whom = {network.wayForwarder[threadIdx.x], waitWord(lowLatencyWaitSlot, a.call)};
    isFree = awaitCell(ranksOf(a), network, networkCellSlots + a.slot, own.sent[a.slot], scope, whom);
  }
  if (!__syncthreads_and(isFree)) return;
  const SendVectors vectors(a);
  const u32 warp = threadIdx.x / lanesPerWarp;
  for (u32 first = mine.begin; first < mine.end; first += lowLatencyBatch) {
    const u32 count = min(mine.end - first, lowLatencyBatch);
    if (warp < count) {
      const i32 expert = laneChoice(a, first + warp);
      shared.choices[warp][laneIndex()] = expert;
      if (expert == badExpert) atomicMax(&hostsDoneOf(a).badChoice, ~((first + warp) * a.topkColumns + laneIndex()));
    }
    __syncthreads();
    if (warp == 0) numberChoices(a, shared, first, count, number, scope);
    if (warp == 1) numberWays(a, shared, hosts, first, count, rankOf);
    __syncthreads();
    writeBeside(a, shared, hosts, first, count, number);
    writeRows(a, vectors, hosts, first, count);
    __syncthreads();
  }
  LowLatencyHostsDone& done = hostsDoneOf(a);
  if (isLastBlock() && threadIdx.x < network.ways) done.rows[threadIdx.x] = hosts.rowsOfWay[threadIdx.x];
  if (!isLastDone(&done.sent)) return;
  if (threadIdx.x < network.ways) sendWay(a, threadIdx.x, number, scope);
  __syncthreads();
  if (threadIdx.x == 0) done.badChoice = 0;
}

extern "C" __global__ void __launch_bounds__(lowLatencyThreads, 1)
    lowLatencyForward(const __grid_constant__ LowLatencyDispatchArguments a) {
  awaitPredecessor();
  WEFTLINE_TRACE_KERNEL();
  __shared__ ForwardShared shared;
  const EpNetwork& network = networkOf(a);
  const LowLatencyBlock& own = *static_cast<const LowLatencyBlock*>(a.blocks);
  const WaitScope scope = {static_cast<TrapRecord*>(a.trap), trapKernelLowLatencyDispatch, a.rank, a.timeoutNs, sharedWaits()};
  const u32 number = own.dispatchOf[a.slot];
  const u32 uses = own.sent[a.slot] - 1;
  __syncthreads();
  for (u32 slot = 0; slot < network.served; ++slot) {
    if (!forward(a, shared, slot, number, uses, scope)) return;
  }
  if (!isLastDone(&hostsDoneOf(a).forwarded)) return;
  // The messages are read: their places may be filled again.
  for (u32 slot = threadIdx.x; slot < network.served; slot += blockDim.x) {
    const u32 channel = channelOf(network, slot);
    signalAcross(ranksOf(a), network, servedRequest(network, slot, channel), channel, networkCellSlots + a.slot, scope,
                 {network.servedRank[slot], waitWord(lowLatencyWaitSlot, a.call)});
  }
}
