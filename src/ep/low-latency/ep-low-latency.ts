// EpLowLatency: dispatch and combine for decoding, where a call has few tokens and waits count more than bytes.
import { CallGuard } from '../../group/call-guard.ts';
import { shrinkObject, type ShrinkOptions } from '../../group/shrink.ts';
import { requireDevice, requireGroup, requireLive } from '../../group/tensor-check.ts';
import { checkOptions, requireFlag } from '../../core/check-options.ts';
import { countTokens, type EpOp } from '../../core/counts.ts';
import { Deadline, deadlineOf, startCall, waitOptionNames, type WaitOptions } from '../../core/deadline.ts';
import { dtypes } from '../../core/dtype.ts';
import { invalidArgument, WeftlineError } from '../../core/errors.ts';
import type { CpuDevice } from '../../device/cpu/cpu-device.ts';
import type { CudaDevice } from '../../device/cuda/cuda-device.ts';
import type { Device } from '../../device/device.ts';
import type { Tensor } from '../../device/tensor.ts';
import type { RankGroup } from '../../world/rank-group.ts';
import { LOW_LATENCY_RESULTS } from '../../abi/low-latency.ts';
import { createCpuLowLatency } from './cpu/create-cpu-low-latency.ts';
import {
  type CheckedLowLatencyDispatch,
  checkLowLatencyCombine,
  checkLowLatencyDispatch,
  checkLowLatencyHandle,
  type LowLatencyCombineArguments,
  type LowLatencyDispatchArguments,
  type LowLatencyDispatchOf,
  type LowLatencyEngine,
  type LowLatencyWait,
  readsInPlace,
} from './low-latency-arguments.ts';
import type {
  ConnectOptions,
  LowLatencyCombineResult,
  LowLatencyDispatchResult,
  LowLatencyHandle,
  LowLatencyMembership,
  LowLatencyView,
  PendingCombine,
  PendingDispatch,
} from './low-latency-results.ts';
import {
  type LowLatencyConfig,
  type LowLatencyScope,
  type LowLatencySize,
  withLowLatencyDefaults,
} from './low-latency-size.ts';

/** What makes one of them on a device. */
interface MadeLowLatency {
  readonly scope: LowLatencyScope;
  readonly engine: LowLatencyEngine;
  /** Number of its first dispatch. */
  readonly next?: number;
}

/** When a call with a hook is done with the tensors that it was given for results, sums and weights. */
const UNTIL_HOOK = 'the hook has ended';

/**
 * Dispatch and combine between GPUs or CPU ranks, on any hosts, in the manner of DeepEP's low-latency mode: memory for the
 * worst case, no exchange of counts before the rows, and no meeting of the ranks but for the rows themselves. Rows stand by expert (or source rank), then source rank, then token. Calls of all ranks are made in the same order, hooks in any;
 * each has one deadline. After a failure that leaves the ranks in disagreement, every later call fails with its reason.
 */
export class EpLowLatency implements AsyncDisposable {
  readonly #scope: LowLatencyScope;
  readonly #engine: LowLatencyEngine;
  readonly #guard: CallGuard;
  /** The configuration as create() was given it: what it leaves out depends on the number of ranks. */
  readonly #given: LowLatencyConfig;
  /** Number of the last dispatch. */
  #sequence = 0;
  /** Whether a hook was handed out and not called, by parity of the dispatch. */
  readonly #awaitsDispatch = [false, false];
  readonly #awaitsCombine = [false, false];

  /**
   * Collective over the group (a world is one), whose ranks use the same kind of device. Fails on every rank with the same error:
   * WL_INVALID_ARGUMENT, WL_UNSUPPORTED (GPUs of several hosts with `elastic` or 'choices'; more ranks or experts than kernels serve),
   * WL_CONFIG_MISMATCH, WL_MEMORY, WL_SHARED_MEMORY, WL_CUDA or WL_TIMEOUT.
   * @param group The ranks that take part; a world is a group.
   * @param device This rank's.
   * @param config The same on all ranks.
   * @param options How long to wait for the others.
   */
  static async create(
    group: RankGroup,
    device: CpuDevice | CudaDevice,
    config: LowLatencyConfig,
    options: WaitOptions = {},
  ): Promise<EpLowLatency> {
    requireGroup(group);
    requireDevice(device);
    checkOptions(options, waitOptionNames, 'options of EpLowLatency.create');
    const full = withLowLatencyDefaults({ ...config }, group.size);
    const of = { group, given: config, config: full };
    const wait = startCall(options, group.settings.timeoutMs);
    const given = Object.freeze({ ...config });
    if (device.kind === 'cpu') return new EpLowLatency(await createCpuLowLatency({ ...of, device }, wait), given);
    // Loaded here, so that CPU ranks never load what GPUs need.
    const { createCudaLowLatency } = await import('./cuda/create-cuda-low-latency.ts');
    return new EpLowLatency(await createCudaLowLatency({ ...of, device }, wait), given);
  }

  private constructor({ scope, engine, next = 1 }: MadeLowLatency, given: LowLatencyConfig) {
    this.#given = given;
    this.#sequence = next - 1;
    this.#guard = new CallGuard('EpLowLatency', scope.group.ranks);
    this.#scope = scope;
    this.#engine = engine;
    engine.guardLaunches?.((what) => this.#guard.requireIdle(what));
  }

  /** The ranks that it was made over. */
  get group(): RankGroup {
    return this.#scope.group;
  }

  /** This rank's device. */
  get device(): Device {
    return this.#scope.device;
  }

  /** What create() was given, with defaults filled in. */
  get config(): Readonly<Required<LowLatencyConfig>> {
    return this.#scope.config;
  }

  /** The ranks of an elastic object that take part in this rank's next dispatch. Fails with WL_UNSUPPORTED for other objects. */
  get view(): LowLatencyView {
    return this.#membership().view(this.#sequence + 1);
  }

  /** Number of the next dispatch, the same on all ranks that take part in it; a handle's `sequence` is that of its own. */
  get nextDispatch(): number {
    return this.#sequence + 1;
  }

  /** What it takes. */
  get size(): LowLatencySize {
    return this.#scope.size;
  }

  /**
   * Collective. Sends row t of `x` to every expert that `topkIdx[t]` names. With returnRecvHook it returns once the rows are
   * sent, with a hook that receives. Bad arguments fail with WL_INVALID_ARGUMENT on this rank before it does anything; the
   * others then wait for it, unless it is a choice out of range, with which the dispatch fails on all ranks. On GPUs a call only
   * enqueues: there such a choice is found by the kernel, and ends the use of the object, as other failures of kernels do, in
   * the next wait for the device. The result of the last but one dispatch ends here; its hooks must have been called.
   */
  dispatch<D extends 'fp8' | 'bf16' = 'fp8'>(
    args: LowLatencyDispatchOf<D> & { readonly returnRecvHook: true },
  ): Promise<PendingDispatch<D>>;
  dispatch<D extends 'fp8' | 'bf16' = 'fp8'>(
    args: LowLatencyDispatchOf<D> & { readonly returnRecvHook?: false },
  ): Promise<LowLatencyDispatchResult<D>>;
  dispatch<D extends 'fp8' | 'bf16' = 'fp8'>(
    args: LowLatencyDispatchOf<D>,
  ): Promise<PendingDispatch<D> | LowLatencyDispatchResult<D>>;
  dispatch(args: LowLatencyDispatchArguments): Promise<PendingDispatch | LowLatencyDispatchResult> {
    return this.#guard.run('dispatch', async () => {
      this.#engine.throwIfUnusable();
      const input = checkLowLatencyDispatch(args, this.#scope, this.#engine.mapped);
      const sequence = this.#sequence + 1;
      const slot = sequence % LOW_LATENCY_RESULTS;
      this.#requireHooks(slot, sequence);
      const wait = this.#waitOf(args);
      const preparing = this.#engine.prepareDispatch(input, sequence);
      if (preparing !== undefined) await preparing;
      this.#sequence = sequence;
      this.#count('dispatch', input.topkIdx.shape[0]!, input.x.elements * dtypes.bf16.bytes);
      if (args.returnRecvHook !== true) return this.#engine.dispatch(input, sequence, wait);
      await this.#engine.sendDispatch(input, sequence, wait);
      this.#awaitsDispatch[slot] = true;
      const receive = this.#receiver(input, sequence);
      return { hook: this.#hook('hook of dispatch', this.#awaitsDispatch, sequence, receive) };
    });
  }

  /**
   * Where the experts' rows can be written so that combine() need not copy them: bf16 in the shape of recvX, in memory that
   * peers read, valid until the combine with that handle begins. Waits until peers have read what an earlier combine left
   * there, as a rule not at all. Not with combineTravels 'rank-sums', which reads x wherever it is and copies nothing.
   */
  combineInput(handle: LowLatencyHandle, options: WaitOptions = {}): Promise<Tensor<'bf16'>> {
    return this.#guard.run('combineInput', async () => {
      this.#engine.throwIfUnusable();
      checkOptions(options, waitOptionNames, 'options of EpLowLatency.combineInput');
      if (!readsInPlace(this.#scope)) {
        throw unsupported("has no such buffer with combineTravels 'rank-sums': combine reads x where it is");
      }
      this.#requireAlive(checkLowLatencyHandle(handle, this.#scope));
      return this.#engine.combineBuffer(handle, this.#waitOf(options));
    });
  }

  /**
   * Collective. The weighted sum of the experts' rows of each token, back at the token's rank: in f32, in the order of the
   * choices, rounded once where `combineTravels` is 'choices'; with 'rank-sums' each rank's sum is rounded to bf16, and the
   * sum of those in rank order again. referenceLowLatencyCombine() says it in code.
   */
  combine(args: LowLatencyCombineArguments & { readonly returnRecvHook: true }): Promise<PendingCombine>;
  combine(args: LowLatencyCombineArguments & { readonly returnRecvHook?: false }): Promise<LowLatencyCombineResult>;
  combine(args: LowLatencyCombineArguments): Promise<PendingCombine | LowLatencyCombineResult>;
  combine(args: LowLatencyCombineArguments): Promise<PendingCombine | LowLatencyCombineResult> {
    return this.#guard.run('combine', async () => {
      this.#engine.throwIfUnusable();
      const input = checkLowLatencyCombine(args, this.#scope, {
        window: this.#engine.mapped,
        buffer: (handle) => this.#engine.combineBufferAddress(handle),
      });
      this.#requireAlive(input.handle);
      const { numTokens } = input.handle;
      this.#count('combine', numTokens, numTokens * this.config.hidden * dtypes.bf16.bytes);
      const wait = this.#waitOf(args);
      if (args.returnRecvHook !== true) return this.#combined(await this.#engine.combine(input, wait), input.handle);
      const sent = await this.#engine.sendCombine(input, wait);
      const { sequence } = input.handle;
      this.#awaitsCombine[sequence % LOW_LATENCY_RESULTS] = true;
      const { out, topkWeights, waitStats } = input;
      const receive = async (until: LowLatencyWait): Promise<LowLatencyCombineResult> => {
        requireLive({ out, topkWeights, waitStats }, UNTIL_HOOK);
        return this.#combined(await this.#engine.receiveCombine(sent, until), input.handle);
      };
      return { hook: this.#hook('hook of combine', this.#awaitsCombine, sequence, receive) };
    });
  }

  /**
   * For an elastic object. On an active rank, not collective: waits until these ranks are connected, that is until their
   * processes, started again under their old numbers, have created their EpLowLatency. With `activate` (default) they then
   * take part from a dispatch on that is the same for all ranks, LOW_LATENCY_NOTICE after this rank's next; calls may go on
   * meanwhile. Several ranks may ask for the same. On a rank that is not active, with its own number in the list: offers
   * itself and resolves once it is active; the others of the list do not matter. Fails with WL_TIMEOUT, WL_INACTIVE.
   */
  async connectRanks(ranks: readonly number[], options: ConnectOptions = {}): Promise<void> {
    checkOptions(options, { ...waitOptionNames, activate: true }, 'options of EpLowLatency.connectRanks');
    const membership = this.#membership();
    const list = this.#ranksOf(ranks);
    const wait = this.#waitOf(options);
    const { rank } = this.group;
    if (this.view.active[rank]) {
      const others = list.filter((other) => other !== rank);
      return membership.connect(others, options.activate !== false, wait);
    }
    if (!list.includes(rank))
      throw invalidArgument('ranks', ranks, `a list with ${rank}: this rank is not active itself`);
    await this.#guard.run('connectRanks', async () => {
      this.#sequence = (await membership.rejoin(wait)) - 1;
      this.#awaitsDispatch.fill(false);
      this.#awaitsCombine.fill(false);
    });
  }

  /** Lets these ranks of an elastic object take part until a dispatch that is the same for all ranks; see connectRanks(). */
  disconnectRanks(ranks: readonly number[]): void {
    this.#requireActive().disconnect(this.#ranksOf(ranks), this.#sequence + 1);
  }

  /** Makes all connected ranks of an elastic object active, as connectRanks() does. */
  commit(): void {
    this.#requireActive().commit(this.#sequence + 1);
  }

  /**
   * For an elastic object. False masks the rank on all ranks now: calls go on without its rows, its own fail with WL_INACTIVE.
   * True: the rank, if it is connected, becomes active as with connectRanks().
   */
  updateActiveMask(rank: number, active: boolean): void {
    const membership = this.#requireActive();
    this.#ranksOf([rank]);
    requireFlag('active', active);
    if (active) membership.connect([rank], true, { deadline: new Deadline(0), signal: undefined }).catch(() => {});
    else membership.mask(rank);
  }

  /** 1 for each rank of an elastic object that takes part in this rank's next dispatch. */
  queryActiveMask(): Int32Array {
    return Int32Array.from(this.view.active, Number);
  }

  /** The same as commit(), under the name that goes with the other two. */
  cleanActiveMask(): void {
    this.commit();
  }

  #requireActive(): LowLatencyMembership {
    const membership = this.#membership();
    this.#engine.throwIfUnusable();
    return membership;
  }

  /** Collective: returns when all ranks have called it. Not of elastic objects. */
  barrier(options: WaitOptions = {}): Promise<void> {
    return this.#guard.run('barrier', () => {
      checkOptions(options, waitOptionNames, 'options of EpLowLatency.barrier');
      if (this.config.elastic) throw unsupported('has no barrier where ranks may come and go (elastic)');
      return this.#engine.barrier(this.#waitOf(options));
    });
  }

  /** Releases the window here. Not collective; ranks that still wait for this one get WL_PEER_LOST. Idempotent. */
  async close(): Promise<void> {
    if (this.#guard.close()) await this.#engine.close();
  }

  /**
   * Collective over the ranks of the group that live, after a failure: closes this object and makes another one over the group that
   * they form (RankGroup.shrink), which the caller owns. It has this one's configuration, but for what `config` says; handles and
   * pending hooks of this object are of no use to it. Works on a closed object, and again where it failed. Fails with WL_INACTIVE on
   * a rank that was left out, WL_INVALID_ARGUMENT if the configuration does not fit the ranks that are left, WL_UNSUPPORTED for
   * an elastic object, whose ranks go on without those that are lost, else as RankGroup.shrink() and create() do.
   */
  async shrink(options: ShrinkOptions<LowLatencyConfig> = {}): Promise<EpLowLatency> {
    const given = this.#given;
    if (given.elastic === true) {
      const message = 'An elastic EpLowLatency is not shrunk: its calls go on without the ranks that are lost';
      throw new WeftlineError('WL_UNSUPPORTED', message);
    }
    const device = this.device as CpuDevice | CudaDevice;
    return shrinkObject(
      {
        object: 'EpLowLatency',
        group: this.group,
        close: () => this.close(),
        create: (group, changes, wait) => EpLowLatency.create(group, device, { ...given, ...changes }, wait),
      },
      options,
    );
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }

  #count(op: EpOp, tokens: number, bytes: number): void {
    countTokens(op, 'low_latency', tokens);
    this.#guard.bytes = bytes;
  }

  #receiver(input: CheckedLowLatencyDispatch, sequence: number) {
    const { out, expertStats: cumulativeLocalExpertRecvStats, waitStats } = input;
    const rows = out && 'data' in out ? { 'out.data': out.data, 'out.scales': out.scales } : { out };
    const written = { ...rows, cumulativeLocalExpertRecvStats, waitStats };
    return (wait: LowLatencyWait): Promise<LowLatencyDispatchResult> => {
      requireLive(written, UNTIL_HOOK);
      return this.#engine.receiveDispatch(input, sequence, wait);
    };
  }

  #combined(combinedX: Tensor<'bf16'>, handle: LowLatencyHandle): LowLatencyCombineResult {
    return { combinedX, ...this.#engine.membership?.shortfall(handle) };
  }

  #membership(): LowLatencyMembership {
    this.#guard.requireOpen();
    const { membership } = this.#engine;
    if (membership === undefined) throw unsupported('has fixed ranks unless it was created with elastic: true');
    return membership;
  }

  /** The ranks, or those of the list that are no ranks fail with WL_INVALID_ARGUMENT. */
  #ranksOf(ranks: readonly number[]): readonly number[] {
    const { size } = this.group;
    const isRank = (rank: unknown): boolean => Number.isInteger(rank) && Number(rank) >= 0 && Number(rank) < size;
    if (Array.isArray(ranks) && ranks.every(isRank)) return [...new Set(ranks)];
    throw invalidArgument('ranks', ranks, `ranks of the group, 0 to ${size - 1}`);
  }

  #hook<T>(name: string, awaited: boolean[], sequence: number, receive: (wait: LowLatencyWait) => Promise<T>) {
    let isCalled = false;
    return (options: WaitOptions = {}): Promise<T> =>
      this.#guard.run(name, () => {
        this.#engine.throwIfUnusable();
        checkOptions(options, waitOptionNames, `options of the ${name}`);
        if (isCalled) throw new WeftlineError('WL_INVALID_ARGUMENT', `This ${name} was called before; call it once`);
        this.#requireRecent(name, sequence);
        const wait = this.#waitOf(options);
        isCalled = true;
        awaited[sequence % LOW_LATENCY_RESULTS] = false;
        return receive(wait);
      });
  }

  #waitOf(options: WaitOptions): LowLatencyWait {
    return { deadline: deadlineOf(options, this.group.settings.timeoutMs), signal: options.signal };
  }

  /** The dispatch with that number uses the memory of the last but one. */
  #requireHooks(slot: number, sequence: number): void {
    const call = this.#awaitsDispatch[slot] ? 'dispatch' : this.#awaitsCombine[slot] ? 'combine' : undefined;
    if (call === undefined) return;
    const of = sequence - LOW_LATENCY_RESULTS;
    throw new WeftlineError(
      'WL_INVALID_ARGUMENT',
      `Cannot start dispatch ${sequence} on this EpLowLatency: the hook of ${call === 'combine' ? 'the combine of ' : ''}dispatch ${of}, whose memory it uses, was not called`,
    );
  }

  /** What was under way when this rank was masked is of the past once it takes part again. */
  #requireRecent(name: string, sequence: number): void {
    if (sequence > this.#sequence - LOW_LATENCY_RESULTS) return;
    const message = `This ${name} is of dispatch ${sequence}, after which this rank was masked; dispatch ${this.#sequence + 1} is the next one`;
    throw new WeftlineError('WL_INVALID_ARGUMENT', message, { details: { dispatch: sequence } });
  }

  #requireAlive({ sequence }: LowLatencyHandle): void {
    const allowed = 'a handle of one of the last two dispatches';
    if (sequence <= this.#sequence - LOW_LATENCY_RESULTS) {
      throw invalidArgument('handle', `that of dispatch ${sequence}, ${this.#sequence} being the last one`, allowed);
    }
    if (!this.#awaitsCombine[sequence % LOW_LATENCY_RESULTS]) return;
    throw invalidArgument('handle', 'one of a combine whose hook was not called', `${allowed} without such a combine`);
  }
}

function unsupported(what: string): WeftlineError {
  return new WeftlineError('WL_UNSUPPORTED', `EpLowLatency ${what}`);
}
