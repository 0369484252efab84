// The WebAssembly memory of the kernel that tags packets: keys, and copies of the packets at hand. One per engine.
import { packetKey } from '../../abi/packet-key.ts';
import { type CpuKernels, instantiateKernelsNow } from '../../device/cpu/kernels.ts';
import { wasm, type WasmMemory } from '../../device/cpu/wasm.ts';
import type { Burst } from '../packet-io.ts';
import type { RangeList } from '../range-list.ts';
import type { Region } from '../region.ts';

const PAGE = 65_536;
/** Enough for the keys of every connection that an engine can have. */
const MOST_PAGES = 4096;
/** Shorter copies are made byte by byte: a view of the source would take longer to make. */
const SHORT = 64;

export class TagMemory {
  readonly kernels: Pick<CpuKernels, 'tagPackets' | 'isTagged'>;
  /** Where the headers and the payload of a burst are copied, where its tags appear, and where received packets are copied. */
  // The first page holds the data of the kernels.
  readonly heads: number = PAGE;
  readonly bodies: number = 2 * PAGE;
  readonly received: number = 3 * PAGE;
  readonly tags: number = 4 * PAGE;
  /** Bytes of each of these places. */
  readonly room: number = PAGE;
  readonly words: Int32Array;
  readonly #bytes: Uint8Array;
  readonly #view: DataView;
  readonly #memory: WasmMemory;
  readonly #freeKeys: number[] = [];
  #endOfKeys: number = 5 * PAGE;

  constructor() {
    this.#memory = new wasm.Memory({ initial: 5, maximum: MOST_PAGES, shared: true });
    // Shared memory stays where it is when it grows, so these views stay right.
    this.#bytes = new Uint8Array(this.#memory.buffer);
    this.#view = new DataView(this.#memory.buffer);
    this.words = new Int32Array(this.#memory.buffer);
    this.kernels = instantiateKernelsNow(this.#memory);
  }

  /** Keeps an expanded key. Returns its address for the kernels. */
  addKey(key: Uint8Array): number {
    const address = this.#freeKeys.pop() ?? this.#endOfKeys;
    if (address === this.#endOfKeys) this.#endOfKeys += packetKey.size;
    const missing = this.#endOfKeys - this.#memory.buffer.byteLength;
    if (missing > 0) this.#memory.grow(Math.ceil(missing / PAGE));
    new Uint8Array(this.#memory.buffer, address, packetKey.size).set(key);
    return address;
  }

  removeKey(address: number): void {
    new Uint8Array(this.#memory.buffer, address, packetKey.size).fill(0);
    this.#freeKeys.push(address);
  }

  wordAt(address: number): number {
    return this.#view.getInt32(address, true);
  }

  /** Copies bytes `from` to `to` of `source` to an address. */
  // oxlint-disable-next-line max-params -- hot path: an object for them would be allocated per packet
  copy(source: Uint8Array, from: number, to: number, address: number): void {
    const bytes = this.#bytes;
    if (to - from > SHORT) {
      bytes.set(source.subarray(from, to), address);
      return;
    }
    let at = address;
    for (let index = from; index < to; index++) bytes[at++] = source[index] as number;
  }

  /** Copies the ranges of a scattered write, one behind the other, to an address. Returns how many bytes they have. */
  gather(burst: Burst, address: number): number {
    const { sources, lengths } = burst.ranges as RangeList;
    const { bytes } = burst.region as Region;
    let to = address;
    for (let index = burst.firstRange; index < burst.endRange; index++) {
      const from = sources[index] as number;
      const length = lengths[index] as number;
      this.copy(bytes, from, from + length, to);
      to += length;
    }
    return to - address;
  }
}
