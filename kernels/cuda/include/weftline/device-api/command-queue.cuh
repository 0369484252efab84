// The device's side of the queue to the host: a push takes a slot, which is free again when the host has delivered it.
//
// Any threads may push at once; each command becomes visible by its own phase, so nobody waits for another thread.
#pragma once
#include "weftline/abi.cuh"
#include "weftline/memory-order.cuh"
#include "weftline/wait.cuh"

namespace weftline {

struct Command {
  u32 kind;
  u32 request;
  u32 remote;
  u64 target;
  // The offset of the source of a put and its size; of others both halves of their number.
  u64 source;
  u64 bytes;
  // The host leaves it where it is until a command behind it is not deferred.
  bool isDeferred;
};

__device__ __forceinline__ CommandQueueHead* hostSide(const DeviceQueue* queue) {
  return static_cast<CommandQueueHead*>(queue->host);
}

// Waits until the slots of the numbers [number, end) are free. False when they are not in time: the numbers are then given
// back, by the newest first, for which those before it wait. Meanwhile a slot may become free after all.
__device__ __forceinline__ bool waitForRoom(DeviceQueue* queue, u32 number, u32 end, const WaitScope& scope, WaitFor whom) {
  const u32 needed = end - queue->capacity;
  const u64 start = globalTimer();
  bool isLate = false;
  for (u32 polls = 1;; ++polls) {
    const u32 seen = loadAcquireSystem(&hostSide(queue)->delivered);
    if (epochReached(seen, needed)) {
      queue->knownDelivered = seen;
      return true;
    }
    if (!isLate) {
      isLate = waitIsOver(scope, polls, start);
      if (isLate) {
        *static_cast<volatile u32*>(&queue->lateSeen) = seen;
        *static_cast<volatile u64*>(&queue->lateAt) = globalTimer();
      } else if (seen == *static_cast<volatile u32*>(&queue->lateSeen)) {
        const u64 lateAt = *static_cast<volatile u64*>(&queue->lateAt);
        isLate = lateAt != 0 && globalTimer() - lateAt < scope.timeoutNs;
      }
      if (isLate) recordTrap(scope, whom, needed, seen, timeoutReason(scope));
    }
    if (isLate && compareExchangeGpu(&queue->head, end, number) == end) return false;
  }
}

// Writes commands into the slots from `number` on, whose turn it is.
__device__ __forceinline__ void writeCommand(DeviceQueue* queue, u32 number, const Command& command) {
  const u32 phase = ((number >> queue->capacityBits) & 1u) ^ 1u;
  u32 high = phase | (command.kind << commandBitsKind) | (command.remote << commandBitsRemote) |
             (command.request << commandBitsRequest) | (command.isDeferred ? 1u << commandBitsDeferred : 0u) |
             (static_cast<u32>(command.target >> 31) << commandBitsTargetHigh);
  if (command.kind == commandKindPut) {
    high |= static_cast<u32>(command.source >> 32) << commandBitsSourceHigh;
    high |= static_cast<u32>(command.bytes >> 32) << commandBitsBytesHigh;
  }
  const u64 first = (static_cast<u64>(static_cast<u32>(command.source)) << 32) | high;
  const u64 second = (command.bytes << 32) | phase | (static_cast<u32>(command.target) << commandBitsTargetLow);
  u8* slot = reinterpret_cast<u8*>(hostSide(queue) + 1) + static_cast<u64>(number & (queue->capacity - 1)) * 16;
  asm volatile("st.relaxed.sys.global.v2.b64 [%0], {%1, %2};" ::"l"(slot), "l"(first), "l"(second) : "memory");
}

// One thread calls this: one or two commands, the second right behind the first. False, without a command, when the ring stays
// full until the deadline.
// ORDER: with a release, what this thread has seen or written is visible to the host, and to what it starts, before the
// commands are.
template <u32 count>
__device__ __forceinline__ bool pushCommands(DeviceQueue* queue, const Command (&commands)[count], bool isRelease,
                                             const WaitScope& scope, WaitFor whom) {
  // Before the addition, which it would wait for.
  if (isRelease) fenceSystem();
  const u32 number = atomicAdd(&queue->head, count);
  const u32 known = *static_cast<volatile u32*>(&queue->knownDelivered);
  // The command that had the last of these slots a lap ago must be delivered.
  const u32 end = number + count;
  if (!epochReached(known, end - queue->capacity) && !waitForRoom(queue, number, end, scope, whom)) return false;
#pragma unroll
  for (u32 index = 0; index < count; ++index) writeCommand(queue, number + index, commands[index]);
  // For threads that flush. The value depends on the number, so a thread that sees it takes a later number.
  if (commands[count - 1].isDeferred) *static_cast<volatile u32*>(&queue->deferred) = (number << 1) | 1u;
  return true;
}

}  // namespace weftline
