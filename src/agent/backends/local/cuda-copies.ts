// Copies to and from memory of GPUs: enqueued on a stream of their own, done when an event behind them is.
import type { CudaDevice } from '../../../device/cuda/cuda-device.ts';
import type { CudaEvent } from '../../../device/cuda/cuda-event.ts';
import type { CudaStream } from '../../../device/cuda/cuda-stream.ts';
import { WeftlineError } from '../../../core/errors.ts';
import type { CopyList } from './copy-list.ts';
import { type CopyPlan, INLINE_BYTES } from './copy-plan.ts';
import type { DeviceWork } from './device-work.ts';

export interface CudaCopiesOptions {
  readonly device: CudaDevice;
  readonly stream: CudaStream;
  readonly isRead: boolean;
  /** What the peer is told of it. */
  readonly work: DeviceWork;
}

/**
 * Copies begin when the transfer is posted; they do not wait for work of other streams: what is sent must lie there, as
 * for a copy by the host. Host memory that the driver does not know is copied by the host within `advance`.
 */
export class CudaCopies implements CopyPlan, Disposable {
  readonly bytes: number;
  readonly isShort: boolean;
  readonly #device: CudaDevice;
  readonly #stream: CudaStream;
  readonly #event: CudaEvent;
  readonly #work: DeviceWork;
  /** To, from, bytes. */
  readonly #copies: Float64Array;
  #isEnqueued = false;
  /** While the GPU may work on it. */
  #ticket: number | undefined;

  constructor(list: CopyList, { device, stream, isRead, work }: CudaCopiesOptions) {
    this.#work = work;
    this.#device = device;
    this.#stream = stream;
    this.#event = device.createEvent();
    this.bytes = list.totalBytes;
    this.isShort = this.bytes <= INLINE_BYTES;
    const to = isRead ? list.local : list.remote;
    const from = isRead ? list.remote : list.local;
    this.#copies = new Float64Array(list.count * 3);
    for (let at = 0; at < list.count; at++) {
      this.#copies[at * 3] = to[at]!;
      this.#copies[at * 3 + 1] = from[at]!;
      this.#copies[at * 3 + 2] = list.bytes[at]!;
    }
  }

  begin(): void {
    this.#isEnqueued = false;
  }

  advance(): boolean {
    if (!this.#isEnqueued) this.#enqueue();
    return this.#event.isDone() && this.isOver();
  }

  isOver(): boolean {
    if (this.#ticket === undefined) return true;
    try {
      if (!this.#event.isDone()) return false;
    } catch {
      // A device that has failed copies nothing more.
    }
    this.#work.end(this.#ticket);
    this.#ticket = undefined;
    return true;
  }

  async over(): Promise<void> {
    if (this.isOver()) return;
    try {
      await this.#event.wait();
    } catch (error) {
      if (error instanceof WeftlineError && error.code === 'WL_TIMEOUT') throw error;
    }
    this.isOver();
  }

  [Symbol.dispose](): void {
    this.#event[Symbol.dispose]();
  }

  #enqueue(): void {
    const { context } = this.#device;
    context.enter();
    context.workCount += 1;
    // Copies of an earlier post go before these on the stream: their end is that of these.
    this.#ticket ??= this.#work.begin();
    this.#isEnqueued = true;
    try {
      this.#enqueueAll();
    } finally {
      this.#event.record(this.#stream);
    }
  }

  #enqueueAll(): void {
    const { context } = this.#device;
    const copies = this.#copies;
    for (let at = 0; at < copies.length; at += 3) {
      const [to, from, bytes] = [copies[at], copies[at + 1], copies[at + 2]] as [number, number, number];
      context.check('cuMemcpyAsync', context.driver.cuMemcpyAsync(to, from, bytes, this.#stream.handle));
    }
  }
}
