// The WebAssembly memory in which the blocks of a launch are checked: copies of them, and room for the search for overlaps.
import {
  descriptorBlockHeader,
  fragmentCheck,
  fragmentDescriptor,
  MAX_BLOCK_DESCRIPTORS,
  MAX_RING_SLOTS,
  RING_SLOT_BYTES,
  sortedFragment,
} from '../abi/unpack.ts';
import { alignUp } from '../abi/layout.ts';
import { WeftlineError } from '../core/errors.ts';
import { type CpuKernels, instantiateKernelsNow } from '../device/cpu/kernels.ts';
import { wasm, type WasmMemory } from '../device/cpu/wasm.ts';

const PAGE = 65_536;
/** Page 0 holds the data of the kernels. */
const STATE = PAGE;
const DIGITS = STATE + alignUp(fragmentCheck.size, 64);
const DIGITS_BYTES = 2048 * 4;
const DIVIDED = DIGITS + DIGITS_BYTES;
const COPIES = alignUp(DIVIDED + RING_SLOT_BYTES, 64);
const COPY_BYTES = descriptorBlockHeader.size + MAX_BLOCK_DESCRIPTORS * fragmentDescriptor.size;
/** A fragment is sorted in the time in which so many bytes of bits are cleared and marked. */
const MARK_BYTES_PER_FRAGMENT = 64;
/** More bits would not stay in a cache. */
const MAX_MARK_BYTES = 2 << 20;
const LIST_BYTES_PER_BLOCK = 2 * MAX_BLOCK_DESCRIPTORS * sortedFragment.size;
const MAX_PAGES = Math.ceil((COPIES + MAX_RING_SLOTS * (COPY_BYTES + LIST_BYTES_PER_BLOCK)) / PAGE);

export class CheckMemory {
  readonly kernels: CpuKernels;
  /** A FragmentCheck. */
  readonly state: number = STATE;
  /** For the sort. */
  readonly digits: number = DIGITS;
  /** Room for a slot of a ring, where a block is divided. */
  readonly divided: number = DIVIDED;
  /** All of it. */
  words!: Uint32Array;
  readonly #memory: WasmMemory;
  /** Behind the copies of the launch. */
  #search: number = COPIES;
  #bytes = 0;

  /** Use checkMemory(). Fails with WL_MEMORY. */
  constructor() {
    try {
      this.#memory = new wasm.Memory({ initial: Math.ceil(COPIES / PAGE), maximum: MAX_PAGES, shared: true });
    } catch (cause) {
      throw noMemory(MAX_PAGES * PAGE, cause);
    }
    this.kernels = instantiateKernelsNow(this.#memory);
    this.#view();
  }

  /** Where a block of the launch is copied to. */
  copyAt(block: number): number {
    return COPIES + block * COPY_BYTES;
  }

  /** Makes room for the copies of a launch. Fails with WL_MEMORY. */
  reserveCopies(blocks: number): void {
    this.#search = this.copyAt(blocks);
    this.#growTo(this.#search);
  }

  /** Bytes of bits that are worth their time for so many fragments, behind the copies. */
  reserveMarks(fragments: number): number {
    const bytes = Math.min(MAX_MARK_BYTES, fragments * MARK_BYTES_PER_FRAGMENT);
    this.#growTo(this.#search + bytes);
    return bytes;
  }

  /** Makes room for two lists of so many fragments behind the copies. */
  reserveLists(fragments: number): void {
    this.#growTo(this.#search + 2 * fragments * sortedFragment.size);
  }

  /** Where marks and lists begin. */
  get search(): number {
    return this.#search;
  }

  #growTo(bytes: number): void {
    if (bytes <= this.#bytes) return;
    try {
      this.#memory.grow(Math.ceil((bytes - this.#bytes) / PAGE));
    } catch (cause) {
      throw noMemory(bytes, cause);
    }
    this.#view();
  }

  #view(): void {
    this.#bytes = this.#memory.buffer.byteLength;
    this.words = new Uint32Array(this.#memory.buffer);
  }
}

let memory: CheckMemory | undefined;

/** Shared by all launchers of this thread, as a check ends before launch() returns. Fails with WL_MEMORY. */
export function checkMemory(): CheckMemory {
  memory ??= new CheckMemory();
  return memory;
}

function noMemory(bytes: number, cause: unknown): WeftlineError {
  return new WeftlineError(
    'WL_MEMORY',
    `Cannot check descriptors: the system refused ${bytes} bytes of address space for their copies; raise "ulimit -v", or launch fewer blocks at a time`,
    { details: { bytes }, cause },
  );
}
