// A prepared transfer as the user holds it: posted many times, waited for, measured.
import { beginChannelCall, endChannelCall, transferChannel, type TransferContext } from '../core/call-channels.ts';
import { checkOptions } from '../core/check-options.ts';
import { countError } from '../core/counts.ts';
import { waitOptionNames, type WaitOptions } from '../core/deadline.ts';
import { invalidArgument, WeftlineError } from '../core/errors.ts';
import { traceBegin, traceEnd } from '../core/trace.ts';
import type { PartTable } from '../transport/part-table.ts';
import {
  type BackendLink,
  type BackendTransfer,
  type TransferOperation,
  type TransferState,
  untilDone,
} from './backend.ts';
import type { BackendName } from './backends/backend-table.ts';
import { type Message, messageBytes } from './notifications.ts';
import type { RemoteAgent } from './remote-agent.ts';
import type { Selection } from './transfer-plan.ts';
import type { Awaited, Waiter } from './waiting.ts';

/** Sizes, counts and times of one transfer since it was prepared; times are in microseconds. */
export interface TransferTelemetry {
  /** Bytes of one post, as the descriptors say, and their number; of a transfer by selection, of the last post. */
  readonly bytes: number;
  readonly descriptors: number;
  /** Ranges that such a post moves after neighbours were joined. */
  readonly parts: number;
  readonly posts: number;
  readonly failures: number;
  /** The time that the last post's call took, and that until this side saw the end. */
  readonly postMicroseconds: number;
  readonly transferMicroseconds: number;
  /** Sums over all posts. */
  readonly totalPostMicroseconds: number;
  readonly totalTransferMicroseconds: number;
}

interface TransferParts {
  readonly number: number;
  readonly agent: string;
  readonly peer: RemoteAgent;
  readonly operation: TransferOperation;
  readonly backend: BackendName;
  readonly link: BackendLink;
  readonly inner: BackendTransfer;
  readonly parts: PartTable;
  /** Entries and bytes of one post, or of the last, and how the entries of a post are chosen; undefined if it moves all. */
  readonly size: { readonly entries: number; readonly bytes: number };
  readonly select: ((selection: Selection) => void) | undefined;
  readonly waiter: Waiter;
  /** The transfer is under way. */
  readonly onPost: (transfer: Transfer) => void;
  /** Memory of this side that it uses. */
  readonly isLocalOpen: () => boolean;
}

/** Places of times in milliseconds. */
const [POSTED_AT, POST, TRANSFER, ALL_POSTS, ALL_TRANSFERS] = [0, 1, 2, 3, 4] as const;

/** Transfers of this process so far. */
let traced = 0;

const channel = transferChannel();

/**
 * A post fails with WL_INVALID_ARGUMENT while one is under way or for a message that is too long, WL_CLOSED when the
 * transfer, its memory or the agent is released, WL_STALE when the peer's metadata have been replaced, and with the link's error when the peer is gone.
 */
export class Transfer implements Awaited, AsyncDisposable {
  /** The number in this process: agents number their own. */
  readonly #traced = ++traced;
  /** The number at the agent. */
  readonly number: number;
  readonly operation: TransferOperation;
  readonly backend: BackendName;
  readonly #parts: TransferParts;
  readonly #label: string;
  /** One piece of memory, because after a copy that emptied the caches each further cache line costs. */
  readonly #times: Float64Array = new Float64Array(5);
  #posts = 0;
  #failures = 0;
  #isUnderWay = false;
  /** The context of a post whose begin listeners were told. */
  #told: TransferContext | undefined;
  #isClosed = false;
  readonly #release = untilDone(() => this.#parts.inner.release());

  /** @internal */
  constructor(parts: TransferParts) {
    this.number = parts.number;
    this.operation = parts.operation;
    this.backend = parts.backend;
    this.#parts = parts;
    this.#label = `${parts.operation} by ${parts.backend}`;
  }

  /** Name of the agent at the other end. */
  get peer(): string {
    return this.#parts.peer.name;
  }

  /** Hot path. Done means delivered: every byte is visible where it belongs. */
  get state(): TransferState {
    this.look();
    return this.#parts.inner.state;
  }

  /** Why the last post failed. */
  get error(): WeftlineError | undefined {
    return this.state === 'failed' ? this.#parts.inner.error : undefined;
  }

  /** @internal */
  get isSettled(): boolean {
    return this.state !== 'pending';
  }

  /**
   * Hot path: no allocation, never waits. The message, of up to MAX_NOTIFICATION_BYTES (a string as UTF-8), is delivered at
   * the peer behind the data; it is copied. The selection says which entries go, if the transfer was prepared by selection;
   * its arrays are read during the call. Fails with WL_BUSY, having posted nothing, while the peer does not take its notifications or too much is under way.
   */
  post(message?: Message, selection?: Selection): void {
    if (this.#isUnderWay && !this.isSettled) throw this.#stillUnderWay();
    const { peer, inner, link, isLocalOpen } = this.#parts;
    if (this.#isClosed) throw new WeftlineError('WL_CLOSED', `${this.#name()} was closed`);
    const bytes = message === undefined ? undefined : messageBytes(message);
    if (peer.ended !== undefined) throw peer.ended;
    if (link.error !== undefined) throw link.error;
    if (!isLocalOpen())
      throw new WeftlineError('WL_CLOSED', `${this.#name()}: the registration of its memory was closed`);
    const start = performance.now();
    this.#select(selection);
    traceBegin('agent.post', this.#traced);
    inner.post(bytes);
    traceEnd('agent.post', this.#traced);
    traceBegin('agent.transfer', this.#traced, this.#label);
    const end = performance.now();
    const times = this.#times;
    times[POSTED_AT] = start;
    times[POST] = end - start;
    times[ALL_POSTS]! += end - start;
    this.#posts++;
    this.#isUnderWay = true;
    if (channel.hasSubscribers) this.#tell();
    if (inner.state === 'pending') this.#parts.onPost(this);
    else this.#end(end);
  }

  /** Resolves when the last post is done; fails with why it failed, with WL_TIMEOUT (it then goes on), with the signal's reason. */
  async wait(options?: WaitOptions): Promise<void> {
    if (options !== undefined) checkOptions(options, waitOptionNames, 'options of wait');
    if (!this.isSettled) await this.#parts.waiter.wait(this, options);
    this.#throwFailure();
  }

  /** The same, but blocks this thread: answers sooner, while its timers and sockets stand still. */
  waitBlocking(timeoutMs?: number): void {
    if (!this.isSettled) this.#parts.waiter.waitBlocking(this, timeoutMs);
    this.#throwFailure();
  }

  /**
   * Ends a post that is under way early, as failed with WL_CLOSED, unless it ends by itself first. Part of it may have been carried out;
   * once it has ended, nothing of it is written any more, at either side.
   */
  cancel(): void {
    if (this.state === 'pending') this.#parts.inner.cancel();
  }

  /**
   * Cancels and frees it: once it has resolved, nothing of it reads or writes memory of this side. Fails with WL_TIMEOUT while a GPU that
   * does not answer may; the call may then be repeated. Idempotent.
   */
  close(): Promise<void> {
    this.#isClosed = true;
    return this.#release();
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }

  /** Sizes, counts and times of its posts so far. */
  get telemetry(): TransferTelemetry {
    this.look();
    const { size, parts } = this.#parts;
    const microseconds = (index: number): number => this.#times[index]! * 1000;
    return {
      bytes: size.bytes,
      descriptors: size.entries,
      parts: parts.sums().ranges,
      posts: this.#posts,
      failures: this.#failures,
      postMicroseconds: microseconds(POST),
      transferMicroseconds: microseconds(TRANSFER),
      totalPostMicroseconds: microseconds(ALL_POSTS),
      totalTransferMicroseconds: microseconds(ALL_TRANSFERS),
    };
  }

  /** @internal Hot path. Notes the end of a post. True if none is under way. */
  look(): boolean {
    if (!this.#isUnderWay) return true;
    if (this.#parts.inner.state === 'pending') return false;
    this.#end(performance.now());
    return true;
  }

  /** @internal */
  describe(): string {
    return `${this.#name()} did not end`;
  }

  /** @internal */
  missing(): { readonly peers: readonly string[] } {
    return { peers: [this.peer] };
  }

  #end(now: number): void {
    this.#isUnderWay = false;
    traceEnd('agent.transfer', this.#traced, this.#label, this.#parts.size.bytes);
    const times = this.#times;
    const time = now - times[POSTED_AT]!;
    times[TRANSFER] = time;
    times[ALL_TRANSFERS]! += time;
    const { state, error } = this.#parts.inner;
    if (state === 'failed') {
      this.#failures++;
      countError(error);
    }
    if (this.#told === undefined) return;
    if (state === 'failed') this.#told.error = error;
    endChannelCall(channel, this.#told);
    this.#told = undefined;
  }

  #tell(): void {
    const { agent, operation, backend, size } = this.#parts;
    this.#told = { agent, peer: this.peer, operation, backend, bytes: size.bytes };
    beginChannelCall(channel, this.#told);
  }

  /** Hot path. Names the entries of a post. */
  #select(selection: Selection | undefined): void {
    const { select } = this.#parts;
    if (select === undefined && selection === undefined) return;
    if (select === undefined) throw invalidArgument('selection', selection, 'none: prepare it with bySelection: true');
    if (selection === undefined) throw invalidArgument('selection', selection, '{ local, remote }: indices of entries');
    select(selection);
  }

  #throwFailure(): void {
    const { inner, peer } = this.#parts;
    if (inner.state === 'idle') throw new WeftlineError('WL_INVALID_ARGUMENT', `${this.#name()} was never posted`);
    if (inner.state !== 'failed') return;
    const cause = inner.error;
    throw new WeftlineError(cause?.code ?? 'WL_INTERNAL', `${this.#name()} failed: ${cause?.message}`, {
      details: { ...cause?.details, peer: peer.name, backend: this.backend, transfer: this.number },
      cause,
    });
  }

  #stillUnderWay(): WeftlineError {
    return new WeftlineError(
      'WL_INVALID_ARGUMENT',
      `${this.#name()} is under way: wait for its end, or prepare another`,
      {
        details: { peer: this.peer, backend: this.backend, transfer: this.number },
      },
    );
  }

  #name(): string {
    const { agent, peer, operation, backend, number } = this.#parts;
    const preposition = operation === 'read' ? 'from' : 'to';
    return `Transfer ${number} (${operation} of agent ${agent} ${preposition} agent ${peer.name} by ${backend})`;
  }
}
