// The device API where kernels are functions of TypeScript: put, signal, wait and the rest, over the CPU's queues.
import { queueCommandKinds, MAX_COMMAND_BYTES } from '../../abi/device-api.ts';
import { invalidArgument, WeftlineError } from '../../core/errors.ts';
import { CommandWriter, emptyQueueCommand, type QueueMemory, type RequestShape } from '../service/command-queue.ts';

/** The range of a request, and the channel, that a call goes to. */
interface CpuRoute {
  /** The number of the range at the request's peer; 0 by default. */
  readonly remote?: number;
  /** Signals come after the puts of their channel; there is no order between channels. 0 by default. */
  readonly channel?: number;
  /** True: stays in the queue until something that is not deferred follows on the same queue, or a flush. */
  readonly isDeferred?: boolean;
}

/** What a put copies, in bytes. */
interface CpuPut {
  /** The offset in the peer's range. */
  readonly target: number;
  /** The offset in the request's local range. */
  readonly source: number;
  readonly bytes: number;
}

/** A counter that a signal adds to, and how much. */
interface CpuSignal {
  /** The offset in the peer's range, a multiple of 8. */
  readonly target: number;
  /** A whole number from 0 to 2^53 - 1. */
  readonly add: number;
}

/** Eight bytes for a cell of the peer, with their number. */
interface CpuWord {
  /** The offset in the peer's range, a multiple of 16: the value comes there, the epoch 8 bytes behind it. */
  readonly target: number;
  /** 64 bits. */
  readonly value: bigint;
  /** Greater each time, below 2^53. */
  readonly epoch: number;
}

interface CpuKernelApiOptions {
  readonly agent: string;
  readonly queues: readonly QueueMemory[];
  readonly timeoutMs: number;
  /** Requests by number. */
  readonly requests: readonly (RequestShape | undefined)[];
  readonly peerName: (peer: number) => string;
  /** Why waits are to end, if they are. */
  readonly failure: () => WeftlineError | undefined;
  /** Called after a push: the thread that serves the queues may sleep. */
  readonly wake: () => void;
}

/** How many looks between two looks at the clock. */
const LOOKS = 64;
const TWO_32 = 2 ** 32;

/**
 * The device API on the CPU: what kernels call on a GPU, as methods. Handles are those of DeviceHost.createGpuReq().
 */
export class CpuKernelApi {
  readonly #options: CpuKernelApiOptions;
  readonly #writers: readonly CommandWriter[];
  readonly #command = emptyQueueCommand();
  #closed: WeftlineError | undefined;

  /** @internal */
  constructor(options: CpuKernelApiOptions) {
    this.#options = options;
    this.#writers = options.queues.map((memory) => new CommandWriter(memory));
  }

  /**
   * Tells the host to copy `bytes` from `source` in the request's local range to `target` in the peer's. The source must
   * stay as it is until flush(). Blocks while the queue is full. Fails with WL_INVALID_ARGUMENT, having written nothing,
   * for a range that is not inside; WL_TIMEOUT when the queue stays full.
   */
  put(request: number, range: CpuPut, route: CpuRoute = {}): void {
    const shape = this.#shape(request);
    checkRecord('range', range);
    const { target, source, bytes } = range;
    checkRange('target range', target, bytes, this.#remoteBytes(shape, route));
    checkRange('source range', source, bytes, shape.local.bytes);
    checkRange('range', 0, bytes, MAX_COMMAND_BYTES - 1);
    const command = this.#command;
    command.kind = queueCommandKinds.put;
    command.target = target;
    command.source = source;
    command.bytes = bytes;
    this.#push(shape, route);
  }

  /** Adds to the 64-bit counter at `target` (a multiple of 8), after the puts of the channel. Fails as put(). */
  signal(request: number, counter: CpuSignal, route: CpuRoute = {}): void {
    const shape = this.#shape(request);
    checkRecord('counter', counter);
    const { target, add } = counter;
    checkNumber('target', target);
    if (target % 8 !== 0) throw invalidArgument('target', target, 'a multiple of 8');
    checkRange('counter', target, 8, this.#remoteBytes(shape, route));
    checkNumber('add', add);
    this.#number(queueCommandKinds.signal, target, add % TWO_32, Math.floor(add / TWO_32));
    this.#push(shape, route);
  }

  /**
   * Writes 8 bytes and their number into the peer's cell, of 16 bytes, so that it sees both or none. A cell has one writer,
   * begins as zeros, and is written again when the peer has taken the word. No order with puts and signals. Fails as put().
   */
  putWord(request: number, word: CpuWord, route: CpuRoute = {}): void {
    const shape = this.#shape(request);
    checkRecord('word', word);
    const { target, value, epoch } = word;
    checkNumber('target', target);
    if (typeof value !== 'bigint') throw invalidArgument('value', value, 'a bigint of 64 bits');
    if (target % 16 !== 0) throw invalidArgument('target', target, 'a multiple of 16');
    checkRange('cell', target, 16, this.#remoteBytes(shape, route));
    checkNumber('epoch', epoch);
    const bits = BigInt.asUintN(64, value);
    this.#number(queueCommandKinds.store, target, Number(bits & 0xffff_ffffn), Number(bits >> 32n));
    this.#push(shape, route);
    this.#number(queueCommandKinds.set, target + 8, epoch % TWO_32, Math.floor(epoch / TWO_32));
    this.#push(shape, route);
  }

  /** A put, and a signal that comes after it; the counter may be in another request, to the same peer. */
  putWithSignal(
    data: CpuPut & { readonly request: number },
    counter: CpuSignal & { readonly request: number },
    route: CpuRoute = {},
  ): void {
    checkRecord('data', data);
    checkRecord('counter', counter);
    this.put(data.request, data, route);
    this.signal(counter.request, counter, route);
  }

  /** Resolves when all puts and signals of the channel are visible to their peers. Fails with WL_TIMEOUT or what befell them. */
  async flush(request: number, route: CpuRoute = {}): Promise<void> {
    const writer = this.#writer(route);
    const shape = this.#shape(request);
    if (writer.hasDeferred) {
      // An empty put makes the host take what was deferred before it.
      Object.assign(this.#command, emptyQueueCommand(), { kind: queueCommandKinds.put });
      this.#push(shape, { ...route, isDeferred: false });
    }
    const count = writer.pushed;
    const peer = this.#options.peerName(shape.peer);
    await this.#until(() => writer.isDelivered(count), `${writer.depth} commands to ${peer} and others`);
  }

  /** The value of a counter of this process; what peers put before its signals is visible then. */
  readSignal(counter: BigUint64Array): number {
    this.#checkCounter('counter', counter, 1);
    return Number(Atomics.load(counter, 0));
  }

  /** Sets a counter, while nobody adds to it. */
  writeSignal(counter: BigUint64Array, value: number): void {
    this.#checkCounter('counter', counter, 1);
    checkNumber('value', value);
    Atomics.store(counter, 0, BigInt(value));
  }

  /** Resolves once the counter is at least `value`. Fails with WL_TIMEOUT, WL_CLOSED, or the error of a peer that is lost. */
  async wait(counter: BigUint64Array, value: number): Promise<void> {
    this.#checkCounter('counter', counter, 1);
    checkNumber('value', value);
    const seen = (): number => Number(Atomics.load(counter, 0));
    await this.#until(
      () => seen() >= value,
      () => `a signal (expected ${value}, seen ${seen()})`,
    );
  }

  /** Resolves with the value of the cell (two words) once its epoch is at least `epoch`. Fails as wait(). */
  async waitWord(cell: BigUint64Array, epoch: number): Promise<bigint> {
    this.#checkCounter('cell', cell, 2);
    checkNumber('epoch', epoch);
    const seen = (): number => Number(Atomics.load(cell, 1));
    await this.#until(
      () => seen() >= epoch,
      () => `a word (epoch ${epoch}, seen ${seen()})`,
    );
    return Atomics.load(cell, 0);
  }

  /** @internal Once the failure was told: queues carry commands of other requests as before. */
  forgetFailures(): void {
    for (const writer of this.#writers) writer.forgetFailure();
  }

  /** @internal Waits end before they look again: what they look at is freed next. */
  close(): void {
    this.#closed ??= new WeftlineError('WL_CLOSED', `The device host ${this.#options.agent} was closed`);
  }

  #number(kind: number, target: number, low: number, high: number): void {
    const command = this.#command;
    command.kind = kind;
    command.target = target;
    command.low = low;
    command.high = high;
  }

  #shape(request: number): RequestShape {
    if (this.#closed !== undefined) throw this.#closed;
    const shape = typeof request === 'number' ? this.#options.requests[request] : undefined;
    if (shape === undefined) throw invalidArgument('request', request, 'what createGpuReq() returned');
    return shape;
  }

  /** What the memory was is unmapped once the host is closed. */
  #checkCounter(name: string, counter: BigUint64Array, words: number): void {
    if (this.#closed !== undefined) throw this.#closed;
    if (counter instanceof BigUint64Array && counter.length >= words) return;
    throw invalidArgument(name, counter, `a BigUint64Array of at least ${words} words, over memory of this host`);
  }

  #remoteBytes(shape: RequestShape, route: CpuRoute): number {
    checkRecord('route', route);
    const { remote = 0 } = route;
    const range = typeof remote === 'number' ? shape.remotes[remote] : undefined;
    if (range === undefined) throw invalidArgument('remote', remote, `a number below ${shape.remotes.length}`);
    return range.bytes;
  }

  #writer(route: CpuRoute): CommandWriter {
    checkRecord('route', route);
    const { channel = 0 } = route;
    checkNumber('channel', channel);
    return this.#writers[channel % this.#writers.length]!;
  }

  #push(shape: RequestShape, route: CpuRoute): void {
    const command = this.#command;
    command.request = shape.number;
    command.remote = route.remote ?? 0;
    command.isDeferred = route.isDeferred ?? false;
    const writer = this.#writer(route);
    const { wake, timeoutMs, failure } = this.#options;
    let deadline = 0;
    for (let looks = 0; !writer.push(command); looks += 1) {
      if (looks % LOOKS !== 0) continue;
      const reason = failure();
      if (reason !== undefined) throw reason;
      const now = performance.now();
      if (deadline === 0) deadline = now + timeoutMs;
      if (now >= deadline) throw this.#late(`room in its queue of ${writer.capacity} commands`);
    }
    wake();
  }

  async #until(isOver: () => boolean, what: string | (() => string)): Promise<void> {
    const deadline = performance.now() + this.#options.timeoutMs;
    for (;;) {
      if (this.#closed !== undefined) throw this.#closed;
      try {
        for (let looks = 0; looks < LOOKS; looks += 1) if (isOver()) return;
      } catch (error) {
        // What happened comes as a message, a moment after the queue shows that something did.
        await new Promise((resolve) => setTimeout(resolve, 1));
        throw this.#options.failure() ?? error;
      }
      const reason = this.#options.failure();
      if (reason !== undefined) throw reason;
      if (performance.now() >= deadline) throw this.#late(typeof what === 'string' ? what : what());
      await new Promise((resolve) => setImmediate(resolve));
    }
  }

  #late(what: string): WeftlineError {
    const { agent, timeoutMs } = this.#options;
    return new WeftlineError('WL_TIMEOUT', `${agent} waited ${timeoutMs} ms for ${what}`, {
      details: { agent, timeoutMs },
    });
  }
}

function checkNumber(name: string, value: number): void {
  if (Number.isSafeInteger(value) && value >= 0) return;
  throw invalidArgument(name, value, 'a whole number from 0 to 2^53 - 1');
}

function checkRecord(name: string, value: unknown): void {
  if (typeof value !== 'object' || value === null) throw invalidArgument(name, value, 'an object');
}

function checkRange(name: string, start: number, bytes: number, limit: number): void {
  const isInside = Number.isSafeInteger(start) && Number.isSafeInteger(bytes) && start >= 0 && bytes >= 0;
  if (isInside && start + bytes <= limit) return;
  const isNumber = typeof start === 'number' && typeof bytes === 'number';
  throw invalidArgument(
    name,
    isNumber ? [start, start + bytes] : [start, bytes],
    `inside the ${limit} bytes of its memory`,
  );
}
