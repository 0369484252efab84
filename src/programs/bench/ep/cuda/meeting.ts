// Where the ranks of a GPU bench meet on their devices: the cells of a window of its own, and the epochs of its barriers.
import type { benchMeetArguments } from '../../../../abi/bench-arguments.ts';
import { EP_SYNC_BYTES } from '../../../../abi/ep-arguments.ts';
import type { Block, Layout } from '../../../../abi/layout.ts';
import type { CudaDevice } from '../../../../device/cuda/cuda-device.ts';
import { benchKernels } from '../../../../device/cuda/kernels/bench.ts';
import type { LaunchPlan } from '../../../../device/cuda/launch-plan.ts';
import { callWord, describeCall } from '../../../../group/calls.ts';
import { numberAfter } from '../../../../group/cuda-calls.ts';
import { CudaWindow } from '../../../../windows/cuda-window.ts';
import type { World } from '../../../../world/index.ts';

/** The names of a layout's fields. */
export type FieldOf<L> = L extends Layout<infer Name> ? Name : never;

/** What every kernel that meets has among its arguments. */
type MeetingFields = Block<'peers' | 'ranks' | 'rank' | 'trap' | 'timeoutNs' | 'call'>;

type MeetPlan = LaunchPlan<FieldOf<typeof benchMeetArguments>>;

export class CudaMeeting implements Disposable {
  readonly world: World;
  readonly device: CudaDevice;
  readonly #window: CudaWindow;
  readonly #plan: MeetPlan;
  #epoch = 0;

  /** Collective. Fails as CudaWindow.create() and device.loadKernels() do. */
  static async create(world: World, device: CudaDevice): Promise<CudaMeeting> {
    const { benchMeet } = await device.loadKernels(benchKernels);
    const window = await CudaWindow.create({ group: world, device, name: 'bench', bytes: EP_SYNC_BYTES });
    return new CudaMeeting({ world, device, window, plan: benchMeet.plan({ grid: 1, block: 32 }) });
  }

  private constructor(parts: { world: World; device: CudaDevice; window: CudaWindow; plan: MeetPlan }) {
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
