// The ring of a launcher on a GPU, and the slots of it that were not moved because their ready flag did not come in time.
import {
  BLOCK_HEADER_WORDS,
  blockHeaderWord,
  FRAGMENT_WORDS,
  RING_DESCRIPTORS,
  RING_SLOT_BYTES,
} from '../../abi/unpack.ts';
import { wideAt } from '../../abi/layout.ts';
import { WeftlineError } from '../../core/errors.ts';
import type { StayingWork } from '../../device/cuda/cuda-context.ts';
import { CudaDevice } from '../../device/cuda/cuda-device.ts';
import type { HostAccess } from '../../device/tensor.ts';
import type { HostMemory } from '../../device/cuda/host-memory.ts';
import { pollUntil } from '../../device/cuda/cuda-event.ts';
import { type ExpiredWait, TrapBox } from '../../device/cuda/trap-box.ts';
import { notReadyError } from '../descriptor-block.ts';
import type { CheckedConfig, FragmentRun } from '../launcher-config.ts';

/** Beyond the longest wait for a flag: for moving what is under way. */
const MOVING_MS = 1_000;

/** Kernels mark each slot that they missed; their record says in addition what the first of them saw. */
class MissedFlags implements Disposable {
  readonly #config: CheckedConfig;
  readonly #slotWords: (slot: number) => Uint32Array;
  readonly #traps: TrapBox;
  readonly #memory: HostMemory;
  readonly #missed: Int32Array;
  /** Number, within its launch, of the block that each slot holds. */
  readonly #blocks: Int32Array;
  #record: ExpiredWait | undefined;
  #hasGivenUp = false;

  constructor(device: CudaDevice, config: CheckedConfig, slotWords: (slot: number) => Uint32Array) {
    this.#config = config;
    this.#slotWords = slotWords;
    this.#traps = new TrapBox(device.context);
    this.#memory = device.allocateHost(4 * config.slots);
    this.#missed = this.#memory.view('i32', 0, config.slots);
    this.#blocks = new Int32Array(config.slots);
  }

  /** Address for the arguments of kernels. */
  get trap(): number {
    return this.#traps.address;
  }

  /** Address for the arguments of kernels. */
  get missed(): number {
    return this.#memory.deviceAddress;
  }

  /** Call it before a run with ready flags is submitted. */
  begin({ firstSlot, blocks }: Readonly<FragmentRun>): void {
    for (let block = 0; block < blocks; block++) {
      const slot = (firstSlot + block) % this.#config.slots;
      Atomics.store(this.#missed, slot, 0);
      this.#blocks[slot] = block;
    }
  }

  /** The failure of a run that has ended. */
  failureOf(firstSlot: number, blocks: number): WeftlineError | undefined {
    const { slots, timeoutMs } = this.#config;
    for (let block = 0; block < blocks; block++) {
      const slot = (firstSlot + block) % slots;
      if (Atomics.load(this.#missed, slot) === 0) continue;
      if (!this.#hasGivenUp) this.#record = this.#traps.takeExpired() ?? this.#record;
      const seen = this.#record?.channel === slot ? this.#record.seen : undefined;
      return notReadyError(block, seen, wideAt(this.#slotWords(slot), blockHeaderWord.readyThreshold), timeoutMs);
    }
    return undefined;
  }

  /** Tells those who wait for other work of the device; the launch fails all the same. */
  throwIfExpired(): void {
    if (this.#hasGivenUp) return;
    const expired = this.#traps.takeExpired();
    if (expired === undefined) return;
    this.#record = expired;
    throw notReadyError(this.#blocks[expired.channel]!, expired.seen, expired.expected, expired.timeoutMs);
  }

  /**
   * Before memory is released: resolves when no kernel uses it any more. Several launches may wait for flags one after the
   * other; what still waits when one wait should have ended is told to end. Fails with WL_TIMEOUT or WL_CUDA.
   */
  async drain(isDrained: () => boolean): Promise<void> {
    const what = 'The work of a launcher that is closed';
    const options = { timeoutMs: this.#config.timeoutMs + MOVING_MS, what };
    try {
      await pollUntil(isDrained, options);
    } catch (error) {
      if (!(error instanceof WeftlineError && error.code === 'WL_TIMEOUT')) throw error;
      this.giveUp();
      await pollUntil(isDrained, options);
    }
  }

  /** Kernels wait for no flag any more; those that were waited for count as missed. */
  giveUp(): void {
    this.#hasGivenUp = true;
    this.#traps.abort(new WeftlineError('WL_CLOSED', 'The launcher was closed'));
  }

  [Symbol.dispose](): void {
    this.#traps[Symbol.dispose]();
    this.#memory[Symbol.dispose]();
  }
}

/** What launchers on GPUs have in common: slots in pinned memory, their flags, and an end. */
export abstract class GpuRing {
  protected readonly device: CudaDevice;
  protected readonly config: CheckedConfig;
  protected readonly ring: HostMemory;
  protected readonly slots: readonly Uint32Array[];
  protected readonly flags: MissedFlags;
  readonly #staying: StayingWork;

  /** `leave`: nothing is to follow what was enqueued. */
  protected constructor(device: CudaDevice, config: CheckedConfig, leave: () => void) {
    const words = BLOCK_HEADER_WORDS + RING_DESCRIPTORS * FRAGMENT_WORDS;
    const ring = device.allocateHost(config.slots * RING_SLOT_BYTES);
    const slotAt = (slot: number): Uint32Array => new Uint32Array(ring.buffer, slot * RING_SLOT_BYTES, words);
    this.device = device;
    this.config = config;
    this.ring = ring;
    this.slots = Array.from({ length: config.slots }, (_, slot) => slotAt(slot));
    this.flags = new MissedFlags(device, config, (slot) => this.slots[slot]!);
    this.#staying = { leave, giveUp: () => this.flags.giveUp() };
  }

  /** The device tells the launcher to leave from now on; the last step of making one. */
  protected stay(): void {
    this.device.context.stayingWork.add(this.#staying);
  }

  reaches(device: HostAccess): boolean {
    return device instanceof CudaDevice && device.context.ordinal === this.device.context.ordinal;
  }

  slotWords(slot: number): Uint32Array {
    return this.slots[slot]!;
  }

  failureOf(firstSlot: number, blocks: number): WeftlineError | undefined {
    return this.flags.failureOf(firstSlot, blocks);
  }

  /** Waits until no kernel uses the memory, calls `beforeRelease`, then gives back the ring and these parts. */
  protected async end(
    isDrained: () => boolean,
    beforeRelease: (() => void) | undefined,
    parts: readonly Disposable[],
  ): Promise<void> {
    const { context } = this.device;
    if (context.lost === undefined && !context.disposed) {
      this.#staying.leave();
      await this.flags.drain(isDrained);
    }
    context.stayingWork.delete(this.#staying);
    beforeRelease?.();
    for (const part of [...parts, this.flags, this.ring]) part[Symbol.dispose]();
  }
}
