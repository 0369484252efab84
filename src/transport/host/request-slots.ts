// Requests as the user sees them: handles over the slots of the shared table, their ends, and waits with deadlines.
import { engineCommandKinds, REQUEST_SLOTS, slotStates } from '../../abi/transport-command.ts';
import { decodeError, type EncodedError, invalidArgument, WeftlineError } from '../../core/errors.ts';
import { checkTimeout, type WaitOptions } from '../../core/deadline.ts';
import type { EngineLink } from './engine-link.ts';
import { type EngineCommand, emptyEngineCommand } from './shared-requests.ts';

/** Names a request until its end has been taken; later it names nothing. */
export type RequestHandle = number;

/** How a request stands. */
export type RequestState = 'pending' | 'done' | 'failed';

/** An async wait looks at signals and at whether the engine lives at least this often. */
const SLICE_MS = 100;

export class RequestSlots {
  /** What the next `post` sends; written by the caller, who leaves `slot` alone. */
  readonly command: EngineCommand = emptyEngineCommand();
  readonly #link: EngineLink;
  readonly #timeoutMs: number;
  readonly #free: Int32Array = Int32Array.from({ length: REQUEST_SLOTS }, (_, index) => REQUEST_SLOTS - 1 - index);
  #freeCount: number = REQUEST_SLOTS;
  /** Per slot: which use of it is the current one, so that an old handle finds nothing. */
  readonly #uses: Float64Array = new Float64Array(REQUEST_SLOTS);
  readonly #errors = new Map<number, EncodedError>();
  /** Who a slot's request is with, for errors. */
  readonly #peers: string[] = [];

  constructor(link: EngineLink, timeoutMs: number) {
    this.#link = link;
    this.#timeoutMs = timeoutMs;
  }

  /** Hot path. Hands the command to the engine. Fails with WL_BUSY when too many requests are under way. */
  post(peer: string): RequestHandle {
    const { requests, failure } = this.#link;
    if (failure !== undefined) throw failure;
    if (this.#freeCount === 0) throw tooMany();
    const slot = this.#free[this.#freeCount - 1]!;
    this.command.slot = slot;
    requests.open(slot);
    if (!requests.put(this.command)) {
      requests.release(slot);
      throw tooMany();
    }
    this.#freeCount -= 1;
    this.#peers[slot] = peer;
    this.#link.nudge();
    return slot + this.#uses[slot]! * REQUEST_SLOTS;
  }

  cancel(request: RequestHandle, connection: number): void {
    const slot = this.#slotOf(request);
    const { command } = this;
    command.kind = engineCommandKinds.cancel;
    command.connection = connection;
    command.slot = slot;
    if (!this.#link.requests.put(command)) throw tooMany();
    this.#link.nudge();
  }

  state(request: RequestHandle): RequestState {
    const state = this.#link.requests.stateOf(this.#slotOf(request));
    if (state === slotStates.pending) return 'pending';
    return state === slotStates.done ? 'done' : 'failed';
  }

  /** Takes note of the end of a request: its handle is free afterwards. Returns the bytes received, or throws why it failed. */
  take(request: RequestHandle): number {
    const slot = this.#slotOf(request);
    const { requests } = this.#link;
    const state = requests.stateOf(slot);
    if (state === slotStates.pending) throw invalidArgument('request', request, 'one that has ended');
    const bytes = requests.bytesOf(slot);
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
    try {
      for (;;) {
        const seen = this.#link.requests.ended;
        if (this.state(request) !== 'pending') return this.take(request);
        options.signal?.throwIfAborted();
        const left = this.#timeLeft(request, end, timeoutMs);
        await this.#link.wait(seen, Math.min(left, SLICE_MS));
      }
    } finally {
      clearInterval(alive);
    }
  }

  /** The same, but blocks this thread: quicker, while timers and sockets of the thread stand still. */
  waitBlocking(request: RequestHandle, timeoutMs: number = this.#timeoutMs): number {
    const end = performance.now() + checkTimeout(timeoutMs);
    for (;;) {
      const seen = this.#link.requests.ended;
      if (this.state(request) !== 'pending') return this.take(request);
      this.#link.waitBlocking(seen, this.#timeLeft(request, end, timeoutMs), this.isLone);
    }
  }

  /** At most one request is under way. */
  get isLone(): boolean {
    return this.#freeCount >= REQUEST_SLOTS - 1;
  }

  failed(slot: number, error: EncodedError): void {
    this.#errors.set(slot, error);
  }

  #timeLeft(request: RequestHandle, end: number, timeoutMs: number): number {
    if (this.#link.failure !== undefined) throw this.#link.failure;
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
    const slot = request % REQUEST_SLOTS;
    const use = Math.floor(request / REQUEST_SLOTS);
    const isCurrent = this.#uses[slot] === use && this.#link.requests.stateOf(slot) !== slotStates.free;
    if (isCurrent) return slot;
    throw invalidArgument('request', request, 'one whose end has not been taken yet');
  }

  #errorOf(slot: number): WeftlineError {
    if (!this.#errors.has(slot)) this.#link.readEvents();
    const error = this.#errors.get(slot);
    this.#errors.delete(slot);
    if (error === undefined) return new WeftlineError('WL_INTERNAL', 'A request failed without a reason');
    return decodeError(error);
  }
}

function tooMany(): WeftlineError {
  return new WeftlineError(
    'WL_BUSY',
    `More than ${REQUEST_SLOTS} requests are under way: take the ends of earlier ones first (wait, waitBlocking, take)`,
    { details: { allowed: REQUEST_SLOTS } },
  );
}
