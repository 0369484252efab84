// Where packets are put together: a cursor through the I/O's arena, and the one burst object. Hot path: no allocation.
import { alignUp } from '../../abi/layout.ts';
import { packetFlags, packetPrefix } from '../../abi/transport-packet.ts';
import type { Burst, PacketIo } from '../io/packet-io.ts';
import type { RangeList } from '../send/range-list.ts';
import type { Region } from '../engine/region.ts';
import type { PacketGuard } from '../authentication/packet-guard.ts';
import type { TagMemory } from '../authentication/tag-memory.ts';
import type { TransportSettings } from '../engine/transport-settings.ts';
import { CRC32C_START, crc32cEnd, crc32cUpdate } from './crc32c.ts';

const { flags: FLAGS, checksum: CHECKSUM } = packetPrefix.offset;

/** The connection that a packet belongs to. */
interface Sender {
  readonly peer: number;
  readonly guard: PacketGuard | undefined;
}

export class PacketOutbox {
  readonly io: PacketIo;
  readonly view: DataView;
  /** The arena in words: a header is written word by word. */
  readonly words: Int32Array;
  /** Holds copies of payloads until the next flush; undefined while no connection authenticates its packets. */
  tagMemory: TagMemory | undefined;
  readonly burst: Burst = {
    peer: 0,
    path: 0,
    count: 0,
    headerOffset: 0,
    headerBytes: 0,
    region: undefined,
    payloadOffset: 0,
    payloadBytes: 0,
    lastPayloadBytes: 0,
    ranges: undefined,
    firstRange: 0,
    endRange: 0,
    urgent: false,
  };
  readonly #size: number;
  readonly #checksum: TransportSettings['checksum'];
  #next = 0;
  #taken = 0;
  /** Of the region whose payload was last summed. */
  #payload: DataView | undefined;
  #payloadOf: Uint8Array | undefined;

  constructor(io: PacketIo, checksum: TransportSettings['checksum']) {
    const { buffer, byteOffset, byteLength } = io.arena;
    this.io = io;
    this.#size = byteLength - (byteLength % 8);
    this.#checksum = checksum;
    this.view = new DataView(buffer, byteOffset, this.#size);
    this.words = new Int32Array(buffer, byteOffset, this.#size / 4);
  }

  /** Room for `bytes` of headers, as an offset into the arena; -1 if the I/O takes nothing more now. */
  reserve(bytes: number): number {
    if (this.#next + bytes > this.#size) this.flush();
    if (this.io.room() <= 0) {
      this.flush();
      if (this.io.room() <= 0) return -1;
    }
    const at = this.#next;
    this.#next = at + alignUp(bytes, 8);
    return at;
  }

  /** Sends one packet without payload by reference that was written at `at`. */
  // oxlint-disable-next-line max-params -- hot path: an object for them would be allocated per packet
  sendPacket(sender: Sender, path: number, at: number, bytes: number): void {
    const { burst } = this;
    burst.peer = sender.peer;
    burst.path = path;
    burst.count = 1;
    burst.headerOffset = at;
    burst.headerBytes = bytes;
    burst.region = undefined;
    burst.payloadBytes = 0;
    burst.lastPayloadBytes = 0;
    burst.ranges = undefined;
    burst.urgent = true;
    this.sendBurst(sender.guard, false);
  }

  /**
   * Sends `burst` as it has been filled in; a connection with a guard has its packets tagged instead of summed.
   * `mayChange`: somebody may write to the payload's memory meanwhile.
   */
  sendBurst(guard: PacketGuard | undefined, mayChange: boolean): void {
    if (guard !== undefined) guard.seal(this.burst, this.words, mayChange);
    else if (this.#checksum !== 'none') this.#sum();
    this.#taken++;
    this.io.send(this.burst);
  }

  flush(): void {
    if (this.#taken > 0) this.io.flush();
    this.tagMemory?.release();
    this.#taken = 0;
    this.#next = 0;
  }

  #sum(): void {
    const { burst, view } = this;
    const withPayload = this.#checksum === 'full' && burst.region !== undefined;
    const flags = packetFlags.checksum | (withPayload ? packetFlags.payloadChecksum : 0);
    if (withPayload) this.#viewPayload(burst.region as Region);
    let payload = burst.payloadOffset;
    for (let packet = 0; packet < burst.count; packet++) {
      const at = burst.headerOffset + packet * burst.headerBytes;
      view.setUint16(at + FLAGS, view.getUint16(at + FLAGS, true) | flags, true);
      view.setInt32(at + CHECKSUM, 0, true);
      let crc = crc32cUpdate(CRC32C_START, view, at, at + burst.headerBytes);
      if (withPayload && burst.ranges !== undefined) crc = this.#sumRanges(crc, burst.ranges);
      else if (withPayload) {
        const bytes = packet === burst.count - 1 ? burst.lastPayloadBytes : burst.payloadBytes;
        crc = crc32cUpdate(crc, this.#payload as DataView, payload, payload + bytes);
        payload += bytes;
      }
      view.setInt32(at + CHECKSUM, crc32cEnd(crc), true);
    }
  }

  #sumRanges(crc: number, { sources, lengths }: RangeList): number {
    let sum = crc;
    for (let index = this.burst.firstRange; index < this.burst.endRange; index++) {
      const from = sources[index]!;
      sum = crc32cUpdate(sum, this.#payload as DataView, from, from + lengths[index]!);
    }
    return sum;
  }

  #viewPayload(region: Region): void {
    if (this.#payloadOf === region.bytes) return;
    this.#payloadOf = region.bytes;
    this.#payload = new DataView(region.bytes.buffer, region.bytes.byteOffset, region.bytes.byteLength);
  }
}
