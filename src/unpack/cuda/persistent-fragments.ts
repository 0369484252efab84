// Moves fragments on a GPU by a kernel that stays: a launch writes descriptors and a counter, and calls no driver.
import {
  blockHeaderWord,
  persistentControl,
  type persistentArguments,
  persistentShared,
  persistentStates,
  slotShareWord,
} from '../../abi/unpack.ts';
import { wideAt, wordOffsets } from '../../abi/layout.ts';
import { invalidArgument, WeftlineError } from '../../core/errors.ts';
import type { CudaDevice } from '../../device/cuda/cuda-device.ts';
import type { CudaStream } from '../../device/cuda/cuda-stream.ts';
import type { HostMemory } from '../../device/cuda/host-memory.ts';
import type { LaunchPlan } from '../../device/cuda/kernel.ts';
import { type PollOptions, pollUntil } from '../../device/cuda/cuda-event.ts';
import type { Tensor } from '../../device/tensor.ts';
import { BlockSpans, type Direction } from '../ring-writer.ts';
import type { CheckedConfig, FragmentEngine, FragmentRun } from '../launcher-config.ts';
import { GpuRing } from './gpu-ring.ts';
import { kernelFiles } from '../../device/cuda/kernel-files.ts';

const THREADS = 512;
const MAX_GROUP_DESCRIPTORS = 32;
/** A kernel that has work all the time hands over to another after this or `idleMs`: what waits for its end goes on. */
const MIN_STAY_MS = 100;
/** A kernel that is about to leave decides within microseconds. */
const DECISION_MS = 1_000;
/** Looks of a wait between two questions to the driver whether the kernel failed. */
const LOOKS_PER_QUESTION = 256;

const controlAt = wordOffsets(persistentControl);

type PersistentPlan = LaunchPlan<keyof typeof persistentArguments.offset>;

export class PersistentFragments extends GpuRing implements FragmentEngine {
  readonly warps: number;
  readonly #plan: PersistentPlan;
  readonly #stream: CudaStream;
  readonly #controlMemory: HostMemory;
  /** One for each kernel in turn. INVARIANT: each kernel that has not left but the first of them has a post to do. */
  readonly #controls: readonly Int32Array[];
  /** The control of the kernel that takes posts. */
  #control: Int32Array;
  #current = 0;
  readonly #packs: boolean;
  /** What the block of each slot reads and writes. */
  readonly #spans: BlockSpans;
  /** Posts that are known to be done, with all before them. */
  #settled = 0;
  /** Looks that found a run under way. */
  #looks = 0;
  readonly #stayMs: number;
  #startedAt = 0;
  /** The last post that was done in each slot. */
  readonly #done: Int32Array;
  readonly #shared: Tensor;
  /** First slot, blocks and first post of each ticket. */
  readonly #firstSlots: Int32Array;
  readonly #blocks: Int32Array;
  readonly #firstPosts: Int32Array;
  #posted = 0;
  /** The warp that takes the first descriptors of the next post. */
  #nextWarp = 0;
  #generation = 0;
  #failure: WeftlineError | undefined;

  /** Compiles the kernel unless it is in a cache; it is launched with the first block. */
  static async create(device: CudaDevice, config: CheckedConfig, direction: Direction): Promise<PersistentFragments> {
    const { unpackPersistent, packPersistent } = await device.loadKernels(kernelFiles.persistentUnpack);
    const kernel = direction === 'unpack' ? unpackPersistent : packPersistent;
    return new PersistentFragments(device, config, kernel.plan({ grid: config.numSms, block: THREADS }), direction);
  }

  private constructor(device: CudaDevice, config: CheckedConfig, plan: PersistentPlan, direction: Direction) {
    super(device, config, () => this.#leave());
    const { slots, numSms, timeoutMs, idleMs } = config;
    this.warps = (numSms * THREADS) / 32;
    this.#plan = plan;
    this.#stream = device.createStream();
    const { size } = persistentControl;
    const controls = slots + 2;
    const controlMemory = device.allocateHost(controls * size + 4 * slots);
    this.#controlMemory = controlMemory;
    this.#controls = Array.from({ length: controls }, (_, index) => controlMemory.view('i32', index * size, size / 4));
    this.#control = this.#controls[0]!;
    this.#done = controlMemory.view('i32', controls * size, slots);
    this.#packs = direction === 'pack';
    this.#spans = new BlockSpans(slots);
    this.#stayMs = Math.max(idleMs, MIN_STAY_MS);
    this.#shared = device.empty('u8', [persistentShared.size + 4 * slots]);
    // This comes in front of the kernels, which run on this stream.
    device.setBytes(this.#shared, 0, this.#stream);
    this.#firstSlots = new Int32Array(slots);
    this.#blocks = new Int32Array(slots);
    this.#firstPosts = new Int32Array(slots);
    const set = plan.arguments;
    set.set('ring', this.ring.deviceAddress);
    set.set('done', controlMemory.deviceAddress + controls * size);
    set.set('shared', this.#shared.address);
    set.set('trap', this.flags.trap);
    set.set('missed', this.flags.missed);
    set.set('timeoutNs', timeoutMs * 1e6);
    set.set('idleNs', idleMs * 1e6);
    set.set('slots', slots);
    this.stay();
  }

  requireOpen(stream?: CudaStream): void {
    this.device.context.enter();
    if (stream !== undefined) {
      throw invalidArgument('stream', 'a stream', 'none: a persistent launcher has a stream of its own');
    }
    if (this.#failure !== undefined) throw this.#failure;
  }

  submit(run: Readonly<FragmentRun>): void {
    const { ticket, firstSlot, blocks } = run;
    if (run.waits) this.flags.begin(run);
    this.#firstSlots[ticket] = firstSlot;
    this.#blocks[ticket] = blocks;
    this.#firstPosts[ticket] = this.#posted + 1;
    if (this.#mustFollow(run) || this.#hasStayedLong()) this.#handOver();
    const nextWarp = this.#nextWarp;
    this.#shareOut(run);
    this.#posted += blocks;
    // ORDER: descriptors before the counter, the counter before the state is read; the kernel does the reverse.
    Atomics.store(this.#control, controlAt.posted, this.#posted | 0);
    if (this.#stateWhenDecided() !== persistentStates.left) return;
    try {
      this.#start();
    } catch (error) {
      // No kernel runs that could have seen the post.
      this.#posted -= blocks;
      this.#nextWarp = nextWarp;
      Atomics.store(this.#control, controlAt.posted, this.#posted | 0);
      throw error;
    }
  }

  isDone(ticket: number): boolean {
    const { context } = this.device;
    context.enter();
    for (let block = 0; block < this.#blocks[ticket]!; block++) {
      if (this.#isPostDone(this.#firstPosts[ticket]! - 1 + block)) continue;
      this.#looks += 1;
      // A kernel that failed leaves nothing in its words; the driver knows.
      if (this.#looks % LOOKS_PER_QUESTION === 0) this.#stream.isIdle();
      return false;
    }
    return true;
  }

  pollUntil(ready: () => boolean, options: PollOptions): Promise<void> {
    return pollUntil(ready, options);
  }

  /** A kernel that stays measures no single launch. */
  microsecondsOf(): number {
    return 0;
  }

  close(beforeRelease?: () => void): Promise<void> {
    const parts = [this.#stream, this.#shared, this.#controlMemory];
    return this.end(() => this.#stream.isIdle(), beforeRelease, parts);
  }

  /** The kernel ends when all that was posted is done. */
  #leave(): void {
    Atomics.store(this.#control, controlAt.mustStop, 1);
  }

  /** A kernel that says it leaves looks for posts once more, and then says whether it stays. */
  #stateWhenDecided(): number {
    let state = Atomics.load(this.#control, controlAt.state);
    if (state !== persistentStates.leaves) return state;
    const end = performance.now() + DECISION_MS;
    while (state === persistentStates.leaves) {
      if (performance.now() > end) {
        // Whether it has seen the post is not known, so the ring cannot be used any more.
        this.#failure = new WeftlineError(
          'WL_INTERNAL',
          `A persistent kernel has not left within ${DECISION_MS} ms of saying so: close the launcher and make another one`,
        );
        throw this.#failure;
      }
      state = Atomics.load(this.#control, controlAt.state);
    }
    return state;
  }

  /** Writes what each warp takes of the slots: one after the other as many descriptors as there are for each of them. */
  #shareOut({ firstSlot, blocks }: Readonly<FragmentRun>): void {
    const { slots } = this.config;
    let all = 0;
    for (let block = 0; block < blocks; block++) {
      all += this.slots[(firstSlot + block) % slots]![blockHeaderWord.count]!;
    }
    const group = Math.min(MAX_GROUP_DESCRIPTORS, Math.max(1, Math.ceil(all / this.warps)));
    for (let block = 0; block < blocks; block++) {
      const words = this.slots[(firstSlot + block) % slots]!;
      words[slotShareWord.groupDescriptors] = group;
      words[slotShareWord.firstWarp] = this.#nextWarp;
      this.#nextWarp = (this.#nextWarp + Math.ceil(words[blockHeaderWord.count]! / group)) % this.warps;
    }
  }

  /** `post`: counted from 0. */
  #isPostDone(post: number): boolean {
    return Atomics.load(this.#done, post % this.config.slots) === ((post + 1) | 0);
  }

  /**
   * A kernel moves all that was posted to it in any order. True if a block of the run reads what one that is under way
   * writes, or writes what that reads, and so must be moved by a kernel behind it.
   */
  #mustFollow({ firstSlot, blocks }: Readonly<FragmentRun>): boolean {
    const { slots } = this.config;
    while (this.#settled < this.#posted && this.#isPostDone(this.#settled)) this.#settled += 1;
    let follows = false;
    for (let block = 0; block < blocks; block++) {
      const slot = (firstSlot + block) % slots;
      this.#readSpans(slot);
      for (let post = this.#settled; post < this.#posted && !follows; post++) {
        follows = this.#spans.depend(slot, post % slots);
      }
    }
    // One that has left is started again behind its own end.
    return follows && Atomics.load(this.#control, controlAt.state) !== persistentStates.left;
  }

  #readSpans(slot: number): void {
    const words = this.slots[slot]!;
    if (words[blockHeaderWord.count] === 0) {
      this.#spans.leaveOut(slot);
      return;
    }
    const [bounce, destination] = this.#packs ? (['write', 'read'] as const) : (['read', 'write'] as const);
    const { bounceBytes, destinationBytes } = blockHeaderWord;
    this.#spans.set(slot, bounce, wideAt(words, blockHeaderWord.bounce), wideAt(words, bounceBytes));
    this.#spans.set(slot, destination, wideAt(words, blockHeaderWord.destination), wideAt(words, destinationBytes));
  }

  /** A kernel that has left is started again by a post; and one behind another that has not left has not stayed long. */
  #hasStayedLong(): boolean {
    if (performance.now() - this.#startedAt <= this.#stayMs) return false;
    const before = this.#controls.at(this.#current - 1)!;
    return (
      Atomics.load(this.#control, controlAt.state) !== persistentStates.left &&
      Atomics.load(before, controlAt.state) === persistentStates.left
    );
  }

  /**
   * A kernel that runs takes no more posts: one behind it takes what follows, so that all that was posted so far is done when
   * the kernel that runs has ended, and the stream knows.
   */
  #handOver(): void {
    const old = this.#control;
    const following = (this.#current + 1) % this.#controls.length;
    const next = this.#controls[following]!;
    Atomics.store(next, controlAt.posted, this.#posted | 0);
    Atomics.store(next, controlAt.taken, this.#posted | 0);
    Atomics.store(next, controlAt.mustStop, 0);
    this.#control = next;
    try {
      this.#start();
    } catch (error) {
      this.#control = old;
      throw error;
    }
    this.#current = following;
    Atomics.store(old, controlAt.mustStop, 1);
  }

  /** Starts a kernel behind the one that left, in the order of the stream. */
  #start(): void {
    const { slots } = this.config;
    const set = this.#plan.arguments;
    set.set('control', this.#controlMemory.deviceAddress + this.#control.byteOffset);
    const missing = (this.#posted - this.#control[controlAt.taken]!) >>> 0;
    const taken = this.#posted - missing;
    this.#generation += 1;
    set.set('taken', taken >>> 0);
    set.set('firstSlot', taken % slots);
    set.set('generation', this.#generation >>> 0);
    Atomics.store(this.#control, controlAt.state, persistentStates.runs);
    try {
      this.#plan.launch(this.#stream);
      this.#startedAt = performance.now();
    } catch (error) {
      Atomics.store(this.#control, controlAt.state, persistentStates.left);
      throw error;
    }
  }
}
