// How long enqueued work takes: on the device by events, and for the host that calls and waits.
import type { CudaEvent } from '../../../../device/cuda/cuda-event.ts';
import { monotonicMicroseconds } from '../../clock.ts';
import type { CudaMeeting } from './meeting.ts';

/** Longer than a call takes to enqueue its kernels, also on slow hosts; shorter than a host polls before it yields. */
const PAUSE_MICROSECONDS = 120;

export interface HostTime {
  /** Microseconds until the call returned. */
  readonly returned: number;
  /** Microseconds from the call until its results were ready and the host had noticed. */
  readonly ready: number;
}

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

  /** Collective. The same call from idle devices, as the host sees it. */
  async onHost(run: () => unknown): Promise<HostTime> {
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
