// The device's side of the queue to the host: a push takes a slot, a flush waits until the host has delivered it.
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
  // Of a put: the offset of its source and its size. Of a signal: the sum of both halves of what it adds.
  u64 source;
  u64 bytes;
};

__device__ __forceinline__ CommandQueueHead* hostSide(const DeviceQueue* queue) {
  return static_cast<CommandQueueHead*>(queue->host);
}

// Waits until the host has delivered so many commands; false when it does not in time, gives up, or fails at one.
__device__ __forceinline__ bool waitDelivered(DeviceQueue* queue, u32 count, const WaitScope& scope, WaitFor whom) {
  CommandQueueHead* host = hostSide(queue);
  u64 start = 0;
  u32 seen = 0;
  for (u32 polls = 0;; ++polls) {
    seen = loadAcquireSystem(&host->delivered);
    if (epochReached(seen, count)) break;
    if (polls == 0) start = globalTimer();
    if (waitIsOver(scope, polls + 1, start)) {
      recordTrap(scope, whom, count, seen, expiryReason(scope));
      return false;
    }
  }
  queue->knownDelivered = seen;
  const u32 failed = loadRelaxedSystem(&host->failed);
  if (failed == 0) return true;
  recordTrap(scope, whom, 0, failed - 1, trapReasonCommandFailed);
  return false;
}

// By one thread; returns false without a command when the ring stays full until the deadline.
// ORDER: what this thread has seen or written is visible to the host, and to what it starts, before the command is.
__device__ __forceinline__ bool pushCommand(DeviceQueue* queue, const Command& command, const WaitScope& scope,
                                            WaitFor whom) {
  const u32 number = atomicAdd(&queue->head, 1u);
  // The command that had this slot a lap ago must be delivered; the number may be ahead of what is known by any amount.
  const u32 needed = number + 1 - queue->capacity;
  const u32 known = *static_cast<volatile u32*>(&queue->knownDelivered);
  if (!epochReached(known, needed) && !waitDelivered(queue, needed, scope, whom)) return false;
  const u32 phase = ((number >> queue->capacityBits) & 1u) ^ 1u;
  u32 high = phase | (command.kind << commandBitsKind) | (command.remote << commandBitsRemote) |
             (command.request << commandBitsRequest) |
             (static_cast<u32>(command.target >> 31) << commandBitsTargetHigh);
  u32 third = static_cast<u32>(command.bytes);
  if (command.kind == commandKindPut) {
    high |= static_cast<u32>(command.source >> 32) << commandBitsSourceHigh;
    high |= static_cast<u32>(command.bytes >> 32) << commandBitsBytesHigh;
  }
  const u32 low = static_cast<u32>(command.source);
  const u32 target = phase | (static_cast<u32>(command.target) << commandBitsTargetLow);
  u8* ring = reinterpret_cast<u8*>(hostSide(queue) + 1);
  u8* slot = ring + static_cast<u64>(number & (queue->capacity - 1)) * 16;
  fenceSystem();
  asm volatile("st.relaxed.sys.global.v2.b64 [%0], {%1, %2};" ::"l"(slot),
               "l"((static_cast<u64>(low) << 32) | high), "l"((static_cast<u64>(third) << 32) | target)
               : "memory");
  return true;
}

}  // namespace weftline
