// Communicator: collectives, and messages between pairs, of the ranks of a group.
import { setImmediate as nextTurn } from 'node:timers/promises';
import { checkOptions } from '../core/check-options.ts';
import { type CallWait, remaining, startCall, waitOptionNames, type WaitOptions } from '../core/deadline.ts';
import { invalidArgument, WeftlineError } from '../core/errors.ts';
import type { CpuDevice } from '../device/cpu/cpu-device.ts';
import type { CudaDevice } from '../device/cuda/cuda-device.ts';
import { type DeviceEvent, passedEvent } from '../device/device.ts';
import type { Tensor } from '../device/tensor.ts';
import { CallGuard, CallQueue } from '../group/call-guard.ts';
import type { CallOptions } from '../group/overlap.ts';
import { requireDevice, requireGroup } from '../group/tensor-check.ts';
import type { RankGroup } from '../world/rank-group.ts';
import { algorithmTable, type AlgorithmTable } from './algorithm-table.ts';
import {
  type AllReduceArguments,
  type CollectiveArguments,
  type AllToAllvArguments,
  argumentNames,
  type BroadcastArguments,
  type CallScope,
  checkOptionsOf,
  checkOwnMessages,
  type CollectiveResult,
  copyOfArguments,
  readAllGather,
  readAllReduce,
  readAllToAll,
  readAllToAllv,
  readBarrier,
  readBroadcast,
  readRecv,
  readReduce,
  readReduceScatter,
  readSend,
  type RecvArguments,
  type ReduceArguments,
  type ReduceScatterArguments,
  requireLive,
  requireTensor,
  type SendArguments,
} from './call-arguments.ts';
import {
  type CollectiveEngine,
  type CollectiveKind,
  makeCollectiveCall,
  messageBytes,
  type PairMessage,
  type Route,
} from './collective-call.ts';
import {
  checkCommunicatorOptions,
  type CheckedCommunicatorOptions,
  type CommunicatorOptions,
} from './communicator-options.ts';
import { createCpuCollectives } from './cpu/cpu-collectives.ts';
import { createCudaCollectives } from './cuda/cuda-collectives.ts';
import { createHostsCollectives } from './hosts/hosts-collectives.ts';

/** One for all calls, so that a call that ends at once makes no object. */
const done: Promise<CollectiveResult> = Promise.resolve(Object.freeze({ event: undefined }));
const doneWithEvent: Promise<CollectiveResult> = Promise.resolve(Object.freeze({ event: passedEvent }));

/** A loop of calls that end at once gives the event loop a turn after this time; the clock is looked at once in so many calls. */
const TURN_MS = 10;
const CALLS_PER_LOOK = 16;

type CallName = keyof typeof argumentNames;
type Read<Arguments> = (scope: CallScope, args: Arguments) => void;
type Work<Arguments> = Read<Arguments> | readonly PairMessage[];

/**
 * Collectives between the ranks of a group, with the semantics of NCCL and MPI. Ranks in arguments are ranks of the group.
 * All ranks make the same calls in the same order, with the same counts, dtypes, reductions and roots; a rank that does not
 * ends the use of the Communicator for all of them with WL_CONFIG_MISMATCH, which names the call, the ranks and both sides.
 * A broadcast returns without waiting for ranks that do not send to this one, so that there it may be found one call later.
 *
 * A reduction is computed in rank order, ((r0 + r1) + r2) + …, whatever the algorithm: the same input gives the same
 * bytes. bf16 is summed in f32 and rounded once, i32 wraps, a NaN of any rank gives the plain NaN.
 *
 * A rank that is missing ends the call with WL_TIMEOUT or, if its process is gone, with WL_PEER_LOST, on all other ranks
 * that wait for it; every later call fails with the reason. Bad arguments fail with WL_INVALID_ARGUMENT on this rank before it
 * does anything.
 *
 * Calls that overlap are carried out one after the other, on all ranks in the order of their posting; nothing needs to be
 * awaited between them, and `timeoutMs` counts from a call's turn. If one fails, those that wait for it fail with the same error.
 *
 * On GPUs of one host a call returns when its kernel is enqueued on the device's stream, and device.capture() records it; until
 * register() has ended, others fail with WL_INVALID_ARGUMENT. What went wrong fails the next wait for the device, and every later
 * call. There every collective waits for all ranks, a send for its recv, and calls of several Communicators of one device must
 * come in the same order on all ranks. On GPUs of several hosts a call waits for other ranks, and fails, as on CPUs; it resolves
 * when its last step is enqueued, and cannot be recorded.
 */
export class Communicator implements AsyncDisposable {
  /**
   * The very promise that calls return that ended at once, but for those with `asyncFinish`. An await costs as much as a small
   * message: a loop that cannot afford it may await only what is not `Communicator.done`.
   */
  static readonly done: Promise<CollectiveResult> = done;
  readonly group: RankGroup;
  readonly device: CpuDevice | CudaDevice;
  readonly #engine: CollectiveEngine;
  readonly #scope: CallScope;
  readonly #guard: CallGuard;
  readonly #queue: CallQueue;
  /** Messages of the groups that were started, and how many of these were not yet ended. */
  #messages: PairMessage[] = [];
  #groups = 0;
  /** Calls that ended at once since the clock was looked at, and when the event loop got its last turn. */
  #endedAtOnce = 0;
  #lastTurn = 0;

  /**
   * Collective over the group (a world is one): CPU ranks on any hosts, up to 8 ranks with GPUs of one host, or up to 128 with
   * GPUs of several, else WL_UNSUPPORTED. Fails on every rank with the same error: WL_INVALID_ARGUMENT, WL_CONFIG_MISMATCH, WL_MEMORY,
   * WL_SHARED_MEMORY, WL_COMPILE, WL_CUDA or WL_TIMEOUT.
   * @param group The ranks that take part.
   * @param device This rank's; tensors of calls are on it.
   * @param options How long to wait for the others, and how much moves at a time.
   */
  static async create(
    group: RankGroup,
    device: CpuDevice | CudaDevice,
    options: CommunicatorOptions = {},
  ): Promise<Communicator> {
    requireGroup(group);
    requireDevice(device);
    const shape = { ranks: group.size, hosts: group.topology.hosts.length };
    const checked = checkCommunicatorOptions(options, shape, device.kind);
    const table = algorithmTable(shape, { option: options.algorithms, file: group.settings.collectiveTable });
    const wait = startCall(options, group.settings.timeoutMs);
    return new Communicator(group, device, await createEngine(group, device, { ...wait, ...checked, table }));
  }

  private constructor(group: RankGroup, device: CpuDevice | CudaDevice, engine: CollectiveEngine) {
    this.group = group;
    this.device = device;
    this.#guard = new CallGuard('Communicator', group.ranks);
    this.#queue = new CallQueue('Communicator', this.#guard);
    this.#engine = engine;
    this.#scope = { group, device, call: makeCollectiveCall(group.size) };
    engine.guardLaunches?.((what) => this.#queue.requireIdle(what));
  }

  /** How bytes get from this rank to each rank of the group: 'self', 'window' for shared memory, or 'network'. Chosen once. */
  get routes(): readonly Route[] {
    return this.#engine.routes;
  }

  /**
   * Collective: every rank names one tensor. On GPUs all ranks map the memory of each, once per allocation, and large calls
   * whose tensors (slices too) are registered on all ranks read and write them where they lie, without a copy through the
   * window. Registered tensors must live until all ranks have closed the Communicator: the others keep their memory mapped.
   * After a call has failed, ranks that were late in it may still read and write them, and with `copyEngines` also ranks that
   * came early, in memory of one that never came. Tensors below 2 MiB stay unregistered, and on CPUs and across hosts it
   * changes nothing. WL_CAPACITY above 64 tensors.
   */
  async register(tensor: Tensor, options: WaitOptions = {}): Promise<void> {
    this.#queue.requireOpen();
    checkOptions(options, waitOptionNames, 'options of register');
    const own = copyOfArguments(waitOptionNames, options);
    return this.#queue.post(() =>
      this.#guard.run('register', () => {
        this.#engine.throwIfUnusable();
        requireTensor('tensor', tensor, this.device);
        return this.#engine.register(tensor, startCall(own, this.group.settings.timeoutMs));
      }),
    );
  }

  /** Returns when all ranks have called it; on GPUs the device's stream waits for that. */
  barrier(options: CallOptions = {}): Promise<CollectiveResult> {
    return this.#run('barrier', options, readBarrier);
  }

  /** Every rank's `output` becomes the `input` of `root`, which the other ranks do not need. Any dtype. */
  broadcast(args: BroadcastArguments): Promise<CollectiveResult> {
    return this.#run('broadcast', args, readBroadcast);
  }

  /** The `output` of `root`, which the other ranks do not need, becomes the reduction of the inputs. f32, bf16 or i32. */
  reduce(args: ReduceArguments): Promise<CollectiveResult> {
    return this.#run('reduce', args, readReduce);
  }

  /**
   * Every rank's `output` becomes the inputs of all, by rank, as many elements of each. In place: they are at this rank's place
   * in `output`. Any dtype.
   */
  allGather(args: CollectiveArguments): Promise<CollectiveResult> {
    return this.#run('allGather', args, readAllGather);
  }

  /**
   * Rank r's `output` becomes the reduction of part r of the inputs; without it, this rank's part of `input` does: in place. f32,
   * bf16 or i32.
   */
  reduceScatter(args: ReduceScatterArguments): Promise<CollectiveResult> {
    return this.#run('reduceScatter', args, readReduceScatter);
  }

  /** Every rank's `output` becomes the reduction of the inputs. f32, bf16 or i32. */
  allReduce(args: AllReduceArguments): Promise<CollectiveResult> {
    return this.#run('allReduce', args, readAllReduce);
  }

  /** Part s of rank r's `output` becomes part r of rank s's `input`. Any dtype. */
  allToAll(args: CollectiveArguments): Promise<CollectiveResult> {
    return this.#run('allToAll', args, readAllToAll);
  }

  /**
   * The same with parts of any length: what rank r sends to rank s must be as long as what s expects from r, else all fail
   * with WL_CONFIG_MISMATCH, which names both and their counts.
   */
  allToAllv(args: AllToAllvArguments): Promise<CollectiveResult> {
    return this.#run('allToAllv', args, readAllToAllv);
  }

  /**
   * From here to groupEnd(), send() and recv() only say what to do. Groups may be nested; the outermost end counts.
   */
  groupStart(): void {
    this.#queue.requireOpen();
    this.#groups += 1;
  }

  /**
   * Carries out the messages since groupStart(), all at once, so that their order between different ranks does not matter;
   * those to or from one rank keep their order. Resolves when this rank's are over.
   */
  groupEnd(options: CallOptions = {}): Promise<CollectiveResult> {
    try {
      if (this.#groups === 0) throw new WeftlineError('WL_INVALID_ARGUMENT', 'groupEnd: no group was started');
      this.#groups -= 1;
      if (this.#groups > 0) return done;
      const messages = this.#messages;
      this.#messages = [];
      checkOptionsOf('groupEnd', options);
      checkOwnMessages(messages, this.group.rank);
      return this.#exchange('groupEnd', options, messages);
    } catch (error) {
      return Promise.reject(error);
    }
  }

  /**
   * Sends a tensor to a rank of the group, which receives as many elements of the same dtype. Within a group it waits for
   * groupEnd(), and until then the tensor must not change; alone it resolves when the tensor may be used again, which may be before the peer
   * has received it.
   */
  send(args: SendArguments): Promise<CollectiveResult> {
    return this.#message('send', args, () => readSend(this.#scope, args));
  }

  /** The counterpart of send(). */
  recv(args: RecvArguments): Promise<CollectiveResult> {
    return this.#message('recv', args, () => readRecv(this.#scope, args));
  }

  /**
   * Releases the window here, once all calls that were posted before are over; later ones fail with WL_CLOSED. Ranks that still wait for this one get WL_PEER_LOST, or WL_TIMEOUT at their deadline on GPUs
   * of one host, where it returns when the peers have received what this rank sent. Across hosts it returns when the ranks whose
   * data come to this host through this rank have closed theirs too. Both end at the latest after the timeout. Idempotent.
   */
  close(): Promise<void> {
    return this.#queue.close(() => {
      this.#guard.close();
      return this.#engine.close();
    });
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }

  /** Fails for a call that cannot have its turn: none can wait where kernels follow each other in the order of posting. */
  #requireTurn(kind: string): void {
    this.#queue.requireOpen();
    if (this.#engine.guardLaunches !== undefined) this.#queue.requireIdle(kind);
  }

  /** Hot path. */
  #run<Arguments extends CallOptions>(
    kind: CollectiveKind,
    args: Arguments,
    read: Read<Arguments>,
  ): Promise<CollectiveResult> {
    if (this.#queue.isBusy) return this.#runInTurn(kind, args, read);
    return this.#queue.follow(this.#start(kind, args, read, false));
  }

  /** What is wrong with the arguments fails now; the call that runs uses the scope's call. */
  async #runInTurn<Arguments extends CallOptions>(
    kind: CollectiveKind,
    args: Arguments,
    read: Read<Arguments>,
  ): Promise<CollectiveResult> {
    this.#requireTurn(kind);
    this.#check(kind, args);
    const own = copyOfArguments(argumentNames[kind], args);
    read({ ...this.#scope, call: makeCollectiveCall(this.group.size) }, own);
    return this.#queue.post(() => this.#start(kind, own, read, true));
  }

  #check(kind: CallName, args: CallOptions): void {
    checkOptionsOf(kind, args);
    if (this.#groups > 0) throw invalidArgument('call', kind, 'only send and recv between groupStart and groupEnd');
  }

  /** Hot path: no object and no promise are made if the call ends at once. */
  #start<Arguments extends CallOptions>(
    kind: CallName,
    args: Arguments,
    work: Work<Arguments>,
    isChecked: boolean,
  ): Promise<CollectiveResult> {
    try {
      this.#guard.begin(kind);
    } catch (error) {
      return Promise.reject(error);
    }
    try {
      if (!isChecked) this.#check(kind, args);
      this.#engine.throwIfUnusable();
      const { previousEvent } = args;
      const rest =
        previousEvent === undefined || this.#engine.ordersCalls || previousEvent.isDone()
          ? this.#begin(args, work)
          : this.#beginAfter(previousEvent, args, work);
      if (rest !== undefined) return this.#finish(rest, args);
    } catch (error) {
      this.#guard.end(error);
      return Promise.reject(error);
    }
    this.#guard.end();
    return this.#ended(args);
  }

  /** Hot path: of a call that ended at once. Now and then timers, signals and sockets of the thread get their turn before it. */
  #ended(options: CallOptions): Promise<CollectiveResult> {
    const result = this.#resultOf(options);
    if (++this.#endedAtOnce < CALLS_PER_LOOK) return result;
    this.#endedAtOnce = 0;
    const now = performance.now();
    if (now - this.#lastTurn < TURN_MS) return result;
    this.#lastTurn = now;
    return nextTurn().then(() => result);
  }

  #begin<Arguments extends CallOptions>(args: Arguments, work: Work<Arguments>): Promise<void> | undefined {
    if (typeof work !== 'function') {
      requireLive(work);
      return this.#engine.exchange(work, args);
    }
    work(this.#scope, args);
    this.#guard.bytes = messageBytes(this.#scope.call, this.group.size);
    return this.#engine.run(this.#scope.call, args);
  }

  async #beginAfter<Arguments extends CallOptions>(
    event: DeviceEvent,
    args: Arguments,
    work: Work<Arguments>,
  ): Promise<void> {
    const wait = startCall(args, this.group.settings.timeoutMs);
    await event.wait(remaining(wait));
    await this.#begin(wait, work);
  }

  async #finish(rest: Promise<void>, options: CallOptions): Promise<CollectiveResult> {
    let failure: unknown;
    try {
      await rest;
    } catch (error) {
      failure = error;
      throw error;
    } finally {
      this.#guard.end(failure);
    }
    return this.#resultOf(options);
  }

  #resultOf({ asyncFinish }: CallOptions): Promise<CollectiveResult> {
    if (asyncFinish !== true) return done;
    const { ordersCalls, lastEvent } = this.#engine;
    return ordersCalls && lastEvent !== undefined ? Promise.resolve({ event: lastEvent }) : doneWithEvent;
  }

  #message(kind: 'send' | 'recv', args: CallOptions, read: () => PairMessage): Promise<CollectiveResult> {
    try {
      checkOptionsOf(kind, args);
      this.#queue.requireOpen();
      const message = read();
      if (this.#groups > 0) {
        this.#messages.push(message);
        return done;
      }
      const messages = [message];
      checkOwnMessages(messages, this.group.rank);
      return this.#exchange(kind, args, messages);
    } catch (error) {
      return Promise.reject(error);
    }
  }

  #exchange(kind: CallName, options: CallOptions, messages: readonly PairMessage[]): Promise<CollectiveResult> {
    this.#requireTurn(kind);
    const own = this.#queue.isBusy ? copyOfArguments(argumentNames[kind], options) : options;
    return this.#queue.post(() => this.#start(kind, own, messages, true));
  }
}

/** Collective. Fails with WL_UNSUPPORTED on every rank for what no engine does yet. */
function createEngine(
  group: RankGroup,
  device: CpuDevice | CudaDevice,
  options: CallWait & CheckedCommunicatorOptions & { readonly table: AlgorithmTable },
): Promise<CollectiveEngine> {
  const { table, numSms, directBytes, copyEngines, ...rest } = options;
  if (device.kind === 'cuda') {
    if (group.topology.hosts.length > 1) return createHostsCollectives(group, device, options);
    return createCudaCollectives(group, device, { ...rest, numSms, directBytes, copyEngines });
  }
  return createCpuCollectives(group, device, { ...rest, directBytes, table });
}
