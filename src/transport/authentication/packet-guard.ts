// Authenticates the packets of one connection: tags those that go out, checks those that come in. Hot path: no promise, and
// nothing allocated but one view per burst or datagram that is copied.
import { authenticPrefix } from '../../abi/transport-packet.ts';
import type { Burst } from '../io/packet-io.ts';
import { expandPacketKey, type PacketKeys } from './packet-keys.ts';
import { ReplayWindow } from './replay-window.ts';
import type { TagMemory } from './tag-memory.ts';

const TAG_LOW = authenticPrefix.offset.tagLow / 4;
const TAG_HIGH = authenticPrefix.offset.tagHigh / 4;
const NUMBER = authenticPrefix.offset.number / 4;
const TWO_32 = 2 ** 32;

export class PacketGuard {
  readonly #memory: TagMemory;
  readonly #outgoing: number;
  readonly #incoming: number;
  readonly #taken: ReplayWindow;
  /** Of the next packet. */
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
    let headBytes = headerBytes;
    let payloadBytes = 0;
    let lastBytes = 0;
    if (burst.ranges !== undefined) {
      headBytes += memory.gather(burst, heads + headerBytes);
    } else if (region !== undefined) {
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
      headBytes,
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
