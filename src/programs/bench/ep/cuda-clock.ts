// The clock of benches on GPUs: where the ranks meet on their devices, and how long enqueued work takes from there on.
import type { benchMeetArguments } from '../../../abi/bench.ts';
import { EP_SYNC_BYTES } from '../../../abi/ep.ts';
import type { Block, Layout } from '../../../abi/layout.ts';
import type { CudaDevice } from '../../../device/cuda/cuda-device.ts';
import type { CudaEvent } from '../../../device/cuda/cuda-event.ts';
import type { LaunchPlan } from '../../../device/cuda/kernel.ts';
import { callWord, describeCall } from '../../../group/calls.ts';
import { numberAfter } from '../../../group/cuda-calls.ts';
import { CudaWindow } from '../../../windows/cuda-window.ts';
import type { World } from '../../../world/index.ts';
import { monotonicMicroseconds } from '../harness.ts';
import { kernelFiles } from '../../../device/cuda/kernel-files.ts';

/** The names of a layout's fields. */
export type FieldOf<L> = L extends Layout<infer Name> ? Name : never;

/** What every kernel that meets has among its arguments. */
type MeetingFields = Block<'peers' | 'ranks' | 'rank' | 'trap' | 'timeoutNs' | 'call'>;

export class CudaMeeting implements Disposable {
  readonly world: World;
  readonly device: CudaDevice;
  readonly #window: CudaWindow;
  readonly #plan: LaunchPlan<FieldOf<typeof benchMeetArguments>>;
  #epoch = 0;

  /** Collective. Fails as CudaWindow.create() and device.loadKernels() do. */
  static async create(world: World, device: CudaDevice): Promise<CudaMeeting> {
    const { benchMeet } = await device.loadKernels(kernelFiles.bench);
    const window = await CudaWindow.create({ group: world, device, name: 'bench', bytes: EP_SYNC_BYTES });
    return new CudaMeeting({ world, device, window, plan: benchMeet.plan({ grid: 1, block: 32 }) });
  }

  private constructor(parts: {
    world: World;
    device: CudaDevice;
    window: CudaWindow;
    plan: LaunchPlan<FieldOf<typeof benchMeetArguments>>;
  }) {
    this.world = parts.world;
    this.device = parts.device;
    this.#window = parts.window;
    this.#plan = parts.plan;
    this.bind(parts.plan.arguments);
  }

  /** Sets what a kernel that meets needs to know of the ranks. */
  bind(fields: MeetingFields): void {
    const { world, device } = this;
    for (const [index, address] of this.#window.addresses.entries()) fields.set('peers', address, index);
    fields.set('ranks', world.size);
    fields.set('rank', world.rank);
    fields.set('trap', device.traps.address);
    fields.set('timeoutNs', Math.round(world.settings.timeoutMs * 1e6));
    fields.set('call', callWord({ kind: 'barrier' }, 'opening'));
  }

  /** For the next barrier; all ranks enqueue the same kernels in the same order. 0 is no epoch. */
  nextEpoch(): number {
    this.#epoch = numberAfter(this.#epoch);
    return this.#epoch;
  }

  /**
   * Enqueues a barrier between the devices and a pause behind it. What is enqueued within the pause starts on all of them
   * at nearly the same time, and without waiting for the host.
   */
  launch(pauseMicroseconds = 0): void {
    this.#plan.arguments.set('holdNs', Math.round(pauseMicroseconds * 1000));
    this.#plan.arguments.set('epoch', this.nextEpoch());
    this.#plan.launch();
  }

  /** Returns on all ranks within microseconds of each other, all that was enqueued before being done everywhere. */
  async together(): Promise<void> {
    this.launch();
    await this.device.stream.idle();
    this.throwIfExpired();
  }

  /** Fails with WL_TIMEOUT or WL_CONFIG_MISMATCH when a barrier did. */
  throwIfExpired(): void {
    this.device.traps.throwIfExpired(describeCall, this.world.ranks);
  }

  /** Nothing that meets here may be running on any rank. */
  [Symbol.dispose](): void {
    this.#window[Symbol.dispose]();
  }
}

/** Longer than a call takes to enqueue its kernels, also on slow hosts; shorter than a host polls before it yields. */
const PAUSE_MICROSECONDS = 120;

export class CudaStopwatch implements Disposable {
  readonly #meeting: CudaMeeting;
  readonly #begin: CudaEvent;
  readonly #end: CudaEvent;

  constructor(meeting: CudaMeeting) {
    const { device } = meeting;
    this.#meeting = meeting;
    this.#begin = device.createEvent({ timing: true });
    this.#end = device.createEvent({ timing: true });
  }

  /**
   * Collective. Microseconds on this device from the moment when all devices have come, with the call's kernels enqueued
   * by then; what the call itself waits for is in the time as far as the device idles meanwhile.
   */
  async onDevice(run: () => unknown): Promise<number> {
    const { stream } = this.#meeting.device;
    this.#meeting.launch(PAUSE_MICROSECONDS);
    this.#begin.record(stream);
    await run();
    this.#end.record(stream);
    await this.#end.wait();
    this.#meeting.throwIfExpired();
    return this.#end.millisecondsSince(this.#begin) * 1000;
  }

  /**
   * Collective. The same call from idle devices, as the host sees it: microseconds until it returned, and until its results
   * were ready and the host had noticed.
   */
  async onHost(run: () => unknown): Promise<{ readonly returned: number; readonly ready: number }> {
    await this.#meeting.together();
    const begin = monotonicMicroseconds();
    await run();
    const returned = monotonicMicroseconds() - begin;
    this.#end.record(this.#meeting.device.stream);
    await this.#end.wait();
    const ready = monotonicMicroseconds() - begin;
    this.#meeting.throwIfExpired();
    return { returned, ready };
  }

  [Symbol.dispose](): void {
    this.#begin[Symbol.dispose]();
    this.#end[Symbol.dispose]();
  }
}
