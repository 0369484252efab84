// Reads and writes the words of messages in device memory. Hot path: no allocation.
import { wordOffsets } from '../../abi/layout.ts';
import { maskWords, sparseMessage } from '../../abi/sparse-message.ts';
import type { CpuDevice } from '../../device/cpu/cpu-device.ts';
import type { MemoryRange } from '../../device/host-access.ts';

const word = wordOffsets(sparseMessage);
const HEADER_WORDS = sparseMessage.size / 4;

export class MessageView {
  /** Words of the mask. */
  readonly masks: number;
  readonly #words: Uint32Array;
  readonly #base: number;
  /** The message, in words from the beginning of the memory. */
  #at = 0;

  /** `memory`: all messages lie there. */
  constructor(device: CpuDevice, memory: MemoryRange, lanes: number) {
    this.#words = new Uint32Array(device.memory.buffer, memory.address, memory.bytes / 4);
    this.#base = memory.address;
    this.masks = maskWords(lanes);
  }

  /** From now on it is the message there. */
  look(address: number): void {
    this.#at = (address - this.#base) / 4;
  }

  get(field: keyof typeof word): number {
    return this.#words[this.#at + word[field]]!;
  }

  set(field: keyof typeof word, value: number): void {
    this.#words[this.#at + word[field]] = value;
  }

  clearMask(): void {
    const from = this.#at + HEADER_WORDS;
    this.#words.fill(0, from, from + this.masks);
  }

  hasBlock(lane: number): boolean {
    return ((this.#words[this.#at + HEADER_WORDS + (lane >>> 5)]! >>> (lane & 31)) & 1) === 1;
  }

  addBlock(lane: number): void {
    const at = this.#at + HEADER_WORDS + (lane >>> 5);
    this.#words[at] = this.#words[at]! | (1 << (lane & 31));
  }

  entry(index: number): number {
    return this.#words[this.#at + HEADER_WORDS + this.masks + index]!;
  }

  setEntry(index: number, value: number): void {
    this.#words[this.#at + HEADER_WORDS + this.masks + index] = value;
  }
}
