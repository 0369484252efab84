// The place where packets are put together: a cursor through the I/O's arena, and the one burst object. Hot path: no allocation.
import { alignUp } from '../../abi/layout.ts';
import { DATA_HEADER_BYTES, dataHeader, packetFlags, packetPrefix } from './packet-layout.ts';
import type { Burst, PacketIo } from '../io/packet-io.ts';
import type { Region } from '../engine/region.ts';
import type { PacketGuard, TagMemory } from '../authentication/packet-guard.ts';
import type { TransportSettings } from '../engine/transport-settings.ts';
import { CRC32C_START, crc32cEnd, crc32cUpdate, WordChange } from './crc32c.ts';

/** Words of a header. */
const CHECKSUM = packetPrefix.offset.checksum / 4;
const SEQUENCE = dataHeader.offset.sequence / 4;
const PATH_SEQUENCE = dataHeader.offset.pathSequence / 4;
const OFFSET = dataHeader.offset.offset / 4;
const HIGH = dataHeader.offset.offsetHigh / 4;
/** Checksum of the words in which the headers of a burst differ. */
const sequenceChange = changeAt(SEQUENCE);
const pathSequenceChange = changeAt(PATH_SEQUENCE);
const offsetChange = changeAt(OFFSET);

function changeAt(word: number): WordChange {
  return new WordChange(DATA_HEADER_BYTES - 4 * (word + 1));
}

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
    urgent: false,
  };
  readonly #size: number;
  readonly #checksum: TransportSettings['checksum'];
  #next = 0;
  #taken = 0;
  /** Bytes of the region whose payload was last summed. */
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
    const { burst, words } = this;
    const withPayload = this.#checksum === 'full' && burst.region !== undefined;
    const flags = packetFlags.checksum | (withPayload ? packetFlags.payloadChecksum : 0);
    if (withPayload) this.#viewPayload(burst.region as Region);
    const { count, headerBytes } = burst;
    let word = burst.headerOffset >>> 2;
    const first = word;
    const last = first + (count - 1) * (headerBytes >>> 2);
    for (let packet = 0; packet < count; packet++, word += headerBytes >>> 2) {
      words[word] = words[word]! | (flags << 16);
      const isAlike = !withPayload && word !== first && word !== last && words[word + HIGH] === words[first + HIGH];
      words[word + CHECKSUM] = isAlike ? this.#sumAlike(word, first) : this.#sumPacket(packet, word, withPayload);
    }
  }

  #sumPacket(packet: number, word: number, withPayload: boolean): number {
    const { burst, view, words } = this;
    words[word + CHECKSUM] = 0;
    let crc = crc32cUpdate(CRC32C_START, view, word * 4, word * 4 + burst.headerBytes);
    if (withPayload) {
      const payload = burst.payloadOffset + packet * burst.payloadBytes;
      const bytes = packet === burst.count - 1 ? burst.lastPayloadBytes : burst.payloadBytes;
      crc = crc32cUpdate(crc, this.#payload as DataView, payload, payload + bytes);
    }
    return crc32cEnd(crc);
  }

  /** The checksum of a header from that of another, which differs in two numbers and the place alone, as those of a burst do. */
  #sumAlike(word: number, from: number): number {
    const { words } = this;
    return (
      words[from + CHECKSUM]! ^
      sequenceChange.of(words[word + SEQUENCE]! ^ words[from + SEQUENCE]!) ^
      pathSequenceChange.of(words[word + PATH_SEQUENCE]! ^ words[from + PATH_SEQUENCE]!) ^
      offsetChange.of(words[word + OFFSET]! ^ words[from + OFFSET]!)
    );
  }

  #viewPayload(region: Region): void {
    if (this.#payloadOf === region.bytes) return;
    this.#payloadOf = region.bytes;
    this.#payload = new DataView(region.bytes.buffer, region.bytes.byteOffset, region.bytes.byteLength);
  }
}
