// What UDP does here without a protocol: the ceilings that the transport is compared with, by the same system calls.
import { MessageBlock, receiveMessages, sendMessages } from '../../../native/udp.ts';
import { NativeBlock } from '../../../native/library.ts';
import { ReadinessSet } from '../../../native/readiness.ts';
import { MAX_DATAGRAM_BYTES, UdpSocket } from '../../../transport/io/udp/udp-packet-io.ts';
import { monotonicMicroseconds } from '../harness.ts';

interface BareUdpOptions {
  readonly host: string;
  readonly bufferBytes: number;
  /** How long to poll before sleeping. */
  readonly spinUs: number;
}

export interface BareStream {
  /** Bytes of each datagram. */
  readonly segmentBytes: number;
  /** Datagrams that the kernel cuts out of one send; 1 sends each by itself. */
  readonly segments: number;
  readonly seconds: number;
}

const HEADER_BYTES = 64;
const BATCH = 4;
/** Enough to keep both ends busy, little enough to fit the receiver's buffer. */
const WINDOW_BYTES = 2_097_152;
const SOURCE_BYTES = 8_388_608;
const SLOTS = 64;
const SLOT_BYTES = 65_536;
/** The end of a stream, in place of data. */
const END_BYTES = 16;
const END_COPIES = 5;
/** The other side is gone, or its datagrams are. */
const SILENCE_MICROSECONDS = 1_000_000;
/** Bytes that nobody acknowledges for so long were lost. */
const LOST_MICROSECONDS = 20_000;

/** Datagrams as the transport would send them at most: how many fit one send. */
export function segmentsPerSend(segmentBytes: number): number {
  return Math.max(1, Math.min(64, Math.floor(MAX_DATAGRAM_BYTES / segmentBytes)));
}

export class BareUdp implements Disposable {
  readonly port: number;
  readonly #socket: UdpSocket;
  readonly #readiness = new ReadinessSet();
  readonly #spinUs: number;
  readonly #small = new MessageBlock({ messages: 1, iovecsPerMessage: 1 });
  readonly #smallMemory = new NativeBlock(SLOT_BYTES);
  /** Held here, because the kernel's address of it does not keep memory from being collected. */
  #arena: NativeBlock | undefined;

  constructor({ host, bufferBytes, spinUs }: BareUdpOptions) {
    this.#socket = new UdpSocket({ host, bufferBytes });
    this.port = this.#socket.port;
    this.#spinUs = spinUs;
    this.#readiness.add(this.#socket.fd, 0);
    this.#small.setIovecCount(0, 1);
  }

  connect(host: string, port: number): void {
    this.#socket.connect({ host, port });
  }

  /** Sends to a peer that is in `receive`. Returns the bytes it acknowledged and the time. */
  send({ segmentBytes, segments, seconds }: BareStream): { readonly bytes: number; readonly microseconds: number } {
    const block = new MessageBlock({ messages: BATCH, iovecsPerMessage: 2 * segments });
    const headers = new NativeBlock(BATCH * segments * HEADER_BYTES);
    const source = new NativeBlock(SOURCE_BYTES);
    source.bytes.fill(1);
    const payloadBytes = segmentBytes - HEADER_BYTES;
    let offset = 0;
    let sent = 0;
    let acknowledged = 0;
    const begin = monotonicMicroseconds();
    const end = begin + seconds * 1e6;
    let lastHeard = begin;
    for (let now = begin; now < end; now = monotonicMicroseconds()) {
      if (sent - acknowledged > WINDOW_BYTES) {
        const count = this.#receiveSmall(LOST_MICROSECONDS);
        if (count === 4) acknowledged = Math.max(acknowledged, (this.#smallMemory.words[0] as number) * 1024);
        if (count > 0) lastHeard = now;
        else if (now - lastHeard > LOST_MICROSECONDS) acknowledged = sent;
        continue;
      }
      for (let message = 0; message < BATCH; message += 1) {
        block.setSegmentBytes(message, segments === 1 ? 0 : segmentBytes);
        block.setIovecCount(message, 2 * segments);
        for (let segment = 0; segment < segments; segment += 1) {
          const header = headers.address + (message * segments + segment) * HEADER_BYTES;
          block.setIovec(message, 2 * segment, header, HEADER_BYTES);
          block.setIovec(message, 2 * segment + 1, source.address + offset, payloadBytes);
          offset += payloadBytes;
          if (offset + payloadBytes > SOURCE_BYTES) offset = 0;
        }
      }
      const count = sendMessages(this.#socket.fd, block.addressOf(0), BATCH);
      if (count > 0) sent += count * segments * segmentBytes;
    }
    const microseconds = monotonicMicroseconds() - begin;
    for (let copy = 0; copy < END_COPIES; copy += 1) this.#sendSmall(END_BYTES);
    return { bytes: Math.min(sent, acknowledged + WINDOW_BYTES), microseconds };
  }

  /** Takes what a peer sends until its end, or until nothing comes any more. Returns the bytes. */
  receive(): number {
    const arena = (this.#arena ??= new NativeBlock(SLOTS * SLOT_BYTES));
    const block = new MessageBlock({ messages: SLOTS, iovecsPerMessage: 1 });
    for (let slot = 0; slot < SLOTS; slot += 1) {
      block.setIovec(slot, 0, arena.address + slot * SLOT_BYTES, SLOT_BYTES);
      block.setIovecCount(slot, 1);
    }
    let bytes = 0;
    let lastHeard = monotonicMicroseconds();
    for (;;) {
      for (let slot = 0; slot < SLOTS; slot += 1) block.expectControl(slot);
      const count = receiveMessages(this.#socket.fd, block.addressOf(0), SLOTS);
      if (count <= 0) {
        if (monotonicMicroseconds() - lastHeard > SILENCE_MICROSECONDS) return bytes;
        this.#pause(lastHeard, SILENCE_MICROSECONDS);
        continue;
      }
      lastHeard = monotonicMicroseconds();
      for (let slot = 0; slot < count; slot += 1) {
        const length = block.lengthOf(slot);
        if (length === END_BYTES) return bytes;
        bytes += length;
      }
      this.#smallMemory.words[0] = bytes / 1024;
      this.#sendSmall(4);
    }
  }

  /** Answers `count` datagrams with themselves. */
  answer(count: number): void {
    for (let round = 0; round < count; round += 1) {
      const bytes = this.#receiveSmall(SILENCE_MICROSECONDS);
      if (bytes <= 0) return;
      this.#sendSmall(bytes);
    }
  }

  /** Sends a datagram and waits for its answer, `count` times. Returns the microseconds of each round. */
  ask(count: number, bytes: number): Float64Array {
    const times = new Float64Array(count);
    for (let round = 0; round < count; round += 1) {
      const begin = monotonicMicroseconds();
      this.#sendSmall(bytes);
      if (this.#receiveSmall(SILENCE_MICROSECONDS) <= 0) return times.slice(0, round);
      times[round] = monotonicMicroseconds() - begin;
    }
    return times;
  }

  [Symbol.dispose](): void {
    this.#readiness[Symbol.dispose]();
    this.#socket[Symbol.dispose]();
  }

  #sendSmall(bytes: number): void {
    this.#small.setIovec(0, 0, this.#smallMemory.address, bytes);
    this.#small.setSegmentBytes(0, 0);
    sendMessages(this.#socket.fd, this.#small.addressOf(0), 1);
  }

  /** Bytes of the next datagram, 0 if none came in time. */
  #receiveSmall(patience: number): number {
    const begin = monotonicMicroseconds();
    for (;;) {
      this.#small.setIovec(0, 0, this.#smallMemory.address, SLOT_BYTES);
      this.#small.expectControl(0);
      if (receiveMessages(this.#socket.fd, this.#small.addressOf(0), 1) === 1) return this.#small.lengthOf(0);
      if (monotonicMicroseconds() - begin > patience) return 0;
      this.#pause(begin, patience);
    }
  }

  /** Polls for a while after `since`, then sleeps. */
  #pause(since: number, most: number): void {
    if (monotonicMicroseconds() - since > this.#spinUs) this.#readiness.sleep(Math.min(most, 100_000));
  }
}
