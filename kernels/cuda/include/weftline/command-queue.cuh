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

// Writes commands into the slots from `number` on, whose turn it is.
__device__ __forceinline__ void writeCommand(DeviceQueue* queue, u32 number, const Command& command) {
  const u32 phase = ((number >> queue->capacityBits) & 1u) ^ 1u;
  u32 high = phase | (command.kind << commandBitsKind) | (command.remote << commandBitsRemote) |
             (command.request << commandBitsRequest) |
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

// By one thread: one or two commands, the second right behind the first. False, without a command, when the ring stays
// full until the deadline; the queue is then of no more use.
// ORDER: what this thread has seen or written is visible to the host, and to what it starts, before the commands are.
template <u32 count>
__device__ __forceinline__ bool pushCommands(DeviceQueue* queue, const Command (&commands)[count], const WaitScope& scope,
                                             WaitFor whom) {
  const u32 number = atomicAdd(&queue->head, count);
  // What had the last of these slots a lap ago must be delivered.
  const u32 needed = number + count - queue->capacity;
  const u32 known = *static_cast<volatile u32*>(&queue->knownDelivered);
  if (!epochReached(known, needed) && !waitDelivered(queue, needed, scope, whom)) return false;
  fenceSystem();
#pragma unroll
  for (u32 index = 0; index < count; ++index) writeCommand(queue, number + index, commands[index]);
  return true;
}

}  // namespace weftline
