// The queue through which a device tells its host what to put where: 16-byte commands, a word that says what is delivered.
import { defineLayout } from './layout.ts';

/**
 * What a command asks for: to put bytes from memory, to add to a counter, or to write 8 bytes that the command holds itself
 * at a multiple of 8. `store` is a put without a source; `set` a signal whose number replaces the sum: the writer waits for
 * no command behind it.
 */
export const queueCommandKinds = { set: 0, put: 1, signal: 2, store: 3 } as const;

export const COMMAND_BYTES = 16;

/** Most requests of a host, remote ranges of a request, and bytes that an offset or a size can name. */
export const MAX_DEVICE_REQUESTS = 4096;
export const MAX_REQUEST_REMOTES = 64;
export const MAX_COMMAND_OFFSET: number = 2 ** 36;
export const MAX_COMMAND_BYTES: number = 2 ** 33;

/**
 * Where each part of a command begins, in bits of its words. A command is two halves of 8 bytes, each of which is written
 * at once and begins with the *phase*: 1 in the first lap round the ring, 0 in the second, and so on. A half belongs to the
 * command that is looked for when its phase is that of the lap, so memory of zeros holds no command.
 *
 * word 0: phase 1, kind 2, remote 6, request 12, high bits of source 4, target 5 and bytes 1, deferred 1
 * word 1: low 32 bits of the source offset; of others than puts, the low half of their number
 * word 2: phase 1, low 31 bits of the target offset
 * word 3: low 32 bits of the size; of others than puts, the high half of their number
 *
 * The host takes a deferred command together with the next one that is not, or when the ring has no room for that one.
 */
export const commandBits = {
  kind: 1,
  remote: 3,
  request: 9,
  sourceHigh: 21,
  targetHigh: 25,
  bytesHigh: 30,
  deferred: 31,
  targetLow: 1,
} as const;

/**
 * The head of a queue in host memory that both reach; the ring of commands follows. Each word has a cache line.
 *
 * - `delivered`: commands whose effect is visible at their target, in the order they were pushed; wraps. The host writes
 *   it, the device reads it: a slot is free again, and a flush is over, when it has come that far. A stale read only
 *   waits longer.
 * - `failed`: 1 + number of the request that failed first; 0 while none has. The host writes it before it counts the
 *   command as delivered; waiting threads read it after `delivered`, and leave.
 */
export const commandQueueHead = defineLayout(
  'CommandQueueHead',
  {
    delivered: 'u32',
    deliveredPad: { of: 'u32', count: 15 },
    failed: 'u32',
    failedPad: { of: 'u32', count: 15 },
  },
  64,
);

/**
 * The device's side of a queue, in its own memory.
 *
 * - `head`: commands begun so far, wraps. Any thread takes the next number by an atomic addition; a thread that finds no room until
 *   its deadline gives it back, the newest first, so that no number is left without a command.
 * - `knownDelivered`: the value of `delivered` that some thread read last, which saves most pushes a read of host memory.
 * - `lateAt`: the GPU's time when a wait for room expired last; 0 before. Threads that come within a deadline after it, and find
 *   `delivered` still at `lateSeen`, leave at once.
 * - `deferred`: not 0 after a deferred command, until somebody pushes one that makes the host take it.
 */
export const deviceQueue = defineLayout(
  'DeviceQueue',
  {
    head: 'u32',
    knownDelivered: 'u32',
    /** Commands of the ring, a power of two. */
    capacity: 'u32',
    capacityBits: 'u32',
    /** CommandQueueHead, with the ring behind it. */
    host: 'ptr',
    lateAt: 'u64',
    lateSeen: 'u32',
    deferred: 'u32',
  },
  64,
);
