// Moves fragments on the CPU device: at once, by the kernel that reads descriptors where the launcher wrote them.
import {
  BLOCK_HEADER_WORDS,
  blockHeaderWord,
  descriptorBlockHeader,
  RING_DESCRIPTORS,
  RING_SLOT_BYTES,
} from '../../abi/unpack.ts';
import { wideAt } from '../../abi/layout.ts';
import type { WeftlineError } from '../../core/errors.ts';
import type { CpuDevice } from '../../device/cpu/cpu-device.ts';
import { pollUntil } from '../../device/cuda/cuda-event.ts';
import type { HostAccess, Storage } from '../../device/tensor.ts';
import { notReadyError, wrongBlockError } from '../descriptor-block.ts';
import type { CheckedConfig, FragmentEngine, FragmentRun } from '../launcher-config.ts';
import type { Direction } from '../ring-writer.ts';

/** Between two looks at a flag that was not ready at once. */
const NAP_MS = 0.05;
const nap = new Int32Array(new SharedArrayBuffer(4));

export class CpuFragments implements FragmentEngine {
  /** One thread moves all: nothing is cut for others. */
  readonly warps = 0;
  readonly pollUntil = pollUntil;
  readonly #device: CpuDevice;
  readonly #config: CheckedConfig;
  readonly #packs: number;
  readonly #ring: Storage;
  readonly #slots: readonly Uint32Array[];
  readonly #times: Float64Array;
  /** The failure of each run, by its first slot. */
  readonly #failures: (WeftlineError | undefined)[];

  constructor(device: CpuDevice, config: CheckedConfig, direction: Direction) {
    const { slots } = config;
    this.#device = device;
    this.#config = config;
    this.#packs = direction === 'pack' ? 1 : 0;
    this.#ring = device.allocate(slots * RING_SLOT_BYTES);
    const { address } = this.#ring;
    const words = BLOCK_HEADER_WORDS + RING_DESCRIPTORS * 4;
    this.#slots = Array.from(
      { length: slots },
      (_, slot) => new Uint32Array(device.memory.buffer, address + slot * RING_SLOT_BYTES, words),
    );
    this.#times = new Float64Array(slots);
    this.#failures = Array.from({ length: slots });
  }

  reaches(device: HostAccess): boolean {
    return device === this.#device;
  }

  slotWords(slot: number): Uint32Array {
    return this.#slots[slot]!;
  }

  requireOpen(): void {
    // A CPU device has nothing to close.
  }

  submit({ ticket, firstSlot, blocks, waits }: Readonly<FragmentRun>): void {
    const begin = this.#config.profiling ? performance.now() : 0;
    for (let block = 0; block < blocks; block++) this.#requireMemory(block, this.#slotAfter(firstSlot, block));
    // A run that was not ready in time is over without having moved anything.
    this.#failures[firstSlot] = waits ? this.#awaitFlags(firstSlot, blocks) : undefined;
    if (this.#failures[firstSlot] !== undefined) return;
    for (let block = 0; block < blocks; block++) {
      const slot = this.#slotAfter(firstSlot, block);
      const words = this.#slots[slot]!;
      this.#device.kernels.moveFragments(
        this.#ring.address + slot * RING_SLOT_BYTES + descriptorBlockHeader.size,
        words[blockHeaderWord.count]!,
        wideAt(words, blockHeaderWord.bounce),
        wideAt(words, blockHeaderWord.destination),
        this.#packs,
      );
    }
    if (this.#config.profiling) this.#times[ticket] = (performance.now() - begin) * 1000;
  }

  isDone(): boolean {
    return true;
  }

  failureOf(firstSlot: number): WeftlineError | undefined {
    return this.#failures[firstSlot];
  }

  microsecondsOf(ticket: number): number {
    return this.#times[ticket]!;
  }

  close(beforeRelease?: () => void): Promise<void> {
    beforeRelease?.();
    this.#ring[Symbol.dispose]();
    return Promise.resolve();
  }

  #slotAfter(firstSlot: number, block: number): number {
    return (firstSlot + block) % this.#config.slots;
  }

  /** What lies outside of the memory would end in the middle of a move. */
  #requireMemory(block: number, slot: number): void {
    const words = this.#slots[slot]!;
    const { byteLength } = this.#device.memory.buffer;
    const require = (what: string, address: number, bytes: number): void => {
      if (address + bytes <= byteLength) return;
      const expected = `at most ${byteLength}, the bytes of the device's memory`;
      throw wrongBlockError(block, `its ${what} ends at ${address + bytes}, expected ${expected}`, { address, bytes });
    };
    require('bounce buffer', wideAt(words, blockHeaderWord.bounce), wideAt(words, blockHeaderWord.bounceBytes));
    require('destination', wideAt(words, blockHeaderWord.destination), wideAt(words, blockHeaderWord.destinationBytes));
    const flag = wideAt(words, blockHeaderWord.readyFlag);
    if (flag !== 0) require('ready flag', flag, 8);
  }

  #awaitFlags(firstSlot: number, blocks: number): WeftlineError | undefined {
    const end = performance.now() + this.#config.timeoutMs;
    for (let block = 0; block < blocks; block++) {
      const words = this.#slots[this.#slotAfter(firstSlot, block)]!;
      const flag = wideAt(words, blockHeaderWord.readyFlag);
      if (flag === 0) continue;
      const threshold = wideAt(words, blockHeaderWord.readyThreshold);
      const counter = new BigUint64Array(this.#device.memory.buffer, flag, 1);
      while (Number(Atomics.load(counter, 0)) < threshold) {
        if (performance.now() >= end) {
          return notReadyError(block, Number(Atomics.load(counter, 0)), threshold, this.#config.timeoutMs);
        }
        Atomics.wait(nap, 0, 0, NAP_MS);
      }
    }
    return undefined;
  }
}
