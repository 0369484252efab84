// Moves fragments on a GPU by one kernel per launch. Hot path: what a launch needs is made once.
import {
  blockHeaderWord,
  descriptorBlockHeader,
  fragmentDescriptor,
  type moveFragmentsArguments,
  RING_SLOT_BYTES,
} from '../../abi/unpack.ts';
import { invalidArgument } from '../../core/errors.ts';
import type { CudaDevice } from '../../device/cuda/cuda-device.ts';
import { type CudaEvent, type PollOptions, pollUntil } from '../../device/cuda/cuda-event.ts';
import type { CudaStream } from '../../device/cuda/cuda-stream.ts';
import type { LaunchPlan } from '../../device/cuda/kernel.ts';
import type { Tensor } from '../../device/tensor.ts';
import { type CheckedConfig, checkStream, type FragmentEngine, type FragmentRun } from '../launcher-config.ts';
import { GpuRing } from './gpu-ring.ts';
import type { Direction } from '../ring-writer.ts';
import { kernelFiles } from '../../device/cuda/kernel-files.ts';

export type WarpsPerSm = 16 | 32;

/** Where many multiprocessors ask for descriptors over the host's link, fewer warps that ask for more at a time are faster. */
const MANY_SMS = 64;
const MAX_GROUP_DESCRIPTORS = 32;

type MovePlan = LaunchPlan<keyof typeof moveFragmentsArguments.offset>;

interface Plans {
  readonly small: MovePlan;
  readonly large: MovePlan;
  readonly warpsPerSm: number;
}

/** What marks a launch: its end, and with profiling its beginning. */
interface Marks {
  readonly begin: CudaEvent | undefined;
  readonly end: CudaEvent;
}

export class LaunchedFragments extends GpuRing implements FragmentEngine {
  readonly warps: number;
  readonly #warpsPerSm: number;
  readonly #small: MovePlan;
  readonly #large: MovePlan;
  /** Copies of the blocks, where kernels read them if they are copied. */
  readonly #copy: Tensor | undefined;
  readonly #marks: readonly Marks[];
  /** CUstreams on which kernels have waited for ready flags. */
  readonly #waitingStreams = new Set<number>();
  readonly #stopJudging: () => void;

  /** Compiles the kernels unless they are in a cache. Fails with WL_COMPILE, WL_UNSUPPORTED, WL_MEMORY or WL_CUDA. */
  static async create(
    device: CudaDevice,
    config: CheckedConfig,
    direction: Direction,
    warpsPerSm: WarpsPerSm = config.numSms < MANY_SMS ? 32 : 16,
  ): Promise<LaunchedFragments> {
    const kernels = await device.loadKernels(kernelFiles.unpack, { WARPS: warpsPerSm });
    const { unpackSmall, unpackLarge, packSmall, packLarge } = kernels;
    const shape = { grid: 1, block: 32 * warpsPerSm };
    const [small, large] = direction === 'unpack' ? [unpackSmall, unpackLarge] : [packSmall, packLarge];
    return new LaunchedFragments(device, config, { small: small.plan(shape), large: large.plan(shape), warpsPerSm });
  }

  private constructor(device: CudaDevice, config: CheckedConfig, { small, large, warpsPerSm }: Plans) {
    super(device, config, () => undefined);
    const { slots, numSms, memory, profiling, timeoutMs } = config;
    this.#warpsPerSm = warpsPerSm;
    this.warps = numSms * warpsPerSm;
    this.#small = small;
    this.#large = large;
    this.#copy = memory === 'copied' ? device.empty('u8', [slots * RING_SLOT_BYTES]) : undefined;
    this.#marks = Array.from({ length: slots }, () => ({
      begin: profiling ? device.createEvent({ timing: true }) : undefined,
      end: device.createEvent({ timing: profiling }),
    }));
    // Whoever waits for what lies behind a launch learns that it was not moved; others have nothing to do with it.
    this.#stopJudging = device.context.judgeWaits((isDone, stream) => {
      if (isDone && stream !== undefined && this.#waitingStreams.has(stream)) this.flags.throwIfExpired();
    });
    for (const { arguments: set } of [small, large]) {
      set.set('ring', this.#copy?.address ?? this.ring.deviceAddress);
      set.set('slots', slots);
      set.set('trap', this.flags.trap);
      set.set('missed', this.flags.missed);
      set.set('timeoutNs', timeoutMs * 1e6);
    }
    this.stay();
  }

  requireOpen(stream: CudaStream = this.config.stream ?? this.device.stream): void {
    this.device.context.enter();
    checkStream(stream);
    if (stream.context === this.device.context) return;
    const { ordinal } = this.device.context;
    throw invalidArgument('stream', `a stream of GPU ${stream.context.ordinal}`, `one of GPU ${ordinal}`);
  }

  submit(run: Readonly<FragmentRun>, stream: CudaStream = this.config.stream ?? this.device.stream): void {
    const { ticket, firstSlot, blocks, mostDescriptors } = run;
    if (run.waits) {
      this.flags.begin(run);
      this.#waitingStreams.add(stream.handle);
    }
    const { begin, end } = this.#marks[ticket]!;
    begin?.record(stream);
    if (this.#copy !== undefined) this.#copyBlocks(this.#copy, run, stream);
    const { warps } = this;
    const group = Math.min(MAX_GROUP_DESCRIPTORS, Math.max(1, Math.ceil((mostDescriptors * blocks) / warps)));
    const groupsPerBlock = Math.max(1, Math.ceil(mostDescriptors / group));
    const plan = run.isSmall ? this.#small : this.#large;
    const set = plan.arguments;
    set.set('firstSlot', firstSlot);
    set.set('blocks', blocks);
    set.set('groupDescriptors', group);
    set.set('groupsPerBlock', groupsPerBlock);
    set.set('waits', run.waits ? 1 : 0);
    plan.setGrid(Math.min(this.config.numSms, Math.ceil((groupsPerBlock * blocks) / this.#warpsPerSm)));
    plan.launch(stream);
    end.record(stream);
  }

  isDone(ticket: number): boolean {
    return this.#marks[ticket]!.end.isDone();
  }

  pollUntil(ready: () => boolean, options: PollOptions): Promise<void> {
    return pollUntil(() => this.device.context.isGood(ready()), options);
  }

  microsecondsOf(ticket: number): number {
    const { begin, end } = this.#marks[ticket]!;
    return begin === undefined ? 0 : end.millisecondsSince(begin) * 1000;
  }

  async close(beforeRelease?: () => void): Promise<void> {
    this.#stopJudging();
    const events = this.#marks.flatMap(({ begin, end }) => (begin === undefined ? [end] : [begin, end]));
    const parts = this.#copy === undefined ? events : [...events, this.#copy];
    await this.end(() => this.#marks.every(({ end }) => end.isDone()), beforeRelease, parts);
  }

  /** Headers and as many descriptors as there are. */
  #copyBlocks(copy: Tensor, { firstSlot, blocks }: Readonly<FragmentRun>, stream: CudaStream): void {
    const { context } = this.device;
    for (let block = 0; block < blocks; block++) {
      const slot = (firstSlot + block) % this.config.slots;
      const count = this.slots[slot]![blockHeaderWord.count]!;
      const bytes = descriptorBlockHeader.size + count * fragmentDescriptor.size;
      const at = slot * RING_SLOT_BYTES;
      context.enter();
      const status = context.driver.cuMemcpyHtoDAsync(
        copy.address + at,
        this.ring.hostAddress + at,
        bytes,
        stream.handle,
      );
      if (status !== 0) context.check('cuMemcpyHtoDAsync', status, `${bytes} bytes of descriptors`);
    }
    context.workCount += 1;
  }
}
