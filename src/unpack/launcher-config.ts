// The configuration of a launcher: names, defaults and ranges.
import { MAX_RING_SLOTS } from '../abi/unpack.ts';
import { checkOptions, checkRules, flag, type OptionNames, optional, type OptionRules } from '../core/check-options.ts';
import { checkTimeout } from '../core/deadline.ts';
import { invalidArgument, type WeftlineError } from '../core/errors.ts';
import { CudaStream } from '../device/cuda/cuda-stream.ts';
import type { PollOptions } from '../device/cuda/cuda-event.ts';
import type { HostAccess } from '../device/tensor.ts';
import { readSettings } from '../settings/settings.ts';

/** How a launcher works. What concerns kernels is ignored on the CPU device, where a launch is done when it returns. */
export interface LauncherConfig {
  /** The stream of launches that are not told otherwise; that of the device by default. */
  readonly stream?: CudaStream;
  /** Measure each launch, for profile(); false by default, as it costs two timed events per launch. */
  readonly profiling?: boolean;
  /**
   * The kernel that moves several fragments per warp at a time. `auto`, the default, takes it where fragments have 1 KiB or
   * less on average.
   */
  readonly smallKernel?: boolean | 'auto';
  /** Memory for the descriptors that kernels read. */
  readonly pool?: {
    /** Blocks that may be under way at a time; 16 by default, at most 1024. Each takes 64 KiB, on GPUs of pinned memory. */
    readonly slots?: number;
    /**
     * `mapped`: kernels read pinned memory of the host; `copied`: each launch first copies its blocks into device memory.
     * `mapped` by default.
     */
    readonly memory?: 'mapped' | 'copied';
  };
  /** Thread blocks of a launch, each of which takes a multiprocessor; 16 by default, at most all of the GPU. */
  readonly numSms?: number;
  /**
   * A kernel that stays on its multiprocessors and takes blocks from mapped memory, on a stream of its own: a launch calls no
   * driver. What a launch reads must be visible to the GPU before, and calls that wait for the whole GPU, such as freeing
   * memory, wait until it leaves. Each block waits for its ready flag by itself. Launches under way together may not write the
   * same bytes. false by default.
   */
  readonly persistent?: boolean;
  /** The kernel that stays leaves when nothing was launched for so long, and comes back with the next launch; 20 by default. */
  readonly idleMs?: number;
  /** How long kernels wait for ready flags, and wait() for launches; the setting `timeoutMs` by default. */
  readonly timeoutMs?: number;
}

type DescriptorPool = NonNullable<LauncherConfig['pool']>;

const configRules: OptionRules<LauncherConfig> = {
  stream: true,
  profiling: optional(flag),
  smallKernel: true,
  pool: true,
  numSms: true,
  persistent: optional(flag),
  idleMs: true,
  timeoutMs: true,
};
const poolNames: OptionNames<DescriptorPool> = { slots: true, memory: true };

const DEFAULT_SLOTS = 16;
const DEFAULT_SMS = 16;
const DEFAULT_IDLE_MS = 20;
const MAX_IDLE_MS = 10_000;

/** The same with every default. */
export interface CheckedConfig {
  readonly stream: CudaStream | undefined;
  readonly profiling: boolean;
  readonly smallKernel: boolean | 'auto';
  readonly slots: number;
  readonly memory: 'mapped' | 'copied';
  readonly numSms: number;
  readonly persistent: boolean;
  readonly idleMs: number;
  readonly timeoutMs: number;
}

/** Fails with WL_INVALID_ARGUMENT. */
export function checkConfig(config: LauncherConfig, multiprocessors: number): CheckedConfig {
  checkRules(config, configRules, 'configuration of a launcher');
  const { smallKernel = 'auto', profiling = false } = config;
  if (smallKernel !== 'auto' && typeof smallKernel !== 'boolean') {
    throw invalidArgument('smallKernel', smallKernel, 'true, false or auto');
  }
  const numSms = config.numSms ?? Math.min(DEFAULT_SMS, multiprocessors);
  if (!(Number.isInteger(numSms) && numSms >= 1 && numSms <= multiprocessors)) {
    throw invalidArgument(
      'numSms',
      numSms,
      `a whole number from 1 to ${multiprocessors}, the multiprocessors of this GPU`,
    );
  }
  if (config.stream !== undefined) checkStream(config.stream);
  const timeoutMs = checkTimeout(config.timeoutMs ?? readSettings().timeoutMs);
  return {
    stream: config.stream,
    profiling,
    smallKernel,
    ...checkPool(config.pool),
    ...checkPersistent(config),
    numSms,
    timeoutMs,
  };
}

/** Fails with WL_INVALID_ARGUMENT for what is no stream, or one that was closed. */
export function checkStream(stream: CudaStream): void {
  if (!(stream instanceof CudaStream)) throw invalidArgument('stream', stream, 'a stream that a CudaDevice made');
  if (stream.disposed) throw invalidArgument('stream', 'a stream that was closed', 'one that was not');
}

function checkPersistent({ persistent = false, idleMs = DEFAULT_IDLE_MS, stream }: LauncherConfig): {
  readonly persistent: boolean;
  readonly idleMs: number;
} {
  if (persistent && stream !== undefined) {
    throw invalidArgument('stream', 'a stream', 'none: a persistent launcher has a stream of its own');
  }
  if (!(typeof idleMs === 'number' && idleMs > 0 && idleMs <= MAX_IDLE_MS)) {
    throw invalidArgument('idleMs', idleMs, `more than 0 and at most ${MAX_IDLE_MS}`);
  }
  return { persistent, idleMs };
}

function checkPool(pool: DescriptorPool = {}): Required<DescriptorPool> {
  checkOptions(pool, poolNames, 'pool of a launcher');
  const { slots = DEFAULT_SLOTS, memory = 'mapped' } = pool;
  if (!(Number.isInteger(slots) && slots >= 1 && slots <= MAX_RING_SLOTS)) {
    throw invalidArgument('pool.slots', slots, `a whole number from 1 to ${MAX_RING_SLOTS}`);
  }
  if (memory !== 'mapped' && memory !== 'copied') throw invalidArgument('pool.memory', memory, 'mapped or copied');
  return { slots, memory };
}

// What a launcher asks of a device: slots to write descriptors into, and work that moves what slots say.

/** Slots of one launch, in the order of the ring, and what is known of them. A launcher has one and changes it. */
export interface FragmentRun {
  /** Number of the engine's ticket: 0 to slots - 1. */
  ticket: number;
  firstSlot: number;
  blocks: number;
  /** Descriptors of the fullest slot. */
  mostDescriptors: number;
  /** Several fragments per warp. */
  isSmall: boolean;
  /** A block has a ready flag. */
  waits: boolean;
}

export interface FragmentEngine {
  /** Warps that want work: long fragments are cut for them. 0 if they need not be cut. */
  readonly warps: number;
  /** Whether kernels find the memory of tensors of that device at their addresses. */
  reaches(device: HostAccess): boolean;
  /** Header and descriptors of a slot. */
  slotWords(slot: number): Uint32Array;
  /**
   * Before slots are written for a launch, which may be on this stream. Fails with WL_CLOSED when the device was closed, with
   * WL_INVALID_ARGUMENT for a stream that cannot be used, and with WL_CUDA.
   */
  requireOpen(stream?: CudaStream): void;
  /** Begins to move what the slots say, in the order of the stream. Fails with WL_CUDA; on the CPU device with WL_INVALID_ARGUMENT. */
  submit(run: Readonly<FragmentRun>, stream?: CudaStream): void;
  /** True when the run of the ticket has ended, in whatever way. Fails with WL_CUDA, and WL_CLOSED as requireOpen(). */
  isDone(ticket: number): boolean;
  /** WL_TIMEOUT if a run with ready flags that has ended did not find one of them. */
  failureOf(firstSlot: number, blocks: number): WeftlineError | undefined;
  /** Fails with what `ready` throws or with the device's own failure. */
  pollUntil(ready: () => boolean, options: PollOptions): Promise<void>;
  /** What the device took for a run that is done; only with profiling. */
  microsecondsOf(ticket: number): number;
  /** Waits for what is under way, calls `beforeRelease`, and gives back all that was made. */
  close(beforeRelease?: () => void): Promise<void>;
}
