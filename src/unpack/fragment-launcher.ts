// What unpacking and packing share: blocks are checked, taken into a ring of slots and moved, and slots come back in order.
import { BLOCK_HEADER_WORDS, FRAGMENT_WORDS, RING_SLOT_BYTES } from '../abi/unpack.ts';
import { checkOptions, type OptionNames } from '../core/check-options.ts';
import { checkSignal, checkTimeout, waitOptionNames, type WaitOptions } from '../core/deadline.ts';
import { invalidArgument, WeftlineError } from '../core/errors.ts';
import type { CpuDevice } from '../device/cpu/cpu-device.ts';
import type { CudaDevice } from '../device/cuda/cuda-device.ts';
import type { CudaStream } from '../device/cuda/cuda-stream.ts';
import type { Storage } from '../device/tensor.ts';
import { CpuFragments } from './cpu/cpu-fragments.ts';
import { LaunchedFragments } from './cuda/launched-fragments.ts';
import { PersistentFragments } from './cuda/persistent-fragments.ts';
import { DescriptorBlock, disposedError, wrongBlockError } from './descriptor-block.ts';
import {
  checkConfig,
  type CheckedConfig,
  checkStream,
  type FragmentEngine,
  type FragmentRun,
  type LauncherConfig,
} from './launcher-config.ts';
import { type Direction, RingWriter, type WrittenFacts } from './ring-writer.ts';

// What launches took, added up.

/** Sums over all launches of a launcher; times in µs. */
interface LaunchTimes {
  readonly launches: number;
  readonly blocks: number;
  /** Fragments, without empty ones. */
  readonly fragments: number;
  readonly bytes: number;
  /** Time of the host for checking the blocks and writing them into the ring. */
  readonly checkMicroseconds: number;
  /** Time of the host for handing the work to the device; on the CPU device it includes moving the fragments. */
  readonly submitMicroseconds: number;
  /** Time of the device, for launches that are known to be done. */
  readonly deviceMicroseconds: number;
}

class LaunchProfile {
  deviceMicroseconds = 0;
  #launches = 0;
  #blocks = 0;
  #fragments = 0;
  #bytes = 0;
  #checkMs = 0;
  #submitMs = 0;

  /** Call it when the launch is submitted; the times are those of performance.now(). */
  add(
    moved: { readonly fragments: number; readonly totalBytes: number },
    { blocks, begin, checked }: { readonly blocks: number; readonly begin: number; readonly checked: number },
  ): void {
    this.#launches += 1;
    this.#blocks += blocks;
    this.#fragments += moved.fragments;
    this.#bytes += moved.totalBytes;
    this.#checkMs += checked - begin;
    this.#submitMs += performance.now() - checked;
  }

  times(): LaunchTimes {
    return {
      launches: this.#launches,
      blocks: this.#blocks,
      fragments: this.#fragments,
      bytes: this.#bytes,
      checkMicroseconds: this.#checkMs * 1000,
      submitMicroseconds: this.#submitMs * 1000,
      deviceMicroseconds: this.deviceMicroseconds,
    };
  }
}

/** Made by prepare() of a launcher, for its launch(). Holds copies: what happens to the blocks changes nothing. */
export class PreparedFragments {
  /** Fragments that it moves, without empty ones. */
  readonly fragments: number;
  /** Bytes that it moves. */
  readonly totalBytes: number;
  /** @internal The launcher that made it. */
  readonly owner: object;
  /** @internal Slots of a ring, as far as they are filled. */
  readonly slots: readonly Uint32Array[];
  /** @internal */
  readonly facts: WrittenFacts;
  /** @internal By block; what begin() was given as tensors. */
  readonly memory: readonly BlockMemory[];

  /** @internal Use prepare(). */
  constructor(owner: object, slots: readonly Uint32Array[], facts: WrittenFacts, memory: readonly BlockMemory[]) {
    this.owner = owner;
    this.slots = slots;
    this.facts = facts;
    this.memory = memory;
    this.fragments = facts.fragments;
    this.totalBytes = facts.totalBytes;
  }

  /** Blocks that it takes of the ring. */
  get blocks(): number {
    return this.slots.length;
  }
}

/** Options of one launch. */
interface FragmentLaunchOptions {
  /** Instead of the stream of the configuration; of the launcher's own device. */
  readonly stream?: CudaStream;
}

const launchNames: OptionNames<FragmentLaunchOptions> = { stream: true };
const launchSyncNames = { ...launchNames, ...waitOptionNames };

/** The base of UnpackLauncher and PackLauncher. Not to be shared between threads. */
export abstract class FragmentLauncher implements AsyncDisposable {
  readonly #engine: FragmentEngine;
  readonly #config: CheckedConfig;
  readonly #writer: RingWriter;
  readonly #profile: LaunchProfile | undefined;
  readonly #single: DescriptorBlock[] = [];
  readonly #run: FragmentRun = {
    ticket: 0,
    firstSlot: 0,
    blocks: 0,
    mostDescriptors: 0,
    isSmall: false,
    waits: false,
  };
  readonly #slotAt: (block: number) => Uint32Array;
  /** The slot behind the launch of each ticket of the engine, counted since the beginning. */
  readonly #endSlots: Float64Array;
  /** Counted since the beginning: launches begun and over, slots taken and free again. */
  #launched = 0;
  #finished = 0;
  #taken = 0;
  #freed = 0;
  #isClosed = false;
  #closing: Promise<void> | undefined;
  /** Set when nothing of the engine may be touched any more: what those learn who ask for a launch that is not known. */
  #end: unknown;
  /** Launches that did not find their ready flag; kept until the ring has gone round. */
  readonly #failed = new Map<number, { readonly error: WeftlineError; isTold: boolean }>();
  /** The first failure that nobody was told while its launch had a place in the ring. */
  #untold: { readonly launch: number; readonly error: WeftlineError } | undefined;
  /** 1 for each ticket of the engine whose launch has a block with a ready flag. */
  readonly #waits: Uint8Array;

  /** @internal Use UnpackLauncher.create() or PackLauncher.create(). */
  constructor(engine: FragmentEngine, config: CheckedConfig, direction: Direction) {
    this.#engine = engine;
    this.#config = config;
    this.#writer = new RingWriter(direction, config.slots);
    this.#profile = config.profiling ? new LaunchProfile() : undefined;
    this.#endSlots = new Float64Array(config.slots);
    this.#waits = new Uint8Array(config.slots);
    this.#slotAt = (block) => engine.slotWords((this.#taken + block) % config.slots);
  }

  /**
   * Begins to move one block or several of them by one launch, and returns a number for isDone() and wait(). The blocks may be
   * changed when it returns. Work that is enqueued on the same stream later finds the fragments in their places. Fails,
   * before anything is moved, with WL_INVALID_ARGUMENT that names the descriptor if one lies outside of its memory, if two
   * are written to the same bytes or if the sum is wrong, with WL_CLOSED if the launcher, its device or a tensor of a block was
   * closed, and with WL_BUSY if the ring has no room.
   * @param blocks One block, several, or what prepare() made of them.
   * @param options The stream, if not the launcher's own.
   */
  launch(
    blocks: DescriptorBlock | readonly DescriptorBlock[] | PreparedFragments,
    options?: FragmentLaunchOptions,
  ): number {
    if (options !== undefined) checkLaunch(options);
    const stream = options?.stream;
    if (stream !== undefined) checkStream(stream);
    if (this.#isClosed) throw new WeftlineError('WL_CLOSED', 'Cannot launch: the launcher was closed');
    this.#engine.requireOpen(stream);
    const isPrepared = blocks instanceof PreparedFragments;
    const count = isPrepared ? blocks.blocks : this.#listOf(blocks).length;
    this.#requireRoom(count);
    const begin = this.#profile === undefined ? 0 : performance.now();
    const facts = isPrepared ? this.#writePrepared(blocks) : this.#writeBlocks(this.#listOf(blocks));
    const checked = this.#profile === undefined ? 0 : performance.now();
    const { slots } = this.#config;
    const run = this.#run;
    run.ticket = this.#launched % slots;
    run.firstSlot = this.#taken % slots;
    run.blocks = count;
    run.mostDescriptors = facts.mostDescriptors;
    run.isSmall = facts.isSmall;
    run.waits = facts.waits;
    this.#engine.submit(run, stream);
    this.#taken += count;
    this.#endSlots[run.ticket] = this.#taken;
    this.#waits[run.ticket] = run.waits ? 1 : 0;
    if (this.#failed.size > 0) this.#forgetFailure(this.#launched + 1 - slots);
    this.#profile?.add(facts, { blocks: count, begin, checked });
    this.#launched += 1;
    return this.#launched;
  }

  /**
   * Checks blocks once that are launched many times, and keeps a copy of them: each launch() of the result then costs the
   * host a copy of the descriptors. Fails as launch() does, but never with WL_BUSY. The result is for this launcher alone.
   * @param blocks What launch() would take.
   */
  prepare(blocks: DescriptorBlock | readonly DescriptorBlock[]): PreparedFragments {
    if (this.#isClosed) throw new WeftlineError('WL_CLOSED', 'Cannot prepare blocks: the launcher was closed');
    const list = this.#listOf(blocks);
    this.#checkCount(list.length);
    const writer = this.#writer;
    writer.take(list);
    requireMemory(this.#engine, list);
    writer.shareAmong(this.#engine.warps, this.#config.smallKernel);
    const slot = new Uint32Array(RING_SLOT_BYTES / 4);
    const slots = list.map((_, block) => {
      const count = writer.writeBlock(block, slot);
      return slot.slice(0, BLOCK_HEADER_WORDS + count * FRAGMENT_WORDS);
    });
    const { totalBytes, fragments, mostDescriptors, isSmall, waits } = writer;
    const memory = list.map(({ bounceStorage, destinationStorage }) => ({ bounceStorage, destinationStorage }));
    return new PreparedFragments(this, slots, { totalBytes, fragments, mostDescriptors, isSmall, waits }, memory);
  }

  /** The same, and resolves when the fragments are in their places. Fails as launch() and wait() do. */
  async launchSync(
    blocks: DescriptorBlock | readonly DescriptorBlock[] | PreparedFragments,
    options: FragmentLaunchOptions & WaitOptions = {},
  ): Promise<void> {
    checkOptions(options, launchSyncNames, 'options of launchSync');
    const { stream, ...waitOptions } = options;
    checkWait(waitOptions, 'options of launchSync');
    await this.wait(this.launch(blocks, stream === undefined ? undefined : { stream }), waitOptions);
  }

  /** True when the launch of this number, and all before it, are done. Does not wait. Fails as wait() does. */
  isDone(launch: number): boolean {
    this.#requireLaunch(launch);
    if (launch > this.#finished) this.#reclaim();
    if (this.#failed.size > 0 || this.#untold !== undefined) this.#throwFailure(launch);
    return launch <= this.#finished;
  }

  /**
   * Resolves when the launch of this number is done; that of all so far by default. Fails with WL_TIMEOUT, also when a block
   * was not ready in time, of this launch or of one before it of which nobody was told yet; with the signal's reason, with
   * WL_CUDA, or with WL_CLOSED if close() could not learn how the launch ended.
   */
  async wait(launch: number = this.#launched, options: WaitOptions = {}): Promise<void> {
    checkWait(options, 'options of wait');
    this.#requireLaunch(launch);
    await this.#until(() => this.isDone(launch), `Launch ${launch}`, options);
  }

  /** Blocks for which the ring has room now. */
  get room(): number {
    const { slots } = this.#config;
    if (this.#taken - this.#freed > 0) this.#reclaim();
    return slots - (this.#taken - this.#freed);
  }

  /** Resolves when the ring has room for so many blocks. Fails as wait() does. */
  async whenRoom(blocks = 1, options: WaitOptions = {}): Promise<void> {
    checkWait(options, 'options of whenRoom');
    this.#checkCount(blocks);
    await this.#until(() => this.room >= blocks, `Room for ${blocks} blocks`, options);
  }

  /** What was measured since the launcher was made. Fails with WL_INVALID_ARGUMENT without the option `profiling`. */
  profile(): LaunchTimes {
    if (this.#profile === undefined)
      throw invalidArgument('profiling', false, 'true in the configuration of the launcher');
    this.#reclaim();
    return this.#profile.times();
  }

  /**
   * Waits for what is under way, then gives back all that was made. Launches that wait for flags are ended after `timeoutMs`,
   * and fail. Idempotent; fails with WL_TIMEOUT or WL_CUDA, and may then be called again.
   */
  close(): Promise<void> {
    this.#isClosed = true;
    this.#closing ??= this.#engine
      .close(() => this.#lastLook())
      .catch((error: unknown) => {
        // What is under way still uses the memory: another call waits for it again.
        this.#closing = undefined;
        throw error;
      });
    return this.#closing;
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }

  #listOf(blocks: DescriptorBlock | readonly DescriptorBlock[]): readonly DescriptorBlock[] {
    if (Array.isArray(blocks)) return blocks as readonly DescriptorBlock[];
    if (!(blocks instanceof DescriptorBlock)) throw invalidArgument('blocks', blocks, 'a DescriptorBlock or several');
    this.#single[0] = blocks;
    return this.#single;
  }

  #writeBlocks(list: readonly DescriptorBlock[]): WrittenFacts {
    const writer = this.#writer;
    writer.take(list);
    requireMemory(this.#engine, list);
    writer.shareAmong(this.#engine.warps, this.#config.smallKernel);
    for (let block = 0; block < list.length; block++) writer.writeBlock(block, this.#slotAt(block));
    return writer;
  }

  #writePrepared({ owner, slots, facts, memory }: PreparedFragments): WrittenFacts {
    if (owner !== this) throw invalidArgument('blocks', 'what another launcher prepared', 'what this one did');
    requireMemory(this.#engine, memory);
    for (let block = 0; block < slots.length; block++) this.#slotAt(block).set(slots[block]!);
    return facts;
  }

  #requireRoom(blocks: number): void {
    this.#checkCount(blocks);
    const { slots } = this.#config;
    if (slots - (this.#taken - this.#freed) >= blocks) return;
    const { room } = this;
    if (room >= blocks) return;
    throw new WeftlineError(
      'WL_BUSY',
      `The ring has room for ${room} of ${blocks} blocks, as ${slots - room} are under way: await whenRoom(), or make a launcher with more slots`,
      { details: { room, blocks, slots } },
    );
  }

  #checkCount(blocks: number): void {
    const { slots } = this.#config;
    if (Number.isInteger(blocks) && blocks >= 1 && blocks <= slots) return;
    throw invalidArgument('blocks of a launch', blocks, `1 to ${slots}, the slots of the launcher's ring`);
  }

  /** Slots come back in the order of launches, also where those went to several streams. */
  #reclaim(): void {
    const { slots } = this.#config;
    if (this.#end !== undefined) {
      if (this.#finished < this.#launched) throw this.#end;
      return;
    }
    while (this.#finished < this.#launched) {
      const ticket = this.#finished % slots;
      if (!this.#engine.isDone(ticket)) break;
      if (this.#profile !== undefined) this.#profile.deviceMicroseconds += this.#engine.microsecondsOf(ticket);
      const first = this.#freed;
      this.#freed = this.#endSlots[ticket]!;
      this.#finished += 1;
      if (this.#waits[ticket] === 0) continue;
      const error = this.#engine.failureOf(first % slots, this.#freed - first);
      if (error !== undefined) this.#failed.set(this.#finished, { error, isTold: false });
    }
  }

  #requireLaunch(launch: number): void {
    if (Number.isInteger(launch) && launch >= 0 && launch <= this.#launched) return;
    const expected = `a number that launch() of this launcher returned, at most ${this.#launched} so far`;
    throw invalidArgument('launch', launch, expected);
  }

  #forgetFailure(launch: number): void {
    const failure = this.#failed.get(launch);
    if (failure === undefined) return;
    this.#failed.delete(launch);
    if (!failure.isTold) this.#untold ??= { launch, error: failure.error };
  }

  /** A launch that failed says so each time; to those behind it, its failure is told if nobody has heard of it. */
  #throwFailure(launch: number): void {
    if (this.#untold !== undefined && this.#untold.launch <= launch) {
      const { error } = this.#untold;
      this.#untold = undefined;
      throw error;
    }
    const own = this.#failed.get(launch);
    const untold = own ?? [...this.#failed].find(([number, { isTold }]) => number < launch && !isTold)?.[1];
    if (untold === undefined) return;
    untold.isTold = true;
    throw untold.error;
  }

  /** All work has ended, and its words are about to be given back. */
  #lastLook(): void {
    try {
      this.#reclaim();
      this.#end = new WeftlineError('WL_CLOSED', 'The launcher was closed');
    } catch (error) {
      this.#end = error;
    }
  }

  #until(ready: () => boolean, what: string, options: WaitOptions): Promise<void> {
    const { timeoutMs = this.#config.timeoutMs, signal } = options;
    return this.#engine.pollUntil(ready, { timeoutMs, signal, what });
  }
}

/**
 * Unpacks: a chunk lies in a bounce buffer as fragments, and each goes to its own place in the destination. One launch moves
 * thousands of them. Make it once; a launch allocates nothing.
 */
export class UnpackLauncher extends FragmentLauncher {
  /**
   * Takes memory for its ring, and on GPUs compiles its kernels unless they are in a cache. Fails with
   * WL_INVALID_ARGUMENT, WL_MEMORY, WL_COMPILE, WL_UNSUPPORTED or WL_CUDA.
   * @param device Whose memory is moved.
   * @param config What differs from the defaults.
   */
  static async create(device: CpuDevice | CudaDevice, config: LauncherConfig = {}): Promise<UnpackLauncher> {
    const { engine, checked } = await createEngine(device, config, 'unpack');
    return new UnpackLauncher(engine, checked, 'unpack');
  }
}

/**
 * Packs: reads each fragment at its destination offset and writes it at its source offset in the bounce buffer. The block
 * that packed a chunk on one side unpacks it on another.
 */
export class PackLauncher extends FragmentLauncher {
  /**
   * As UnpackLauncher.create().
   * @param device Whose memory is moved.
   * @param config What differs from the defaults.
   */
  static async create(device: CpuDevice | CudaDevice, config: LauncherConfig = {}): Promise<PackLauncher> {
    const { engine, checked } = await createEngine(device, config, 'pack');
    return new PackLauncher(engine, checked, 'pack');
  }
}

/** Hot path: the names are not listed. */
function checkLaunch(options: FragmentLaunchOptions): void {
  if (typeof options !== 'object' || options === null) throw invalidArgument('options of launch', options, 'an object');
  for (const name in options) {
    if (name !== 'stream') checkOptions(options, launchNames, 'options of launch');
  }
}

/** A wait without an end would be one that hangs. */
function checkWait(options: WaitOptions, what: string): void {
  checkOptions(options, waitOptionNames, what);
  if (options.timeoutMs !== undefined) checkTimeout(options.timeoutMs);
  checkSignal(options.signal);
}

// Whether the tensors of a block are a launcher's to use: those of another device have addresses that mean other memory here.

/** Undefined where only addresses are known. */
interface BlockMemory {
  readonly bounceStorage: Storage | undefined;
  readonly destinationStorage: Storage | undefined;
}

/** Fails with WL_INVALID_ARGUMENT or WL_CLOSED. */
function requireMemory(engine: FragmentEngine, blocks: readonly BlockMemory[]): void {
  for (let block = 0; block < blocks.length; block++) {
    const { bounceStorage, destinationStorage } = blocks[block]!;
    if (bounceStorage !== undefined) requireStorage(engine, bounceStorage, block, 'bounce buffer');
    if (destinationStorage !== undefined) requireStorage(engine, destinationStorage, block, 'destination');
  }
}

// oxlint-disable-next-line max-params -- hot path: an object for them would be allocated per block
function requireStorage(engine: FragmentEngine, storage: Storage, block: number, memory: string): void {
  if (storage.disposed) throw disposedError(block, memory);
  if (engine.reaches(storage.device)) return;
  const what = `its ${memory} is a tensor of another device, expected one of the launcher's device`;
  throw wrongBlockError(block, what, { memory });
}

// Chooses what moves the fragments of a launcher, by its device.

/** A configuration for GPUs may be given to the CPU device. */
const NO_LIMIT = 65_535;

async function createEngine(
  device: CpuDevice | CudaDevice,
  config: LauncherConfig,
  direction: Direction,
): Promise<{ readonly engine: FragmentEngine; readonly checked: CheckedConfig }> {
  const kind: unknown = typeof device === 'object' && device !== null ? device.kind : undefined;
  if (kind !== 'cpu' && kind !== 'cuda') throw invalidArgument('device', device, 'a CpuDevice or a CudaDevice');
  const multiprocessors = device.kind === 'cuda' ? device.properties.multiprocessors : NO_LIMIT;
  const checked = checkConfig(config, multiprocessors);
  if (device.kind === 'cpu') return { engine: new CpuFragments(device, checked, direction), checked };
  const Fragments = checked.persistent ? PersistentFragments : LaunchedFragments;
  return { engine: await Fragments.create(device, checked, direction), checked };
}
