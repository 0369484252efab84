// Moves fragments on a GPU by a kernel that stays: a launch writes descriptors and a counter, and calls no driver.
import {
  BLOCK_HEADER_WORDS,
  FRAGMENT_WORDS,
  persistentControl,
  type persistentArguments,
  persistentShared,
  persistentStates,
  RING_DESCRIPTORS,
  RING_SLOT_BYTES,
} from '../../abi/unpack-block.ts';
import { wordOffsets } from '../../abi/layout.ts';
import { invalidArgument, WeftlineError } from '../../core/errors.ts';
import type { CudaDevice } from '../../device/cuda/cuda-device.ts';
import type { CudaStream } from '../../device/cuda/cuda-stream.ts';
import type { HostMemory } from '../../device/cuda/host-memory.ts';
import { persistentUnpackKernels } from '../../device/cuda/kernels/unpack.ts';
import type { LaunchPlan } from '../../device/cuda/launch-plan.ts';
import { type PollOptions, pollUntil } from '../../device/cuda/poll.ts';
import type { Tensor } from '../../device/tensor.ts';
import type { FragmentEngine, FragmentRun } from '../fragment-engine.ts';
import type { CheckedConfig } from '../launcher-config.ts';
import { MissedFlags } from './missed-flags.ts';
import type { Direction } from '../ring-writer.ts';

const THREADS = 512;
/** A kernel that has work all the time hands over to another after this or `idleMs`: what waits for its end goes on. */
const LEAST_STAY_MS = 100;
/** A kernel that is about to leave decides within microseconds. */
const DECISION_MS = 1_000;
/** Looks of a wait between two questions to the driver whether the kernel failed. */
const LOOKS_PER_QUESTION = 256;

const controlAt = wordOffsets(persistentControl);

type PersistentPlan = LaunchPlan<keyof typeof persistentArguments.offset>;

export class PersistentFragments implements FragmentEngine {
  readonly warps: number;
  readonly #device: CudaDevice;
  readonly #config: CheckedConfig;
  readonly #plan: PersistentPlan;
  readonly #stream: CudaStream;
  readonly #ring: HostMemory;
  readonly #slots: readonly Uint32Array[];
  readonly #controlMemory: HostMemory;
  /** Of the kernel that takes posts, and of the one before it or none. */
  #control: Int32Array;
  #otherControl: Int32Array;
  readonly #stayMs: number;
  #startedAt = 0;
  /** By slot: the last post that was done there. */
  readonly #done: Int32Array;
  readonly #shared: Tensor;
  readonly #flags: MissedFlags;
  /** By ticket: its first slot, its blocks and its first post. */
  readonly #firstSlots: Int32Array;
  readonly #blocks: Int32Array;
  readonly #firstPosts: Int32Array;
  #posted = 0;
  #generation = 0;
  #failure: WeftlineError | undefined;

  /** Compiles the kernel unless it is in a cache; it is launched with the first block. */
  static async create(device: CudaDevice, config: CheckedConfig, direction: Direction): Promise<PersistentFragments> {
    const { unpackPersistent, packPersistent } = await device.loadKernels(persistentUnpackKernels);
    const kernel = direction === 'unpack' ? unpackPersistent : packPersistent;
    const engine = new PersistentFragments(device, config, kernel.plan({ grid: config.numSms, block: THREADS }));
    // The memory is zero before the kernel reads it on a stream of its own.
    await device.stream.idle();
    return engine;
  }

  private constructor(device: CudaDevice, config: CheckedConfig, plan: PersistentPlan) {
    const { slots, numSms, timeoutMs, idleMs } = config;
    this.warps = (numSms * THREADS) / 32;
    this.#device = device;
    this.#config = config;
    this.#plan = plan;
    this.#stream = device.createStream();
    this.#ring = device.allocateHost(slots * RING_SLOT_BYTES);
    const words = BLOCK_HEADER_WORDS + RING_DESCRIPTORS * FRAGMENT_WORDS;
    const { buffer } = this.#ring;
    this.#slots = Array.from({ length: slots }, (_, slot) => new Uint32Array(buffer, slot * RING_SLOT_BYTES, words));
    const { size } = persistentControl;
    this.#controlMemory = device.allocateHost(2 * size + 4 * slots);
    this.#control = this.#controlMemory.view('i32', 0, size / 4);
    this.#otherControl = this.#controlMemory.view('i32', size, size / 4);
    this.#done = this.#controlMemory.view('i32', 2 * size, slots);
    this.#stayMs = Math.max(idleMs, LEAST_STAY_MS);
    this.#shared = device.empty('u8', [persistentShared.size + 4 * slots]);
    device.setBytes(this.#shared, 0);
    this.#flags = new MissedFlags(device, config, (slot) => this.#slots[slot]!);
    this.#firstSlots = new Int32Array(slots);
    this.#blocks = new Int32Array(slots);
    this.#firstPosts = new Int32Array(slots);
    const set = plan.arguments;
    set.set('ring', this.#ring.deviceAddress);
    set.set('done', this.#controlMemory.deviceAddress + 2 * persistentControl.size);
    set.set('shared', this.#shared.address);
    set.set('trap', this.#flags.trap);
    set.set('missed', this.#flags.missed);
    set.set('timeoutNs', timeoutMs * 1e6);
    set.set('idleNs', idleMs * 1e6);
    set.set('slots', slots);
  }

  slotWords(slot: number): Uint32Array {
    return this.#slots[slot]!;
  }

  submit(run: Readonly<FragmentRun>, stream?: CudaStream): void {
    const { ticket, firstSlot, blocks } = run;
    if (stream !== undefined) {
      throw invalidArgument('stream', 'a stream', 'none: a persistent launcher has a stream of its own');
    }
    if (this.#failure !== undefined) throw this.#failure;
    this.#device.context.enter();
    if (run.waits) this.#flags.begin(run);
    this.#firstSlots[ticket] = firstSlot;
    this.#blocks[ticket] = blocks;
    this.#firstPosts[ticket] = this.#posted + 1;
    if (performance.now() - this.#startedAt > this.#stayMs) this.#handOver();
    this.#posted += blocks;
    // ORDER: descriptors before the counter, the counter before the state is read; the kernel does the reverse.
    Atomics.store(this.#control, controlAt.posted, this.#posted | 0);
    if (this.#stateWhenDecided() !== persistentStates.left) return;
    try {
      this.#start();
    } catch (error) {
      // No kernel runs that could have seen the post.
      this.#posted -= blocks;
      Atomics.store(this.#control, controlAt.posted, this.#posted | 0);
      throw error;
    }
  }

  isDone(ticket: number): boolean {
    const { slots } = this.#config;
    const first = this.#firstSlots[ticket]!;
    for (let block = 0; block < this.#blocks[ticket]!; block++) {
      const post = (this.#firstPosts[ticket]! + block) | 0;
      if (Atomics.load(this.#done, (first + block) % slots) !== post) return false;
    }
    return true;
  }

  failureOf(firstSlot: number, blocks: number): WeftlineError | undefined {
    return this.#flags.failureOf(firstSlot, blocks);
  }

  pollUntil(ready: () => boolean, options: PollOptions): Promise<void> {
    let looks = 0;
    const look = (): boolean => {
      if (ready()) return true;
      looks += 1;
      // A kernel that failed leaves nothing in its words; the driver knows.
      if (looks % LOOKS_PER_QUESTION === 0) this.#stream.isIdle();
      return false;
    };
    return pollUntil(look, options);
  }

  /** A kernel that stays measures no single launch. */
  microsecondsOf(): number {
    return 0;
  }

  async close(beforeRelease?: () => void): Promise<void> {
    Atomics.store(this.#control, controlAt.mustStop, 1);
    const { context } = this.#device;
    if (context.lost === undefined && !context.disposed) {
      const { timeoutMs, slots } = this.#config;
      const drain = { timeoutMs: Math.min(2 ** 31 - 1, timeoutMs * (slots + 1) + DECISION_MS) };
      await this.#stream.drained(drain);
    }
    beforeRelease?.();
    this.#stream[Symbol.dispose]();
    this.#shared.dispose();
    this.#flags[Symbol.dispose]();
    this.#controlMemory[Symbol.dispose]();
    this.#ring[Symbol.dispose]();
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

  /**
   * A kernel that runs takes no more posts: one behind it takes what follows, so that all that was posted so far is done when
   * the kernel that runs has ended, and the stream knows.
   */
  #handOver(): void {
    const [old, next] = [this.#control, this.#otherControl];
    const isLeft = (control: Int32Array): boolean => Atomics.load(control, controlAt.state) === persistentStates.left;
    // One that has left is started again by the post; and one that has not begun has not stayed long.
    if (isLeft(old) || !isLeft(next)) return;
    Atomics.store(next, controlAt.posted, this.#posted | 0);
    Atomics.store(next, controlAt.taken, this.#posted | 0);
    Atomics.store(next, controlAt.mustStop, 0);
    this.#control = next;
    this.#otherControl = old;
    try {
      this.#start();
    } catch (error) {
      this.#control = old;
      this.#otherControl = next;
      throw error;
    }
    Atomics.store(old, controlAt.mustStop, 1);
  }

  /** Behind the kernel that left, in the order of the stream. */
  #start(): void {
    const { slots } = this.#config;
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
