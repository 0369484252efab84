// The calls of a collective object on a GPU: barrier epochs, what the host waits for, and the error that ended the object.
import { EP_MAX_EXPERTS, EP_MAX_RANKS, epLastEpoch } from '../abi/ep.ts';
import { type CallWait, checkTimeout, deadlineOf, remaining } from '../core/deadline.ts';
import { invalidArgument, WeftlineError } from '../core/errors.ts';
import type { CudaDevice } from '../device/cuda/cuda-device.ts';
import { CudaEvent, pollUntil } from '../device/cuda/cuda-event.ts';
import { type RecordedCalls, recordingOf } from '../device/cuda/cuda-graph.ts';
import type { CudaStream } from '../device/cuda/cuda-stream.ts';
import { type ExpiredWait, TrapBox } from '../device/cuda/trap-box.ts';
import type { Tensor } from '../device/tensor.ts';
import type { RankGroup } from '../world/rank-group.ts';
import { describeCall } from './calls.ts';
import type { OverlapOptions } from './overlap.ts';

/** How much longer the host waits than a kernel does, because the kernel's record says more. */
const HOST_GRACE_MS = 2_000;
const TWO_32 = 2 ** 32;

interface CudaCallsOptions {
  /** Looks for a failure that nobody waited for; the object is unusable from then on. */
  readonly findFailure?: () => WeftlineError | undefined;
  /** What the call words of its kernels mean; those of callWord() by default. */
  readonly describe?: (word: number) => string;
  /** The error of a record whose reason only its kernels give. */
  readonly explain?: (trap: ExpiredWait) => WeftlineError | undefined;
  /** Called when the object has become unusable: peers that do not share this host's fate can be told. */
  readonly onGiveUp?: (error: WeftlineError) => void;
}

/** What calls need of their ranks. */
type CallingGroup = Pick<RankGroup, 'ranks' | 'settings' | 'peerLost'>;

export class CudaCalls implements Disposable {
  /** The traps by which the object's kernels report waits that expired. */
  readonly traps: TrapBox;
  readonly #group: CallingGroup;
  readonly #options: CudaCallsOptions;
  readonly #stopJudging: () => void;
  readonly #context: CudaDevice['context'];
  readonly #device: CudaDevice;
  #lastEpoch: Tensor<'u8'> | undefined;
  #epoch = 0;
  #dispatch = 0;
  #broken: WeftlineError | undefined;

  constructor(group: CallingGroup, device: CudaDevice, options: CudaCallsOptions = {}) {
    this.#group = group;
    this.#options = options;
    this.#device = device;
    this.#context = device.context;
    this.traps = new TrapBox(device.context);
    // The next wait for the device throws if a kernel left early, so that nobody takes what it left for results.
    this.#stopJudging = device.context.judgeWaits(() => {
      if (this.#broken === undefined) this.#throwIfFailed();
    });
    group.peerLost.addEventListener('abort', this.#abandon);
    if (group.peerLost.aborted) this.#abandon();
  }

  /** When no kernel runs that uses the traps. */
  [Symbol.dispose](): void {
    // A graph that repeats calls of the object may outlive it.
    this.#broken ??= new WeftlineError('WL_CLOSED', 'The object whose calls these are was closed');
    this.#stopJudging();
    this.#group.peerLost.removeEventListener('abort', this.#abandon);
    this.traps[Symbol.dispose]();
    this.#lastEpoch?.close();
  }

  /** EpLastEpoch, which kernels of graphs count on from. Fails with WL_MEMORY. */
  get lastEpochAddress(): number {
    if (this.#lastEpoch === undefined) {
      this.#lastEpoch = this.#device.empty('u8', [epLastEpoch.size]);
      this.#device.setBytes(this.#lastEpoch, 0);
    }
    return this.#lastEpoch.address;
  }

  /**
   * The first of `count` epochs that follow each other, for the barriers of a kernel. 0 while a graph is recorded: its kernels
   * take those that come next when they run.
   */
  nextEpochs(count: number): number {
    const recorded = this.#recorded;
    if (recorded !== undefined) {
      recorded.epochs += count;
      return 0;
    }
    const first = numberAfter(this.#epoch);
    this.#epoch = numberAfter(this.#epoch, count);
    return first;
  }

  /** Number of the next dispatch that counts. In a recording, as if what it has so far had run. */
  get nextDispatch(): number {
    return numberAfter(this.#dispatch, 1 + (this.#recorded?.dispatches ?? 0));
  }

  /** What a kernel is given as that: 0 in a recording, whose kernels count. */
  get givenDispatch(): number {
    return this.#recorded === undefined ? this.nextDispatch : 0;
  }

  /** It was enqueued. */
  countDispatch(): void {
    if (this.#recorded === undefined) this.#dispatch = numberAfter(this.#dispatch);
    else this.#recorded.dispatches += 1;
  }

  /** A graph was launched, whose kernels use so many. */
  countLaunch({ epochs, dispatches }: { readonly epochs: number; readonly dispatches: number }): void {
    this.#epoch = numberAfter(this.#epoch, epochs);
    this.#dispatch = numberAfter(this.#dispatch, dispatches);
  }

  /**
   * Before each call: while a graph is recorded it becomes part of that, from then on with what `recording` does at its launches.
   */
  record(recording: RecordingOf): void {
    const present = recordingOf(this.#context);
    if (present === undefined || present.has(this)) return;
    present.set(this, new RecordedCollective(this, recording, present));
  }

  /** When no rank's kernel came to the barrier that the last epoch was for. */
  takeBackEpoch(): void {
    this.#epoch -= 1;
  }

  /** How long a kernel that is launched now may wait. Fails with WL_INVALID_ARGUMENT. */
  timeoutNs(wait: CallWait): number {
    return Math.ceil(checkTimeout(remaining(wait).timeoutMs ?? this.#group.settings.timeoutMs)) * 1e6;
  }

  /** Fails when an earlier call left the ranks in disagreement, or a peer is gone. */
  throwIfUnusable(): void {
    if (this.#broken !== undefined) throw this.#broken;
    this.#throwIfFailed();
    const { peerLost } = this.#group;
    if (peerLost.aborted) throw peerLost.reason;
  }

  /** Resolves when a kernel has told the host what `isThere` looks for. Fails when a wait on the device has expired. */
  async waitFor(what: string, isThere: () => boolean, wait: CallWait): Promise<void> {
    this.#context.refuseCapture(`a wait of the host for ${what}`);
    const timeoutMs = deadlineOf(wait, this.#group.settings.timeoutMs).leftMs + HOST_GRACE_MS;
    const ready = (): boolean => {
      this.#throwIfFailed();
      return isThere();
    };
    try {
      await pollUntil(ready, { timeoutMs, signal: wait.signal, what });
    } catch (error) {
      throw this.giveUp(error);
    }
    // A kernel whose wait expired reports a status as well, after its record.
    this.#throwIfFailed();
  }

  /** The object is unusable from now on, and its kernels that wait leave at once, because no peer will come. */
  giveUp(error: unknown): unknown {
    this.#broken ??=
      error instanceof WeftlineError
        ? error
        : new WeftlineError('WL_CLOSED', 'An earlier call on this object was given up', { cause: error });
    this.traps.abort(this.#broken);
    this.#options.onGiveUp?.(this.#broken);
    return error;
  }

  /** Kernels that wait for a rank that is gone leave at once instead of at their deadline. */
  readonly #abandon = (): void => this.traps.abort(this.#group.peerLost.reason);

  /** What the graph that is recorded now has of this object. */
  get #recorded(): RecordedCollective | undefined {
    return recordingOf(this.#context)?.get(this) as RecordedCollective | undefined;
  }

  /** A call that failed comes first: timeouts of ranks that then waited for the failed one are its consequence. */
  #throwIfFailed(): void {
    // What kernels tell was in its memory.
    if (this.#context.disposed) throw new WeftlineError('WL_CLOSED', 'The device of this object was closed');
    const failure = this.#options.findFailure?.();
    if (failure !== undefined) throw this.giveUp(failure);
    try {
      const { describe = describeCall, explain } = this.#options;
      this.traps.throwIfExpired(describe, this.#group.ranks, explain);
    } catch (error) {
      throw this.giveUp(error);
    }
  }
}

/**
 * Numbers of barriers and dispatches, `count` after one: 32 bits, even and odd in turn, and never 0, which stands for none.
 * Kernels count alike (rank-barrier.cuh).
 */
export function numberAfter(number: number, count = 1): number {
  const after = number + count;
  return after < TWO_32 ? after : after - TWO_32 + 2;
}

/** Fails with WL_UNSUPPORTED when the kernels cannot serve so many. */
export function requireCudaLimits(
  what: string,
  { topology: { hosts } }: Pick<RankGroup, 'topology'>,
  numExperts: number,
): void {
  const ranks = Math.max(...hosts.map(({ length }) => length));
  if (ranks <= EP_MAX_RANKS && numExperts <= EP_MAX_EXPERTS) return;
  throw new WeftlineError(
    'WL_UNSUPPORTED',
    `An ${what} on GPUs has at most ${EP_MAX_RANKS} ranks per host and ${EP_MAX_EXPERTS} experts, got ${ranks} and ${numExperts}`,
    { details: { ranks, numExperts } },
  );
}

// Calls of a buffer run one after another, whatever else the device does meanwhile: the order says on which stream.

export class CudaCallOrder implements Disposable {
  readonly #device: CudaDevice;
  /** Made by the first call that overlaps others. */
  #own: CudaStream | undefined;
  /** The end of the last call, once calls may run on two streams. */
  #lastEnd: CudaEvent | undefined;
  #lastStream: CudaStream;
  #marked: CudaEvent | undefined;
  /** What comes before and after a recording. */
  #outside: { readonly lastStream: CudaStream; readonly lastEnd: CudaEvent | undefined } | undefined;

  constructor(device: CudaDevice) {
    this.#device = device;
    this.#lastStream = device.stream;
  }

  /**
   * The stream for the next call. Without options it is the device's: what the caller enqueued before comes first, and
   * what comes later waits, at no cost. Fails with WL_INVALID_ARGUMENT for an event that is not a live one of CUDA.
   */
  begin(options: OverlapOptions): CudaStream {
    const { previousEvent } = options;
    const { stream } = this.#device;
    const overlaps = previousEvent !== undefined || options.asyncFinish === true;
    if (previousEvent !== undefined) requireEvent(previousEvent);
    const next = overlaps ? (this.#own ??= this.#device.createStream({ priority: 'high' })) : stream;
    if (overlaps) next.waitFor((previousEvent as CudaEvent | undefined) ?? this.#mark(stream));
    if (next !== this.#lastStream) next.waitFor(this.#lastEnd ?? this.#mark(this.#lastStream));
    this.#lastStream = next;
    return next;
  }

  /** The same for a call that the caller puts on a stream of its own. */
  beginOn(stream: CudaStream): void {
    if (stream !== this.#lastStream) stream.waitFor(this.#lastEnd ?? this.#mark(this.#lastStream));
    this.#lastStream = stream;
  }

  /** Ends a call that was enqueued. Returns the event of a call with asyncFinish; otherwise the device's stream waits for it. */
  end({ asyncFinish = false }: OverlapOptions): CudaEvent | undefined {
    const { stream } = this.#device;
    if (this.#own === undefined && this.#lastStream === stream && this.#lastEnd === undefined) return undefined;
    this.#lastEnd ??= this.#device.createEvent();
    this.#lastEnd.record(this.#lastStream);
    if (asyncFinish) return this.#device.createEvent().record(this.#lastStream);
    if (this.#lastStream !== stream) stream.waitFor(this.#lastEnd);
    return undefined;
  }

  /** Calls that are recorded in a graph follow each other alone: what runs before is the launch's business. */
  beginRecording(): void {
    this.#outside = { lastStream: this.#lastStream, lastEnd: this.#lastEnd };
    this.#lastStream = this.#device.stream;
    this.#lastEnd = undefined;
  }

  endRecording(): void {
    if (this.#outside === undefined) return;
    this.#lastEnd?.[Symbol.dispose]();
    ({ lastStream: this.#lastStream, lastEnd: this.#lastEnd } = this.#outside);
    this.#outside = undefined;
  }

  /** Resolves when the calls so far are done. */
  async idle(wait: CallWait = {}): Promise<void> {
    await this.#device.stream.idle(remaining(wait));
    await this.#own?.idle(remaining(wait));
  }

  /** Resolves when nothing of the calls runs any more, whatever became of them; the device may be lost. */
  async drained(): Promise<void> {
    for (const stream of [this.#device.stream, this.#own]) await stream?.drained().catch(() => {});
  }

  /** Called after drained(). */
  [Symbol.dispose](): void {
    this.#lastEnd?.[Symbol.dispose]();
    this.#marked?.[Symbol.dispose]();
    this.#own?.[Symbol.dispose]();
  }

  /** The end of what is enqueued on a stream now. A stream that waits for an earlier mark still waits for that one. */
  #mark(stream: CudaStream): CudaEvent {
    this.#marked ??= this.#device.createEvent();
    return this.#marked.record(stream);
  }
}

function requireEvent(event: unknown): void {
  if (event instanceof CudaEvent && !event.disposed) return;
  throw invalidArgument('previousEvent', event, 'a live event of device.createEvent(), or of an earlier call');
}

// The calls of a collective object that a CUDA graph repeats. Its kernels count epochs and dispatches on by themselves; at each
// launch the host counts with them, so that direct calls may follow.

/** What an object's engine has to do with recordings. */
export interface RecordingOf {
  readonly order: CudaCallOrder;
  /** The way to other hosts that the recorded kernels use; undefined on one host. */
  readonly network?: GraphNetwork | undefined;
  /** Called at the first call of a recording. What it returns fails at a launch if its calls cannot be made then. */
  readonly begin: () => () => void;
}

/** A thread that carries what kernels push, and sleeps while nothing comes. */
interface GraphNetwork {
  /** Hot path. Kernels that push are about to be launched: those of that recording. */
  wake(recording: object): void;
  /** From now on others may launch such kernels, too, who do not call wake(). Returns a function that ends this. */
  expectKernels(): () => void;
}

class RecordedCollective implements RecordedCalls {
  /** Barriers that the recorded kernels come to, and their dispatches that count. */
  epochs = 0;
  dispatches = 0;
  readonly #calls: CudaCalls;
  readonly #order: CudaCallOrder;
  readonly #network: GraphNetwork | undefined;
  readonly #recording: object;
  readonly #requireReady: () => void;
  readonly #endExpectation: (() => void) | undefined;

  constructor(calls: CudaCalls, { order, network, begin }: RecordingOf, recording: object) {
    this.#calls = calls;
    this.#recording = recording;
    this.#order = order;
    this.#network = network;
    this.#requireReady = begin();
    this.#endExpectation = network?.expectKernels();
    order.beginRecording();
  }

  endRecording(): void {
    this.#order.endRecording();
  }

  requireReady(): void {
    this.#requireReady();
    this.#calls.throwIfUnusable();
  }

  beginLaunch(stream: CudaStream): void {
    this.#network?.wake(this.#recording);
    this.#order.beginOn(stream);
  }

  endLaunch(): void {
    this.#calls.countLaunch(this);
    this.#order.end({});
  }

  release(): void {
    this.#endExpectation?.();
  }
}
