// Messages between the ranks of a Communicator: the receiver posts what it expects, and the sender puts it into its tensor, or
// chunk by chunk into its window. All of a group advance together: blocks of even numbers send, those of odd numbers receive,
// in rounds in which each rank sends to the one so many places behind it.
#include "weftline/abi.cuh"
#include "weftline/collectives/move-range.cuh"
#include "weftline/collectives/ranks.cuh"
#include "weftline/trace.cuh"
#include "weftline/types.cuh"

using namespace weftline;

namespace {

constexpr u32 mostThreads = 512;
constexpr u32 chunksOfPair = 2;

__device__ __forceinline__ u32 laneOfBlock() { return blockIdx.x / 2; }

__device__ __forceinline__ CollectiveRanks ranksOf(const MessageArguments& a) { return {a.peers, a.ranks, a.rank}; }

__device__ __forceinline__ MessageFlags* flagsAt(const MessageArguments& a, u32 owner, u32 other) {
  return reinterpret_cast<MessageFlags*>(static_cast<u8*>(a.peers[owner]) + a.windowFlags) + laneOfBlock() * a.ranks + other;
}

__device__ __forceinline__ MessagePost* postAt(const MessageArguments& a, u32 sender, u32 receiver, u32 number) {
  const u32 place = (laneOfBlock() * a.ranks + receiver) * collectivePosts + number % collectivePosts;
  return reinterpret_cast<MessagePost*>(static_cast<u8*>(a.peers[sender]) + a.windowPosts) + place;
}

__device__ __forceinline__ u8* chunkAt(const MessageArguments& a, u32 receiver, u32 sender, u32 number) {
  const u64 place = static_cast<u64>(laneOfBlock() * a.ranks + sender) * chunksOfPair + number % chunksOfPair;
  return static_cast<u8*>(a.peers[receiver]) + a.windowChunks + place * a.chunkBytes;
}

struct Message {
  u8* address;
  u64 word;
  u64 bytes;
  u32 index;
  u32 direction;
  u32 peer;
};

__device__ __forceinline__ Message messageOf(const MessageArguments& a, u32 index) {
  Message message;
  message.index = index;
  message.address = static_cast<u8*>(a.addresses[index]);
  message.word = a.words[index];
  message.bytes = message.word & ((1ull << collectiveBytesBits) - 1);
  message.direction = a.kinds[index] & 0xff;
  message.peer = a.kinds[index] >> 8;
  return message;
}

// What this lane has of a message: lanes that have nothing take no part in it, on both sides.
struct Slice {
  u64 at;
  u64 bytes;
  bool isOurs;

  __device__ __forceinline__ Slice(const MessageArguments& a, const Message& message) {
    const u64 wanted = (message.bytes + a.laneBytes - 1) / a.laneBytes;
    const u32 lanes = static_cast<u32>(max(static_cast<u64>(1), min(static_cast<u64>(a.maxLanes), wanted)));
    const u64 each = ((message.bytes + lanes - 1) / lanes + 15) & ~static_cast<u64>(15);
    at = min(message.bytes, laneOfBlock() * each);
    bytes = min(each, message.bytes - at);
    isOurs = laneOfBlock() < lanes;
  }
};

// All threads call this: thread 0 waits for all. False when the block must leave.
__device__ inline bool awaitCounter(const MessageArguments& a, const u32* counter, u32 number, const Message& message,
                                    const WaitScope& scope) {
  bool isGood = true;
  if (threadIdx.x == 0) {
    const auto isHere = [&]() { return epochReached(loadAcquireSystem(counter), number); };
    isGood = awaitPeer(ranksOf(a), message.peer, message.word, message.direction + 1, scope, isHere);
  }
  return !__syncthreads_or(!isGood);
}

// What the receiver has posted, for all threads.
struct Post {
  u8* target;
  bool isGood;
};

__device__ inline Post readPost(const MessageArguments& a, const Message& message, u32 number, const WaitScope& scope) {
  const MessagePost* post = postAt(a, a.rank, message.peer, number);
  const u64 word = __ldcg(&post->word);
  const u32 id = __ldcg(&post->id);
  const u64 offset = __ldcg(&post->offset);
  if (word != message.word) {
    if (threadIdx.x == 0) failCollective(ranksOf(a), scope, collectiveFailureOtherMessage, message.peer, 0, message.word, word);
    return {nullptr, false};
  }
  if (id == 0) return {nullptr, true};
  return {static_cast<u8* const*>(a.registrations)[id * collectiveMaxRanks + message.peer] + offset, true};
}

__device__ inline bool sendMessage(const MessageArguments& a, const Message& message, const Slice& slice, MessageBlock& own,
                                   const WaitScope& scope) {
  const u32 peer = message.peer;
  const MessageFlags* here = flagsAt(a, a.rank, peer);
  MessageFlags* there = flagsAt(a, peer, a.rank);
  const u32 number = own.messages[peer] + 1;
  u32 chunk = own.chunks[peer];
  if (!awaitCounter(a, &here->posted, number, message, scope)) return false;
  const Post post = readPost(a, message, number, scope);
  if (!post.isGood) return false;
  if (post.target != nullptr) {
    // A receiver that gave up since may use its tensor for something else.
    if (__syncthreads_or(threadIdx.x == 0 && hasFailed(ranksOf(a), peer, scope))) return false;
    copyRange(post.target + slice.at, message.address + slice.at, slice.bytes, shareOfBlock());
  } else {
    for (u64 at = 0; at < slice.bytes; at += a.chunkBytes) {
      ++chunk;
      if (!awaitCounter(a, &here->taken, chunk - chunksOfPair, message, scope)) return false;
      const u64 length = min(static_cast<u64>(a.chunkBytes), slice.bytes - at);
      copyRange(chunkAt(a, peer, a.rank, chunk), message.address + slice.at + at, length, shareOfBlock());
      __syncthreads();
      // ORDER: publishes the chunk.
      if (threadIdx.x == 0) storeReleaseSystem(&there->arrived, chunk);
    }
  }
  __syncthreads();
  if (threadIdx.x != 0) return true;
  // ORDER: publishes what this block wrote into the tensor.
  storeReleaseSystem(&there->done, number);
  own.messages[peer] = number;
  own.chunks[peer] = chunk;
  return true;
}

// One thread per sender calls this: all that it is to receive, in order.
__device__ inline void postMessages(const MessageArguments& a, const MessageBlock& own, u32 peer) {
  u32 number = own.messages[peer];
  for (u32 index = 0; index < a.count; ++index) {
    const Message message = messageOf(a, index);
    if (message.direction != messageDirectionReceive || message.peer != peer || !Slice(a, message).isOurs) continue;
    ++number;
    MessagePost* post = postAt(a, peer, a.rank, number);
    post->word = message.word;
    post->offset = a.offsets[index];
    post->id = a.ids[index];
  }
  // ORDER: publishes the posts.
  if (number != own.messages[peer]) storeReleaseSystem(&flagsAt(a, peer, a.rank)->posted, number);
}

__device__ inline bool receiveMessage(const MessageArguments& a, const Message& message, const Slice& slice, MessageBlock& own,
                                      const WaitScope& scope) {
  const u32 peer = message.peer;
  const MessageFlags* here = flagsAt(a, a.rank, peer);
  MessageFlags* there = flagsAt(a, peer, a.rank);
  const u32 number = own.messages[peer] + 1;
  u32 chunk = own.chunks[peer];
  if (a.ids[message.index] == 0) {
    for (u64 at = 0; at < slice.bytes; at += a.chunkBytes) {
      ++chunk;
      if (!awaitCounter(a, &here->arrived, chunk, message, scope)) return false;
      const u64 length = min(static_cast<u64>(a.chunkBytes), slice.bytes - at);
      copyRange(message.address + slice.at + at, chunkAt(a, a.rank, peer, chunk), length, shareOfBlock());
      __syncthreads();
      // ORDER: the chunk has been read.
      if (threadIdx.x == 0) storeReleaseSystem(&there->taken, chunk);
    }
  }
  if (!awaitCounter(a, &here->done, number, message, scope)) return false;
  if (threadIdx.x != 0) return true;
  own.messages[peer] = number;
  own.chunks[peer] = chunk;
  return true;
}

}  // namespace

extern "C" __global__ void __launch_bounds__(mostThreads, 1)
    collectiveMessages(const __grid_constant__ MessageArguments a) {
  WEFTLINE_TRACE_KERNEL();
  MessageBlock& own = static_cast<MessageBlock*>(a.blocks)[blockIdx.x];
  // Its counts are those of before the launch that it left: a late rank may still read what that posted and put.
  if (own.failed != 0) return;
  const WaitScope scope = {static_cast<TrapRecord*>(a.trap), trapKernelCollectiveMessages, a.rank, a.timeoutNs, sharedWaits()};
  const bool receives = blockIdx.x % 2 == 1;
  const u32 direction = receives ? messageDirectionReceive : messageDirectionSend;
  if (receives && threadIdx.x < a.ranks && threadIdx.x != a.rank) postMessages(a, own, threadIdx.x);
  // The posts are written from counts that change now.
  __syncthreads();
  for (u32 index = 0; index < a.count; ++index) {
    const Message message = messageOf(a, index);
    const Slice slice(a, message);
    if (!slice.isOurs) continue;
    if (message.direction == messageDirectionCopy && !receives) {
      copyRange(reinterpret_cast<u8*>(a.offsets[index]) + slice.at, message.address + slice.at, slice.bytes, shareOfBlock());
    }
    if (message.direction != direction) continue;
    const bool isGood = receives ? receiveMessage(a, message, slice, own, scope) : sendMessage(a, message, slice, own, scope);
    if (!isGood) {
      if (threadIdx.x == 0) own.failed = 1;
      return;
    }
    // Counts of this message are written before those of the next one are read.
    __syncthreads();
  }
}
