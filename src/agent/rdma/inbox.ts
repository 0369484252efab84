// The receiver's memory of a link: messages of the peer, and the credits that it is told.
import {
  RDMA_MESSAGES,
  RDMA_RING_BYTES,
  canBeShort,
  immediateBytes,
  immediateOffset,
  isShort,
  shortMessage,
} from './link-layout.ts';
import { NativeBlock } from '../../native/library.ts';
import { protocolError } from '../../meeting/frames.ts';
import { MAX_NOTIFICATION_BYTES } from '../backend.ts';
import type { OwnMemory, RdmaDevice } from './rdma-device.ts';

/** Credits go in one request when this part of them waits: the sender always has more left than it needs for a message. */
const MESSAGES_TOLD = RDMA_MESSAGES / 8;
const BYTES_TOLD = RDMA_RING_BYTES / 4;
const CREDIT_BYTES = 8;

export class Inbox implements Disposable {
  readonly address: number;
  readonly region: OwnMemory;
  readonly creditAddress: number;
  readonly #bytes: Uint8Array;
  readonly #credits: Uint32Array;
  /** Immediates of messages that wait for the agent. */
  readonly #waiting = new Uint32Array(RDMA_MESSAGES);
  #first = 0;
  #next = 0;
  #wakes = 0;
  #untoldMessages = 0;
  #untoldBytes = 0;
  #untoldWakes = 0;

  /** Fails with WL_CAPACITY. */
  constructor(device: RdmaDevice) {
    const block = new NativeBlock(RDMA_RING_BYTES + CREDIT_BYTES);
    this.address = block.address;
    this.creditAddress = block.address + RDMA_RING_BYTES;
    this.#bytes = block.bytes;
    this.#credits = block.words.subarray(RDMA_RING_BYTES / 4);
    this.region = device.register({
      address: block.address,
      bytes: RDMA_RING_BYTES + CREDIT_BYTES,
      isOffered: false,
    });
  }

  /** Hot path. A message has come. Fails with WL_PROTOCOL if it cannot be one. */
  arrived(immediate: number): void {
    if (!canBe(immediate) || this.#next - this.#first === RDMA_MESSAGES) {
      throw protocolError(`immediate data ${immediate.toString(16)} of a message that cannot be`);
    }
    this.#waiting[this.#next++ % RDMA_MESSAGES] = immediate;
  }

  woken(): void {
    this.#wakes = (this.#wakes + 1) >>> 0;
    this.#untoldWakes++;
  }

  /** Messages that have come. */
  get arrivedCount(): number {
    return this.#next;
  }

  get isEmpty(): boolean {
    return this.#first === this.#next;
  }

  /** A copy of the oldest message, which is taken. */
  take(): Uint8Array {
    const immediate = this.#waiting[this.#first % RDMA_MESSAGES]!;
    this.#first++;
    this.#untoldMessages++;
    if (isShort(immediate)) return shortMessage(immediate);
    const bytes = immediateBytes(immediate);
    const offset = immediateOffset(immediate);
    this.#untoldBytes += bytes;
    return this.#bytes.slice(offset, offset + bytes);
  }

  /** The sender should be told. */
  get owesCredits(): boolean {
    return (
      this.#untoldMessages >= MESSAGES_TOLD || this.#untoldWakes >= MESSAGES_TOLD || this.#untoldBytes >= BYTES_TOLD
    );
  }

  /** What the sender is told next lies at `creditAddress` in memory. */
  writeCredits(): void {
    this.#credits[0] = this.#first >>> 0;
    this.#credits[1] = this.#wakes;
    this.#untoldMessages = 0;
    this.#untoldBytes = 0;
    this.#untoldWakes = 0;
  }

  [Symbol.dispose](): void {
    this.region.close();
  }
}

function canBe(immediate: number): boolean {
  if (isShort(immediate)) return canBeShort(immediate);
  const bytes = immediateBytes(immediate);
  return bytes <= MAX_NOTIFICATION_BYTES && immediateOffset(immediate) + bytes <= RDMA_RING_BYTES;
}
