// How the queues of a device lie in one run of memory: one behind the other, each with its head and its ring.
import { invalidArgument } from '../../core/errors.ts';
import { queueBytes, type QueueMemory } from './command-queue.ts';

interface QueueLayout {
  readonly queues: number;
  /** Commands of each, a power of two. */
  readonly capacity: number;
}

export function queuesIn(buffer: ArrayBufferLike, queues: number, capacity: number): QueueMemory[] {
  return Array.from({ length: queues }, (_, index) => ({ buffer, byteOffset: index * queueBytes(capacity), capacity }));
}

/** Fails with WL_INVALID_ARGUMENT. */
export function checkQueueLayout({ queues, capacity }: QueueLayout): void {
  if (!Number.isInteger(queues) || queues < 1 || queues > 64) throw invalidArgument('queues', queues, '1 to 64');
  if (!Number.isInteger(capacity) || !Number.isInteger(Math.log2(capacity)) || capacity < 2 || capacity > 65_536) {
    throw invalidArgument('queueCapacity', capacity, 'a power of two from 2 to 65536');
  }
}
