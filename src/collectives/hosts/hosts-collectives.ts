// Collectives of CUDA ranks of several hosts: the steps of CPU ranks, of which a GPU does what moves or adds up bytes. Ranks
// of a host read each other's slots in GPU memory; what goes to other hosts is copied to the window of CPU ranks on the way.
import type { CudaCallOrder } from '../../group/cuda-call-order.ts';
import type { OverlapOptions } from '../../group/overlap.ts';
import type { CallWait } from '../../core/deadline.ts';
import { WeftlineError } from '../../core/errors.ts';
import type { CudaDevice } from '../../device/cuda/cuda-device.ts';
import type { DeviceEvent } from '../../device/device.ts';
import type { CudaWindow } from '../../windows/cuda-window.ts';
import type { CollectiveCall } from '../collective-call.ts';
import type { CollectiveEngine, PairMessage, Route } from '../collective-engine.ts';
import type { CpuCollectives } from '../cpu/cpu-collectives.ts';
import type { StreamMover } from './stream-mover.ts';

/** What an engine is made of, and owns. */
export interface HostsCollectivesParts {
  readonly device: CudaDevice;
  /** Carries out the steps. Owns the mover, and the window of the host. */
  readonly steps: CpuCollectives;
  readonly mover: StreamMover;
  readonly order: CudaCallOrder;
  /** Slots and channels between ranks of this host. */
  readonly slots: CudaWindow;
}

export class HostsCollectives implements CollectiveEngine {
  readonly ordersCalls = true;
  lastEvent: DeviceEvent | undefined;
  readonly #parts: HostsCollectivesParts;

  constructor(parts: HostsCollectivesParts) {
    this.#parts = parts;
  }

  get routes(): readonly Route[] {
    return this.#parts.steps.routes;
  }

  throwIfUnusable(): void {
    if (this.#parts.device.context.disposed)
      throw new WeftlineError('WL_CLOSED', 'The device of this object was closed');
    this.#parts.steps.throwIfUnusable();
  }

  run(call: CollectiveCall, options: CallWait & OverlapOptions): Promise<void> | undefined {
    return this.#inOrder(options, () => this.#parts.steps.run(call, options));
  }

  exchange(messages: readonly PairMessage[], options: CallWait & OverlapOptions): Promise<void> | undefined {
    return this.#inOrder(options, () => this.#parts.steps.exchange(messages, options));
  }

  /** Slots lie in memory that is mapped already. */
  register(): Promise<void> {
    return Promise.resolve();
  }

  async close(): Promise<void> {
    const { steps, order, slots } = this.#parts;
    // What still runs uses the windows of this rank and of others.
    await order.drained();
    try {
      await steps.close();
    } finally {
      order[Symbol.dispose]();
      slots[Symbol.dispose]();
    }
  }

  /** What follows on the device's stream comes after the call's last work there, whatever became of it. */
  #inOrder(options: OverlapOptions, begin: () => Promise<void> | undefined): Promise<void> | undefined {
    const { device, mover, order } = this.#parts;
    device.context.refuseCapture('a call of a Communicator of several hosts, whose steps the host makes,');
    mover.stream = order.begin(options);
    const leave = device.context.beginHostCall('a call of a Communicator of several hosts');
    const end = (): void => {
      leave();
      this.lastEvent = order.end(options);
    };
    let rest: Promise<void> | undefined;
    try {
      rest = begin();
    } catch (error) {
      end();
      throw error;
    }
    if (rest !== undefined) return rest.finally(end);
    end();
    return undefined;
  }
}
