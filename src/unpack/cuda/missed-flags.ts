// Which slots of a ring were not moved because their ready flag did not come in time.
import { blockHeaderWord } from '../../abi/unpack-block.ts';
import { wideAt } from '../../abi/wide-words.ts';
import type { WeftlineError } from '../../core/errors.ts';
import type { CudaDevice } from '../../device/cuda/cuda-device.ts';
import type { HostMemory } from '../../device/cuda/host-memory.ts';
import { type ExpiredWait, TrapBox } from '../../device/cuda/trap-box.ts';
import { notReadyError } from '../descriptor-errors.ts';
import type { FragmentRun } from '../fragment-engine.ts';
import type { CheckedConfig } from '../launcher-config.ts';

/** Kernels mark each slot that they missed; their record says in addition what the first of them saw. */
export class MissedFlags implements Disposable {
  readonly #config: CheckedConfig;
  readonly #slotWords: (slot: number) => Uint32Array;
  readonly #traps: TrapBox;
  readonly #memory: HostMemory;
  readonly #missed: Int32Array;
  /** By slot: which block of its launch it holds. */
  readonly #blocks: Int32Array;
  #record: ExpiredWait | undefined;

  constructor(device: CudaDevice, config: CheckedConfig, slotWords: (slot: number) => Uint32Array) {
    this.#config = config;
    this.#slotWords = slotWords;
    this.#traps = new TrapBox(device.context);
    this.#memory = device.allocateHost(4 * config.slots);
    this.#missed = this.#memory.view('i32', 0, config.slots);
    this.#blocks = new Int32Array(config.slots);
  }

  /** For the arguments of kernels. */
  get trap(): number {
    return this.#traps.address;
  }

  /** For the arguments of kernels. */
  get missed(): number {
    return this.#memory.deviceAddress;
  }

  /** Before a run with ready flags is submitted. */
  begin({ firstSlot, blocks }: Readonly<FragmentRun>): void {
    for (let block = 0; block < blocks; block++) {
      const slot = (firstSlot + block) % this.#config.slots;
      Atomics.store(this.#missed, slot, 0);
      this.#blocks[slot] = block;
    }
  }

  /** Of a run that has ended. */
  failureOf(firstSlot: number, blocks: number): WeftlineError | undefined {
    const { slots, timeoutMs } = this.#config;
    for (let block = 0; block < blocks; block++) {
      const slot = (firstSlot + block) % slots;
      if (Atomics.load(this.#missed, slot) === 0) continue;
      this.#record = this.#traps.takeExpired() ?? this.#record;
      const seen = this.#record?.channel === slot ? this.#record.seen : undefined;
      return notReadyError(block, seen, wideAt(this.#slotWords(slot), blockHeaderWord.readyThreshold), timeoutMs);
    }
    return undefined;
  }

  /** For those who wait for other work of the device; the launch fails all the same. */
  throwIfExpired(): void {
    const expired = this.#traps.takeExpired();
    if (expired === undefined) return;
    this.#record = expired;
    throw notReadyError(this.#blocks[expired.channel]!, expired.seen, expired.expected, expired.timeoutMs);
  }

  [Symbol.dispose](): void {
    this.#traps[Symbol.dispose]();
    this.#memory[Symbol.dispose]();
  }
}
