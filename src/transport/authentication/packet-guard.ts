// Authenticates the packets of one connection: tags those that go out, checks those that come in. Hot path: no promise, and
// nothing allocated but one view per burst or datagram that is copied.
import { hkdfSync } from 'node:crypto';
import { WeftlineError } from '../../core/errors.ts';
import { type CpuKernels, instantiateKernelsNow, wasm, type WasmMemory } from '../../device/cpu/kernels.ts';
import type { Region } from '../engine/region.ts';
import type { Burst, PacketIo } from '../io/packet-io.ts';
import { authenticPrefix } from '../wire/packet-layout.ts';
import { packetKey } from '../../abi/cpu-kernels.ts';

const TAG_LOW = authenticPrefix.offset.tagLow / 4;
const TAG_HIGH = authenticPrefix.offset.tagHigh / 4;
const NUMBER = authenticPrefix.offset.number / 4;
const TWO_32 = 2 ** 32;

export class PacketGuard {
  readonly #memory: TagMemory;
  readonly #outgoing: number;
  readonly #incoming: number;
  readonly #taken: ReplayWindow;
  /** Number of the next packet. */
  #number: number;

  /** `first`: the number of the first packet in both directions. */
  constructor(memory: TagMemory, keys: PacketKeys, first: number) {
    this.#memory = memory;
    this.#taken = new ReplayWindow(first);
    this.#number = first;
    this.#outgoing = memory.addKey(expandPacketKey(keys.outgoing));
    this.#incoming = memory.addKey(expandPacketKey(keys.incoming));
  }

  /**
   * Numbers and tags the packets of a burst, whose headers lie in `words`, the I/O's arena. If the memory of the payload
   * may change before the I/O reads it, the burst then refers to a copy: other bytes than those tagged would be refused.
   */
  seal(burst: Burst, words: Int32Array, mayChange: boolean): void {
    const memory = this.#memory;
    const { count, headerBytes, region } = burst;
    const { heads, body, tags } = memory;
    const number = this.#number;
    this.#number = number + count;
    this.#copyHeaders(burst, words, number);
    let payloadBytes = 0;
    let lastBytes = 0;
    if (region !== undefined) {
      payloadBytes = burst.payloadBytes;
      lastBytes = burst.lastPayloadBytes;
      const from = burst.payloadOffset;
      const bytes = (count - 1) * payloadBytes + lastBytes;
      memory.copy(region.bytes, from, from + bytes, body);
      if (mayChange && memory.keep(bytes)) {
        burst.region = memory.region;
        burst.payloadOffset = body;
      }
    }
    const high = Math.floor(number / TWO_32);
    memory.kernels.tagPackets(
      this.#outgoing,
      heads,
      headerBytes,
      body,
      payloadBytes,
      lastBytes,
      count,
      number % TWO_32,
      high,
      tags,
    );
    let from = tags >>> 2;
    let to = burst.headerOffset >>> 2;
    for (let packet = 0; packet < count; packet++) {
      words[to + TAG_LOW] = memory.words[from++]!;
      words[to + TAG_HIGH] = memory.words[from++]!;
      to += headerBytes >>> 2;
    }
  }

  /** Why the received packet that was copied to `address` is not taken in; undefined if it is genuine and new. */
  refuse(address: number, bytes: number): 'tag' | 'replay' | undefined {
    const memory = this.#memory;
    const low = memory.wordAt(address + authenticPrefix.offset.number);
    const number = this.#taken.nearest(low);
    if (number < 0) return 'tag';
    const isGenuine = memory.kernels.isTagged(this.#incoming, address, bytes, low, Math.floor(number / TWO_32));
    // ORDER: a number counts only once the tag has shown that the peer gave it.
    if (isGenuine === 0) return 'tag';
    return this.#taken.take(number) ? undefined : 'replay';
  }

  /** Forgets the keys; nothing may be sealed or checked any more. */
  close(): void {
    this.#memory.removeKey(this.#outgoing);
    this.#memory.removeKey(this.#incoming);
  }

  #copyHeaders({ count, headerOffset, headerBytes }: Burst, words: Int32Array, number: number): void {
    const target = this.#memory.words;
    let from = headerOffset >>> 2;
    let to = this.#memory.heads >>> 2;
    for (let packet = 0; packet < count; packet++) {
      words[from + TAG_LOW] = 0;
      words[from + TAG_HIGH] = 0;
      words[from + NUMBER] = number + packet;
      const end = from + (headerBytes >>> 2);
      while (from < end) target[to++] = words[from++]!;
    }
  }
}

// The keys of a connection's packets: one per direction, so that a packet sent back to its sender is refused.

/** Bytes of a session key and of the key of a direction. */
export const PACKET_KEY_BYTES = 32;

/** What one end holds; the other end holds the same two keys the other way round. */
export interface PacketKeys {
  readonly outgoing: Uint8Array;
  readonly incoming: Uint8Array;
}

/** The keys of one end, from the secret that both ends agreed on for this connection alone. */
export function splitSessionKey(session: Uint8Array, end: 'caller' | 'listener'): PacketKeys {
  const fromCaller = derive(session, 'packets of the caller', PACKET_KEY_BYTES);
  const fromListener = derive(session, 'packets of the listener', PACKET_KEY_BYTES);
  return end === 'caller'
    ? { outgoing: fromCaller, incoming: fromListener }
    : { outgoing: fromListener, incoming: fromCaller };
}

/** What the kernel that tags packets reads: packetKey. */
function expandPacketKey(key: Uint8Array): Uint8Array {
  return derive(key, 'packet tag', packetKey.size);
}

function derive(key: Uint8Array, purpose: string, bytes: number): Uint8Array {
  return new Uint8Array(hkdfSync('sha256', key, '', `weftline transport ${purpose}`, bytes));
}

// Notes which packets of a peer have been taken in, by number, so that each counts once. Hot path: no allocation.

/**
 * How far a packet may be overtaken and still count. Far more than a connection has under way: it is for paths that differ
 * in speed. A power of two.
 */
const REPLAY_WINDOW_PACKETS = 65_536;

const WORDS = REPLAY_WINDOW_PACKETS / 32;

export class ReplayWindow {
  /** The highest number that was taken in. */
  newest: number;
  /** A bit per number. INVARIANT: bits of numbers above `newest` are clear. */
  readonly #bits = new Int32Array(WORDS);

  /** `first`: the number of the first packet. */
  constructor(first: number) {
    this.newest = first - 1;
  }

  /** The number whose low 32 bits are `low` and that is closest to the newest one. Negative if there is none. */
  nearest(low: number): number {
    return this.newest + ((low - (this.newest % 2 ** 32)) | 0);
  }

  /** Takes in a number; false if it was taken before, or is too old to tell. */
  take(number: number): boolean {
    const block = Math.floor(number / 32);
    const newestBlock = Math.floor(this.newest / 32);
    if (newestBlock - block >= WORDS) return false;
    const bits = this.#bits;
    if (number > this.newest) {
      const last = Math.min(block, newestBlock + WORDS);
      for (let between = newestBlock + 1; between <= last; between++) bits[between & (WORDS - 1)] = 0;
      this.newest = number;
    }
    const word = block % WORDS;
    const bit = 1 << (number % 32);
    if ((bits[word]! & bit) !== 0) return false;
    bits[word] = bits[word]! | bit;
    return true;
  }
}

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

/** The WebAssembly memory of the kernel that tags packets: keys, and copies of the packets at hand. One per engine. */
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
  /** Address to which the next payload is copied. */
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
