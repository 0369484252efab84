// The registered memory of an engine: places for packets that come in, and for headers and copies of those that go out.
import { ROUTING_HEADER_BYTES } from '../../../abi/verbs-words.ts';
import { alignUp } from '../../../abi/layout.ts';
import { NativeBlock } from '../../../native/native-block.ts';
import { MemoryRegion } from '../../../native/verbs/memory-region.ts';
import type { ProtectionDomain } from '../../../native/verbs/protection-domain.ts';

/** Room for a header, or for a small packet as a whole. */
export const SMALL_BYTES = 256;
/** Packets that are copied as a whole and are larger: few, since data goes by reference. */
const LARGE_SLOTS = 64;
const LINE = 64;

interface PacketMemorySizes {
  /** Of a packet. */
  readonly packetBytes: number;
  readonly receives: number;
  readonly smallSlots: number;
}

export class PacketMemory {
  /** Where packets are received: slot i begins at i * packetBytes. */
  readonly received: Uint8Array;
  readonly receivedAddress: number;
  readonly packetBytes: number;
  readonly receives: number;
  /** Where the routing headers of datagrams go, one above the other: nobody reads them. */
  readonly routingHeader: number;
  readonly localKey: number;
  /** All of it, from `address` on; slots are places in it. */
  readonly bytes: Uint8Array;
  readonly words: Int32Array;
  readonly address: number;
  readonly #free: number[] = [];
  readonly #freeLarge: number[] = [];
  readonly #largeFrom: number;

  /** Fails with WL_CAPACITY if the memory cannot be registered. */
  constructor(domain: ProtectionDomain, { packetBytes, receives, smallSlots }: PacketMemorySizes) {
    const large = alignUp(packetBytes, LINE);
    const smallFrom = alignUp(ROUTING_HEADER_BYTES, LINE);
    this.#largeFrom = smallFrom + smallSlots * SMALL_BYTES;
    const receivesFrom = this.#largeFrom + LARGE_SLOTS * large;
    const block = new NativeBlock(receivesFrom + receives * packetBytes);
    this.packetBytes = packetBytes;
    this.receives = receives;
    this.bytes = block.bytes;
    this.words = new Int32Array(block.bytes.buffer, block.bytes.byteOffset, block.words.length);
    this.address = block.address;
    this.routingHeader = block.address;
    this.received = block.bytes.subarray(receivesFrom);
    this.receivedAddress = block.address + receivesFrom;
    this.localKey = MemoryRegion.host(domain, block.address, block.bytes.length).localKey;
    for (let slot = 0; slot < smallSlots; slot += 1) this.#free.push(smallFrom + slot * SMALL_BYTES);
    for (let slot = 0; slot < LARGE_SLOTS; slot += 1) this.#freeLarge.push(this.#largeFrom + slot * large);
  }

  /** How many packets of any kind can be taken. */
  get room(): number {
    return Math.min(this.#free.length, this.#freeLarge.length);
  }

  /** Hot path. A place of so many bytes, at most a packet; there must be room. */
  take(bytes: number): number {
    return (bytes <= SMALL_BYTES ? this.#free : this.#freeLarge).pop() as number;
  }

  /** Hot path. */
  giveBack(place: number): void {
    (place < this.#largeFrom ? this.#free : this.#freeLarge).push(place);
  }
}
