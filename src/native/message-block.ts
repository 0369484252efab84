// Arguments of sendmmsg and recvmmsg, laid out once: mmsghdr, iovec and control records in one block. Hot path: no allocation.
import { NativeBlock } from './library.ts';

// Structures of the Linux kernel here and in the other files of this folder are those of x86-64 and arm64: little-endian, 64 bits.

/** struct mmsghdr, in words of 32 bits: name, name length, iovecs, their count, control, its length, flags, msg_len. */
const messageHeaderWord = {
  iovecs: 4,
  iovecCount: 6,
  control: 8,
  controlLength: 10,
  flags: 12,
  length: 14,
} as const;
export const MESSAGE_HEADER_WORDS = 16;

/** struct iovec, in words of 32 bits: address, bytes. */
export const iovecWord = { address: 0, bytes: 2 } as const;
export const IOVEC_WORDS = 4;

/** Room for the control records that the kernel may add: a segment size is 24 bytes. */
const CONTROL_BYTES = 64;
const SEGMENT_RECORD_BYTES = 24;
const SOL_UDP = 17;
const UDP_SEGMENT = 103;
const UDP_GRO = 104;
const MSG_TRUNC = 0x20;
const TWO_32 = 2 ** 32;

interface MessageBlockOptions {
  readonly messages: number;
  readonly iovecsPerMessage: number;
}

/** What messages of headers and parts have in common; the last part may be shorter. */
interface HeaderPairs {
  readonly count: number;
  readonly headerBytes: number;
  readonly payloadBytes: number;
  readonly lastPayloadBytes: number;
}

export class MessageBlock {
  readonly messages: number;
  readonly iovecsPerMessage: number;
  readonly #block: NativeBlock;
  readonly #words: Uint32Array;
  readonly #firstIovec: number;
  readonly #firstControl: number;

  constructor({ messages, iovecsPerMessage }: MessageBlockOptions) {
    this.messages = messages;
    this.iovecsPerMessage = iovecsPerMessage;
    this.#firstIovec = messages * MESSAGE_HEADER_WORDS;
    this.#firstControl = this.#firstIovec + messages * iovecsPerMessage * IOVEC_WORDS;
    this.#block = new NativeBlock(this.#firstControl * 4 + messages * CONTROL_BYTES);
    this.#words = this.#block.words;
    for (let message = 0; message < messages; message += 1) {
      const header = message * MESSAGE_HEADER_WORDS;
      const iovecs = this.#firstIovec + message * iovecsPerMessage * IOVEC_WORDS;
      this.#setAddress(header + messageHeaderWord.iovecs, this.#block.address + iovecs * 4);
      const control = this.#controlOf(message);
      this.#setAddress(header + messageHeaderWord.control, this.#block.address + control * 4);
      this.#words[control] = 18;
      this.#words[control + 2] = SOL_UDP;
      this.#words[control + 3] = UDP_SEGMENT;
    }
  }

  /** Address of the mmsghdr of a message, which the calls take. */
  addressOf(message: number): number {
    return this.#block.address + message * MESSAGE_HEADER_WORDS * 4;
  }

  setIovec(message: number, index: number, address: number, bytes: number): void {
    const at = this.#firstIovec + (message * this.iovecsPerMessage + index) * IOVEC_WORDS;
    const words = this.#words;
    words[at] = address;
    words[at + 1] = address / TWO_32;
    words[at + 2] = bytes;
  }

  /** All iovecs of a message of headers, from address `header` on, each before its part of the memory from `payload` on. */
  setPairs(message: number, pairs: HeaderPairs, header: number, payload: number): void {
    const { count, headerBytes, payloadBytes, lastPayloadBytes } = pairs;
    const last = 2 * (count - 1);
    const headerHigh = Math.floor(header / TWO_32);
    const payloadHigh = Math.floor(payload / TWO_32);
    const isPlain =
      Math.floor((header + count * headerBytes) / TWO_32) === headerHigh &&
      Math.floor((payload + count * payloadBytes) / TWO_32) === payloadHigh;
    if (isPlain) {
      // The low words alone differ here, and whole numbers of 32 bits are quick.
      const words = this.#words;
      let headerLow = (header - headerHigh * TWO_32) | 0;
      let payloadLow = (payload - payloadHigh * TWO_32) | 0;
      let at = this.#firstIovec + message * this.iovecsPerMessage * IOVEC_WORDS;
      for (let pair = 0; pair < count; pair += 1) {
        words[at] = headerLow;
        words[at + 1] = headerHigh;
        words[at + 2] = headerBytes;
        words[at + 4] = payloadLow;
        words[at + 5] = payloadHigh;
        words[at + 6] = payloadBytes;
        headerLow = (headerLow + headerBytes) | 0;
        payloadLow = (payloadLow + payloadBytes) | 0;
        at += 2 * IOVEC_WORDS;
      }
    } else {
      for (let pair = 0; pair < count; pair += 1) {
        this.setIovec(message, 2 * pair, header + pair * headerBytes, headerBytes);
        this.setIovec(message, 2 * pair + 1, payload + pair * payloadBytes, payloadBytes);
      }
    }
    this.setIovec(message, last + 1, payload + (count - 1) * payloadBytes, lastPayloadBytes);
    this.setIovecCount(message, 2 * count);
  }

  setIovecCount(message: number, count: number): void {
    this.#words[message * MESSAGE_HEADER_WORDS + messageHeaderWord.iovecCount] = count;
  }

  /** Prepares sending: the kernel cuts the message into datagrams of `bytes`; 0 sends it as one. */
  setSegmentBytes(message: number, bytes: number): void {
    this.#words[message * MESSAGE_HEADER_WORDS + messageHeaderWord.controlLength] =
      bytes === 0 ? 0 : SEGMENT_RECORD_BYTES;
    if (bytes !== 0) this.#words[this.#controlOf(message) + 4] = bytes;
  }

  /** Prepares receiving, before every call, because the kernel shortens what it was given. */
  expectControl(message: number): void {
    this.#words[message * MESSAGE_HEADER_WORDS + messageHeaderWord.controlLength] = CONTROL_BYTES;
  }

  /** Bytes of a received message. */
  lengthOf(message: number): number {
    return this.#words[message * MESSAGE_HEADER_WORDS + messageHeaderWord.length]!;
  }

  /** True if the message was longer than its iovecs. */
  isTruncated(message: number): boolean {
    return (this.#words[message * MESSAGE_HEADER_WORDS + messageHeaderWord.flags]! & MSG_TRUNC) !== 0;
  }

  /** Bytes of each of the datagrams that the kernel joined into this message, the last of which may be shorter. */
  segmentBytesOf(message: number): number {
    const control = this.#controlOf(message);
    const isJoined =
      this.#words[message * MESSAGE_HEADER_WORDS + messageHeaderWord.controlLength]! >= SEGMENT_RECORD_BYTES - 4 &&
      this.#words[control + 3] === UDP_GRO;
    return isJoined ? this.#words[control + 4]! : this.lengthOf(message);
  }

  #controlOf(message: number): number {
    return this.#firstControl + message * (CONTROL_BYTES / 4);
  }

  #setAddress(word: number, address: number): void {
    this.#words[word] = address;
    this.#words[word + 1] = address / TWO_32;
  }
}
