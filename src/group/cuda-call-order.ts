// On which stream each call of a buffer runs: one after another, whatever else the device does meanwhile.
import { type CallWait, remaining } from '../core/deadline.ts';
import { invalidArgument } from '../core/errors.ts';
import type { CudaDevice } from '../device/cuda/cuda-device.ts';
import { CudaEvent } from '../device/cuda/cuda-event.ts';
import type { CudaStream } from '../device/cuda/cuda-stream.ts';
import type { OverlapOptions } from './overlap.ts';

export class CudaCallOrder implements Disposable {
  readonly #device: CudaDevice;
  /** Made by the first call that overlaps others. */
  #own: CudaStream | undefined;
  /** The end of the last call, once calls may run on two streams. */
  #lastEnd: CudaEvent | undefined;
  #lastStream: CudaStream;
  #marked: CudaEvent | undefined;
  /** What comes before and after a recording. */
  #outside: { readonly lastStream: CudaStream; readonly lastEnd: CudaEvent | undefined } | undefined;

  constructor(device: CudaDevice) {
    this.#device = device;
    this.#lastStream = device.stream;
  }

  /**
   * The stream for the next call. Without options it is the device's: what the caller enqueued before comes first, and
   * what comes later waits, at no cost. Fails with WL_INVALID_ARGUMENT for an event that is not a live one of CUDA.
   */
  begin(options: OverlapOptions): CudaStream {
    const { previousEvent } = options;
    const { stream } = this.#device;
    const overlaps = previousEvent !== undefined || options.asyncFinish === true;
    if (previousEvent !== undefined) requireEvent(previousEvent);
    const next = overlaps ? this.#overlapping() : stream;
    if (overlaps) next.waitFor((previousEvent as CudaEvent | undefined) ?? this.#mark(stream));
    if (next !== this.#lastStream) next.waitFor(this.#lastEnd ?? this.#mark(this.#lastStream));
    this.#lastStream = next;
    return next;
  }

  /** The same for a call that the caller puts on a stream of its own. */
  beginOn(stream: CudaStream): void {
    if (stream !== this.#lastStream) stream.waitFor(this.#lastEnd ?? this.#mark(this.#lastStream));
    this.#lastStream = stream;
  }

  /** After the call was enqueued: the event of a call with asyncFinish; otherwise the device's stream waits for it. */
  end({ asyncFinish = false }: OverlapOptions): CudaEvent | undefined {
    const { stream } = this.#device;
    if (this.#own === undefined && this.#lastStream === stream && this.#lastEnd === undefined) return undefined;
    this.#lastEnd ??= this.#device.createEvent();
    this.#lastEnd.record(this.#lastStream);
    if (asyncFinish) return this.#device.createEvent().record(this.#lastStream);
    if (this.#lastStream !== stream) stream.waitFor(this.#lastEnd);
    return undefined;
  }

  /** Calls that are recorded in a graph follow each other alone: what runs before is the launch's business. */
  beginRecording(): void {
    this.#outside = { lastStream: this.#lastStream, lastEnd: this.#lastEnd };
    this.#lastStream = this.#device.stream;
    this.#lastEnd = undefined;
  }

  endRecording(): void {
    if (this.#outside === undefined) return;
    this.#lastEnd?.[Symbol.dispose]();
    ({ lastStream: this.#lastStream, lastEnd: this.#lastEnd } = this.#outside);
    this.#outside = undefined;
  }

  /** Resolves when the calls so far are done. */
  async idle(wait: CallWait = {}): Promise<void> {
    await this.#device.stream.idle(remaining(wait));
    await this.#own?.idle(remaining(wait));
  }

  /** Resolves when nothing of the calls runs any more, whatever became of them; the device may be lost. */
  async drained(): Promise<void> {
    for (const stream of [this.#device.stream, this.#own]) await stream?.drained().catch(() => {});
  }

  /** After drained(). */
  [Symbol.dispose](): void {
    this.#lastEnd?.[Symbol.dispose]();
    this.#marked?.[Symbol.dispose]();
    this.#own?.[Symbol.dispose]();
  }

  #overlapping(): CudaStream {
    this.#own ??= this.#device.createStream({ priority: 'high' });
    return this.#own;
  }

  /** The end of what is enqueued on a stream now. A stream that waits for an earlier mark still waits for that one. */
  #mark(stream: CudaStream): CudaEvent {
    this.#marked ??= this.#device.createEvent();
    return this.#marked.record(stream);
  }
}

function requireEvent(event: unknown): void {
  if (event instanceof CudaEvent && !event.disposed) return;
  throw invalidArgument('previousEvent', event, 'a live event of device.createEvent(), or of an earlier call');
}
