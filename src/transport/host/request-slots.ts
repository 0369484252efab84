// Requests as the user sees them: handles over the slots of the shared table, their ends, and waits with deadlines.
import { engineCommandKinds, REQUEST_SLOTS, slotStates } from '../engine-commands.ts';
import { decodeError, type EncodedError, invalidArgument, WeftlineError } from '../../core/errors.ts';
import { checkTimeout, type WaitOptions } from '../../core/deadline.ts';
import { beginWait, endWait, type WaitEntry } from '../../core/waits.ts';
import { EngineCommand } from './command-ring.ts';
import type { EngineGroup } from './engine-group.ts';
import { NOBODY } from './shared-requests.ts';

/** Names a request until its end has been taken; later it names nothing. */
export type RequestHandle = number;

/** How a request stands. */
export type RequestState = 'pending' | 'done' | 'failed';

/** An async wait looks at signals and at whether the engine lives at least this often. */
const SLICE_MS = 100;

/** The request that is waited for, and receives that were posted ahead, which may wait for long. */
const FEW_REQUESTS = 4;

export class RequestSlots {
  /** What the next `post` sends; written by the caller, who leaves `slot` alone. */
  readonly command: EngineCommand = new EngineCommand();
  readonly #group: EngineGroup;
  readonly #timeoutMs: number;
  readonly #free: Int32Array = Int32Array.from({ length: REQUEST_SLOTS }, (_, index) => REQUEST_SLOTS - 1 - index);
  #freeCount: number = REQUEST_SLOTS;
  /** The current use of each slot, so that an old handle finds nothing. */
  readonly #uses: Float64Array = new Float64Array(REQUEST_SLOTS);
  /** The engines that have a part of each slot's request, as bits. */
  readonly #engines: Uint16Array = new Uint16Array(REQUEST_SLOTS);
  readonly #errors = new Map<number, EncodedError>();
  /** Name of the peer that a slot's request is with, for errors. */
  readonly #peers: string[] = [];

  constructor(group: EngineGroup, timeoutMs: number) {
    this.#group = group;
    this.#timeoutMs = timeoutMs;
  }

  /** Hot path. Hands the command to an engine. Fails with WL_BUSY when too many requests are under way. */
  post(peer: string, engine: number): RequestHandle {
    const request = this.open(peer, 1 << engine, 1, NOBODY);
    this.put(engine);
    return request;
  }

  /**
   * Begins a request with a part on each of several engines, given as bits: `put` is to follow for each of them. `last` is
   * the engine that is told when only its own part is left, or NOBODY. Fails with WL_BUSY when too many requests are under way; nothing has been posted then.
   */
  // oxlint-disable-next-line max-params -- hot path: an object for them would be allocated per request
  open(peer: string, engines: number, parts: number, last: number): RequestHandle {
    const group = this.#group;
    if (group.failure !== undefined) throw group.failure;
    if (this.#freeCount === 0 || !group.haveRoom(engines)) throw tooMany();
    this.#freeCount -= 1;
    const slot = this.#free[this.#freeCount]!;
    this.command.slot = slot;
    this.#engines[slot] = engines;
    this.#peers[slot] = peer;
    group.requests.open(slot, parts, last);
    return slot + this.#uses[slot]! * REQUEST_SLOTS;
  }

  /** Hot path. Hands the command to an engine as its part of the request that was opened last. */
  put(engine: number): void {
    this.#group.put(engine, this.command);
  }

  /** `numbers`: of the connection, by engine. */
  cancel(request: RequestHandle, numbers: readonly number[]): void {
    const slot = this.#slotOf(request);
    const engines = this.#engines[slot]!;
    if (!this.#group.haveRoom(engines)) throw tooMany();
    const { command } = this;
    command.kind = engineCommandKinds.cancel;
    command.slot = slot;
    for (let engine = 0; engines >> engine !== 0; engine++) {
      if (((engines >> engine) & 1) === 0) continue;
      command.connection = numbers[engine]!;
      this.put(engine);
    }
  }

  state(request: RequestHandle): RequestState {
    const state = this.#group.requests.stateOf(this.#slotOf(request));
    if (state === slotStates.pending) return 'pending';
    return state === slotStates.done ? 'done' : 'failed';
  }

  /** Takes note of the end of a request: its handle is free afterwards. Returns the bytes received, or throws why it failed. */
  take(request: RequestHandle): number {
    const slot = this.#slotOf(request);
    const { requests } = this.#group;
    const state = requests.stateOf(slot);
    if (state === slotStates.pending) throw invalidArgument('request', request, 'one that has ended');
    const bytes = this.#bytesOf(slot);
    const error = state === slotStates.failed ? this.#errorOf(slot) : undefined;
    requests.release(slot);
    this.#uses[slot]! += 1;
    this.#free[this.#freeCount] = slot;
    this.#freeCount += 1;
    if (error !== undefined) throw error;
    return bytes;
  }

  /** Takes the end of a request when it has come. A request that is still pending at the deadline stays so. */
  async wait(request: RequestHandle, options: WaitOptions = {}): Promise<number> {
    const timeoutMs = checkTimeout(options.timeoutMs ?? this.#timeoutMs);
    const end = performance.now() + timeoutMs;
    // The engine's thread does not keep the process alive; a wait for it must.
    const alive = setInterval(() => {}, 2 ** 30);
    let entry: WaitEntry | undefined;
    try {
      for (;;) {
        const seen = this.#group.requests.news.seen;
        if (this.state(request) !== 'pending') return this.take(request);
        entry ??= this.#beginWait(request, end);
        options.signal?.throwIfAborted();
        const left = this.#timeLeft(request, end, timeoutMs);
        await this.#group.wait(seen, Math.min(left, SLICE_MS));
      }
    } finally {
      if (entry !== undefined) endWait(entry);
      clearInterval(alive);
    }
  }

  /** The same, but blocks this thread: quicker, while timers and sockets of the thread stand still. */
  waitBlocking(request: RequestHandle, timeoutMs: number = this.#timeoutMs): number {
    const end = performance.now() + checkTimeout(timeoutMs);
    for (;;) {
      const seen = this.#group.requests.news.seen;
      if (this.state(request) !== 'pending') return this.take(request);
      this.#group.waitBlocking(seen, this.#timeLeft(request, end, timeoutMs), this.areFew);
    }
  }

  /** So few requests are under way that a wait is for one answer, not for one of a stream of ends. */
  get areFew(): boolean {
    return this.#freeCount >= REQUEST_SLOTS - FEW_REQUESTS;
  }

  /** The first reason counts where several parts of a request fail. */
  failed(slot: number, error: EncodedError): void {
    if (!this.#errors.has(slot)) this.#errors.set(slot, error);
  }

  #beginWait(request: RequestHandle, end: number): WaitEntry {
    const peers = [this.#peers[this.#slotOf(request)]!];
    return beginWait({ waitFacts: () => ({ operation: 'transport request', peers }) }, end);
  }

  #bytesOf(slot: number): number {
    const engines = this.#engines[slot]!;
    let bytes = 0;
    for (let engine = 0; engines >> engine !== 0; engine++) {
      if (((engines >> engine) & 1) === 1) bytes += this.#group.requests.bytesOf(slot, engine);
    }
    return bytes;
  }

  #timeLeft(request: RequestHandle, end: number, timeoutMs: number): number {
    if (this.#group.failure !== undefined) throw this.#group.failure;
    const left = end - performance.now();
    if (left > 0) return left;
    const peer = this.#peers[this.#slotOf(request)];
    throw new WeftlineError(
      'WL_TIMEOUT',
      `A request with ${peer} did not end within ${timeoutMs} ms; it stays pending`,
      {
        details: { peer, timeoutMs },
      },
    );
  }

  #slotOf(request: RequestHandle): number {
    // Arithmetic with an object or a bigint throws errors of its own.
    if (typeof request !== 'number')
      throw invalidArgument('request', request, 'what a post of this transport returned');
    const slot = request % REQUEST_SLOTS;
    const use = Math.floor(request / REQUEST_SLOTS);
    const isCurrent = this.#uses[slot] === use && this.#group.requests.stateOf(slot) !== slotStates.free;
    if (isCurrent) return slot;
    throw invalidArgument('request', request, 'one whose end has not been taken yet');
  }

  #errorOf(slot: number): WeftlineError {
    // Each part that failed has said why before its end was to be seen. What is left unread would be taken for the reason of
    // a later request.
    const engines = this.#engines[slot]!;
    if (!this.#errors.has(slot) || (engines & (engines - 1)) !== 0) this.#group.readEvents();
    const error = this.#errors.get(slot);
    this.#errors.delete(slot);
    if (error === undefined) return new WeftlineError('WL_INTERNAL', 'A request failed without a reason');
    return decodeError(error);
  }
}

function tooMany(): WeftlineError {
  return new WeftlineError(
    'WL_BUSY',
    `Too many requests are under way, at most ${REQUEST_SLOTS}: take the ends of earlier ones first (wait, waitBlocking, take)`,
    { details: { allowed: REQUEST_SLOTS } },
  );
}
