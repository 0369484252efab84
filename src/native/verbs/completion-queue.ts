// Completion queues: which requests are done and how, 16 by one call; and channels, by which a sleeping thread hears of them.
import { Block, wideAt, wordOffsets } from '../../abi/layout.ts';
import { completionStatus, completionStatuses, ibvCompletionChannel, ibvWc } from './c-structs.ts';
import { WeftlineError } from '../../core/errors.ts';
import { localFiles } from '../file-probe.ts';
import { NativeBlock, nativeError, viewAt } from '../library.ts';
import { doNotBlock } from '../readiness.ts';
import type { VerbsContext } from './context.ts';
import { refusalOf, requireWithin } from './facts.ts';

/** Completions that one poll takes at most. */
const POLL_BATCH = 16;

const field = wordOffsets(ibvWc);
const wcWords = ibvWc.size / 4;

/** How a thread that sleeps hears of completions: its descriptor becomes readable after a CQ of it was armed. */
export class CompletionChannel implements Disposable {
  readonly context: VerbsContext;
  readonly address: number;
  readonly descriptor: number;
  readonly #event = new NativeBlock(16);
  #isClosed = false;

  constructor(context: VerbsContext) {
    context.requireOpen();
    this.context = context;
    this.address = context.calls.ibv_create_comp_channel(context.address);
    if (this.address < 0) {
      throw nativeError('ibv_create_comp_channel', `making a completion channel of ${context.device}`, this.address);
    }
    const fields = new Block(ibvCompletionChannel, viewAt(this.address, ibvCompletionChannel.size), 0);
    this.descriptor = fields.get('descriptor');
    doNotBlock(this.descriptor);
    context.adopt(this);
  }

  /** Takes all events, so that the descriptor is not readable any more. Returns how many there were. Does not wait. */
  takeEvents(): number {
    const { ibv_get_cq_event: take, ibv_ack_cq_events: acknowledge } = this.context.calls;
    const { address, words } = this.#event;
    let count = 0;
    while (take(this.address, address, address + 8) === 0) {
      // A queue cannot be closed before each of its events was acknowledged.
      acknowledge(wideAt(words, 0), 1);
      count += 1;
    }
    return count;
  }

  /** Must be closed after its queues. */
  close(): void {
    if (this.#isClosed) return;
    const status = this.context.calls.ibv_destroy_comp_channel(this.address);
    if (status !== 0) throw nativeError('ibv_destroy_comp_channel', 'closing a completion channel', -status);
    this.#isClosed = true;
    this.context.release(this);
  }

  [Symbol.dispose](): void {
    this.close();
  }
}

export class CompletionQueue implements Disposable {
  readonly context: VerbsContext;
  readonly address: number;
  readonly #block = new NativeBlock(POLL_BATCH * ibvWc.size);
  readonly #words: Uint32Array = this.#block.words;
  #isClosed = false;

  /** The queue holds at least `entries` completions that were not taken; one more breaks it and its queue pairs. */
  constructor(context: VerbsContext, entries: number, channel?: CompletionChannel) {
    context.requireOpen();
    const { attributes, counts, device } = context;
    requireWithin(device, 'entries in a completion queue', entries, ['max_cqe', attributes.maxCqe]);
    this.context = context;
    this.address = context.calls.ibv_create_cq(context.address, entries, 0, channel?.address ?? 0, 0);
    if (this.address < 0) {
      const request = {
        device,
        attributes,
        limit: 'maxCq',
        held: counts.completionQueues,
        bytes: entries * 128,
      } as const;
      const what = `making a completion queue of ${entries} entries`;
      throw refusalOf({ call: 'ibv_create_cq', what, ...request }, this.address, localFiles());
    }
    counts.completionQueues += 1;
    context.adopt(this);
  }

  /** Hot path. Takes up to 16 completions and returns how many; they are read by their index until the next poll. */
  poll(): number {
    const count = this.context.operations.pollCompletions(this.address, POLL_BATCH, this.#block.address);
    if (count < 0) throw nativeError('ibv_poll_cq', `polling completions of ${this.context.device}`, count);
    return count;
  }

  /** The channel's descriptor becomes readable at the next completion: poll once more after arming, before sleeping. */
  arm(): void {
    const status = this.context.operations.requestNotification(this.address, 0);
    if (status !== 0) throw nativeError('ibv_req_notify_cq', 'arming a completion queue', -Math.abs(status));
  }

  isSuccess(index: number): boolean {
    return this.#words[index * wcWords + field.status] === completionStatus.success;
  }

  /** One of completionStatuses. */
  statusAt(index: number): number {
    return this.#words[index * wcWords + field.status]!;
  }

  /** Sequence of the request in its queue. */
  sequenceAt(index: number): number {
    return this.#words[index * wcWords + field.sequence]!;
  }

  /** What the request was given. */
  tagAt(index: number): number {
    return this.#words[index * wcWords + field.tag]!;
  }

  /** One of completionOpcode. Only of those that succeeded. */
  opcodeAt(index: number): number {
    return this.#words[index * wcWords + field.opcode]!;
  }

  /** Bytes of what was received; with the routing header, for datagrams. */
  bytesAt(index: number): number {
    return this.#words[index * wcWords + field.bytes]!;
  }

  immediateAt(index: number): number {
    const value = this.#words[index * wcWords + field.immediate]!;
    return swapBytes(value);
  }

  /** Number of the queue pair of this process. */
  queuePairAt(index: number): number {
    return this.#words[index * wcWords + field.queuePair]!;
  }

  /** Number of the queue pair that sent a datagram. */
  sourceAt(index: number): number {
    return this.#words[index * wcWords + field.sourceQueuePair]!;
  }

  /** Bits of completionFlag. */
  flagsAt(index: number): number {
    return this.#words[index * wcWords + field.flags]!;
  }

  /** What became of a request that failed. */
  errorAt(index: number, what: string): WeftlineError {
    return completionError(this.statusAt(index), what, {
      device: this.context.device,
      queuePair: this.queuePairAt(index),
      vendorError: this.#words[index * wcWords + field.vendorError]!,
    });
  }

  /** Must be closed after its queue pairs. */
  close(): void {
    if (this.#isClosed) return;
    const status = this.context.calls.ibv_destroy_cq(this.address);
    if (status !== 0) throw nativeError('ibv_destroy_cq', 'closing a completion queue', -status);
    this.#isClosed = true;
    this.context.counts.completionQueues -= 1;
    this.context.release(this);
  }

  [Symbol.dispose](): void {
    this.close();
  }
}

/** The error of a request by the status of its completion: WL_PEER_LOST if the peer did not answer, else WL_NATIVE. */
export function completionError(
  status: number,
  what: string,
  details: Readonly<Record<string, unknown>>,
): WeftlineError {
  const [name, words] = completionStatuses[status] ?? [
    `ibv_wc_status ${status}`,
    'a status that weftline does not know',
  ];
  const code = status === completionStatus.retriesExceeded ? 'WL_PEER_LOST' : 'WL_NATIVE';
  return new WeftlineError(code, `${what} failed with ${name}: ${words}`, { details: { ...details, status: name } });
}

/** Immediate data is in network order. */
function swapBytes(value: number): number {
  return ((value << 24) | ((value & 0xff00) << 8) | ((value >>> 8) & 0xff00) | (value >>> 24)) >>> 0;
}
