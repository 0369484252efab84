// What a launcher asks of a device: slots to write descriptors into, and work that moves what slots say.
import type { WeftlineError } from '../core/errors.ts';
import type { CudaStream } from '../device/cuda/cuda-stream.ts';
import type { PollOptions } from '../device/cuda/poll.ts';
import type { HostAccess } from '../device/host-access.ts';

/** Slots of one launch, in the order of the ring, and what is known of them. A launcher has one and changes it. */
export interface FragmentRun {
  /** Which of the engine's tickets it is: 0 to slots - 1. */
  ticket: number;
  firstSlot: number;
  blocks: number;
  /** Of the fullest slot. */
  mostDescriptors: number;
  /** Several fragments per warp. */
  isSmall: boolean;
  /** A block has a ready flag. */
  waits: boolean;
}

export interface FragmentEngine {
  /** Warps that want work: long fragments are cut for them. 0 if they need not be cut. */
  readonly warps: number;
  /** Whether kernels find the memory of tensors of that device at their addresses. */
  reaches(device: HostAccess): boolean;
  /** Header and descriptors of a slot. */
  slotWords(slot: number): Uint32Array;
  /**
   * Before slots are written for a launch, which may be on this stream. Fails with WL_CLOSED when the device was closed, with
   * WL_INVALID_ARGUMENT for a stream that cannot be used, and with WL_CUDA.
   */
  requireOpen(stream?: CudaStream): void;
  /** Begins to move what the slots say, in the order of the stream. Fails with WL_CUDA; on the CPU device with WL_INVALID_ARGUMENT. */
  submit(run: Readonly<FragmentRun>, stream?: CudaStream): void;
  /** True when the run of the ticket has ended, in whatever way. Fails with WL_CUDA, and WL_CLOSED as requireOpen(). */
  isDone(ticket: number): boolean;
  /** WL_TIMEOUT if a run with ready flags that has ended did not find one of them. */
  failureOf(firstSlot: number, blocks: number): WeftlineError | undefined;
  /** Fails with what `ready` throws or with the device's own failure. */
  pollUntil(ready: () => boolean, options: PollOptions): Promise<void>;
  /** What the device took for a run that is done; only with profiling. */
  microsecondsOf(ticket: number): number;
  /** Waits for what is under way, calls `beforeRelease`, and gives back all that was made. */
  close(beforeRelease?: () => void): Promise<void>;
}
