// The WebAssembly memory of the kernel that tags packets: keys, and copies of the packets at hand. One per engine.
import { packetKey } from '../../abi/packet-key.ts';
import { WeftlineError } from '../../core/errors.ts';
import { type CpuKernels, instantiateKernelsNow } from '../../device/cpu/kernels.ts';
import { wasm, type WasmMemory } from '../../device/cpu/wasm.ts';
import type { Burst, PacketIo } from '../io/packet-io.ts';
import type { RangeList } from '../send/range-list.ts';
import type { Region } from '../engine/region.ts';

const PAGE = 65_536;
// Page 0 holds the data of the kernels.
const HEADS = PAGE;
const RECEIVED = 2 * PAGE;
const TAGS = 3 * PAGE;
const BODIES = 4 * PAGE;
/** A payload at a time, and as many as an engine sends before it flushes. */
const BODY_PAGES = 40;
const KEYS = BODIES + BODY_PAGES * PAGE;
/** Enough for the keys of every connection that an engine can have. */
const MAX_PAGES = 4096;
/** Shorter copies are made byte by byte: a view of the source would take longer to make. */
const SHORT = 64;

export class TagMemory {
  readonly kernels: Pick<CpuKernels, 'tagPackets' | 'isTagged'>;
  /** Addresses of the headers of a burst, of its tags, and of received packets, each with room for 64 KiB. */
  readonly heads: number = HEADS;
  readonly tags: number = TAGS;
  readonly received: number = RECEIVED;
  readonly room: number = PAGE;
  readonly words: Int32Array;
  /** This memory as a region that bursts can refer to: payloads that are sent from here. */
  readonly region: Region;
  /** Where the next payload is copied. */
  body: number = BODIES;
  readonly #view: DataView;
  readonly #memory: WasmMemory;
  readonly #freeKeys: number[] = [];
  #endOfKeys: number = KEYS;

  /** Fails with WL_MEMORY. */
  constructor(io: PacketIo) {
    this.#memory = reserveMemory();
    // Shared memory stays where it is when it grows, so these views stay right.
    const { buffer } = this.#memory;
    const bytes = new Uint8Array(buffer);
    const address = io.addressOf?.(bytes) ?? 0;
    this.region = { id: 0, key: 0, bytes, address, remote: { read: false, write: false } };
    this.#view = new DataView(buffer);
    this.words = new Int32Array(buffer);
    this.kernels = instantiateKernelsNow(this.#memory);
  }

  /** Keeps an expanded key. Returns its address. Fails with WL_MEMORY. */
  addKey(key: Uint8Array): number {
    const address = this.#freeKeys.pop() ?? this.#endOfKeys;
    if (address === this.#endOfKeys) this.#endOfKeys += packetKey.size;
    this.#growTo(this.#endOfKeys);
    new Uint8Array(this.#memory.buffer, address, packetKey.size).set(key);
    return address;
  }

  removeKey(address: number): void {
    new Uint8Array(this.#memory.buffer, address, packetKey.size).fill(0);
    this.#freeKeys.push(address);
  }

  /** Keeps the payload of `bytes` bytes at `body` until `release`. False if there is no room to keep it. */
  keep(bytes: number): boolean {
    const next = this.body + bytes;
    // The last page stays free for payloads that are not kept.
    if (next > KEYS - PAGE) return false;
    this.body = next;
    return true;
  }

  /** Kept payloads have been sent. */
  release(): void {
    this.body = BODIES;
  }

  wordAt(address: number): number {
    return this.#view.getInt32(address, true);
  }

  /** Copies bytes `from` to `to` of `source` to an address. */
  // oxlint-disable-next-line max-params -- hot path: an object for them would be allocated per packet
  copy(source: Uint8Array, from: number, to: number, address: number): void {
    const { bytes } = this.region;
    if (to - from > SHORT) {
      bytes.set(source.subarray(from, to), address);
      return;
    }
    let at = address;
    for (let index = from; index < to; index++) bytes[at++] = source[index]!;
  }

  /** Copies the ranges of a scattered write, one behind the other, to an address. Returns how many bytes they have. */
  gather(burst: Burst, address: number): number {
    const { sources, lengths } = burst.ranges as RangeList;
    const { bytes } = burst.region as Region;
    let to = address;
    for (let index = burst.firstRange; index < burst.endRange; index++) {
      const from = sources[index]!;
      const length = lengths[index]!;
      this.copy(bytes, from, from + length, to);
      to += length;
    }
    return to - address;
  }

  #growTo(bytes: number): void {
    const missing = bytes - this.#memory.buffer.byteLength;
    if (missing <= 0) return;
    try {
      this.#memory.grow(Math.ceil(missing / PAGE));
    } catch (cause) {
      throw noMemory(missing, cause);
    }
  }
}

function reserveMemory(): WasmMemory {
  try {
    return new wasm.Memory({ initial: KEYS / PAGE, maximum: MAX_PAGES, shared: true });
  } catch (cause) {
    throw noMemory(MAX_PAGES * PAGE, cause);
  }
}

function noMemory(bytes: number, cause: unknown): WeftlineError {
  return new WeftlineError(
    'WL_MEMORY',
    `Cannot authenticate packets: the system refused ${bytes} bytes of address space for the keys; raise "ulimit -v", or use fewer transports per process`,
    { details: { bytes }, cause },
  );
}
