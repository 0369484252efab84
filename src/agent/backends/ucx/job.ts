// What one side has to do for the other over a link: the parts of a transfer, a signal, a notification, an answer.
import type { WeftlineError } from '../../../core/errors.ts';
import { copyMemory } from '../../../native/libc.ts';
import { NativeBlock } from '../../../native/native-block.ts';

export type JobKind = 'write' | 'read' | 'data' | 'signal' | 'notify';

/** One of a job's places; of a signal, `bytes` is what to add. */
export interface JobPart {
  readonly localAddress: number;
  readonly remoteRegion: number;
  readonly remoteKey: number;
  readonly remoteOffset: number;
  readonly bytes: number;
}

/** Data and notification up to this size travel as one message, for which they are copied together. */
const PACKED_BYTES = 4096;

/** Made once, posted again and again; the arrays are by part. */
export class Job {
  readonly kind: JobKind;
  readonly count: number;
  readonly localAddress: Float64Array;
  readonly remoteRegion: Uint32Array;
  readonly remoteKey: Uint32Array;
  readonly remoteOffset: Float64Array;
  readonly bytes: Float64Array;
  /** Of what the far side asked for: its operation and part. */
  operation = 0;
  answeredPart = 0;
  /** The next message: part, and bytes of it that were sent before. */
  cursor = 0;
  cursorOffset = 0;
  messageBytes = 0;
  isMessageSent = false;
  /** First and last sequence, and how many sends the link had posted after the last message. */
  first = 0;
  last = 0;
  sendsAfter = 0;
  hasSent = false;
  /** Of a read: questions without an answer. */
  unanswered = 0;
  isPending = false;
  failure: WeftlineError | undefined;
  #follower: Job | undefined;
  #message: NativeBlock | undefined;
  #packed: NativeBlock | undefined;

  constructor(kind: JobKind, parts: readonly JobPart[]) {
    this.kind = kind;
    this.count = parts.length;
    this.localAddress = Float64Array.from(parts, (part) => part.localAddress);
    this.remoteRegion = Uint32Array.from(parts, (part) => part.remoteRegion);
    this.remoteKey = Uint32Array.from(parts, (part) => part.remoteKey);
    this.remoteOffset = Float64Array.from(parts, (part) => part.remoteOffset);
    this.bytes = Float64Array.from(parts, (part) => part.bytes);
    const last = parts.at(-1);
    if (kind === 'write' && last !== undefined && last.bytes < PACKED_BYTES)
      this.#packed = new NativeBlock(PACKED_BYTES);
  }

  /** Hot path. To be called before it is given to a link; `message` is copied. */
  start(operation: number, message: number, messageBytes: number): void {
    this.operation = operation;
    this.cursor = 0;
    this.cursorOffset = 0;
    this.hasSent = false;
    this.unanswered = 0;
    this.failure = undefined;
    this.isPending = true;
    this.messageBytes = messageBytes;
    // That of a read follows its answers, as a job of its own.
    this.isMessageSent = messageBytes === 0 || this.kind === 'read';
    if (messageBytes === 0) return;
    if (this.#message === undefined || this.#message.bytes.length < messageBytes) {
      this.#message = new NativeBlock(Math.max(256, messageBytes));
    }
    copyMemory(this.#message.address, message, messageBytes);
  }

  /** Hot path. True if the last part, of which `bytes` are left, goes together with the notification. */
  canPack(bytes: number): boolean {
    return this.messageBytes > 0 && this.#packed !== undefined && bytes + this.messageBytes <= PACKED_BYTES;
  }

  /** Hot path. The bytes at `from` and behind them the notification: the address of both. */
  pack(from: number, bytes: number): number {
    const packed = this.#packed as NativeBlock;
    copyMemory(packed.address, from, bytes);
    copyMemory(packed.address + bytes, this.messageAddress, this.messageBytes);
    return packed.address;
  }

  /** The notification of a read, once all answers are there. */
  startFollower(): Job {
    if (this.#follower === undefined || this.#follower.isPending) this.#follower = new Job('notify', []);
    this.#follower.start(this.operation, this.messageAddress, this.messageBytes);
    return this.#follower;
  }

  get messageAddress(): number {
    return (this.#message as NativeBlock).address;
  }

  /** What is not sent yet stays so; what was sent still ends in its time. */
  stop(failure: WeftlineError): void {
    this.failure ??= failure;
    this.cursor = this.count;
    this.isMessageSent = true;
  }
}
