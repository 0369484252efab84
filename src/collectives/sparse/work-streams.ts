// The streams of a GPU on which sparse all-reduces work, one for each way: they follow the device's stream, which follows them.
import type { CudaDevice } from '../../device/cuda/cuda-device.ts';
import type { CudaEvent } from '../../device/cuda/cuda-event.ts';
import type { CudaStream } from '../../device/cuda/cuda-stream.ts';
import type { BlockWay, WorkMark } from './block-work.ts';
import type { SparseCall } from './sparse-call.ts';

class StreamMark implements WorkMark {
  readonly #event: CudaEvent;
  readonly #stream: CudaStream;

  constructor(event: CudaEvent, stream: CudaStream) {
    this.#event = event;
    this.#stream = stream;
  }

  record(): void {
    this.#event.record(this.#stream);
  }

  isDone(): boolean {
    return this.#event.isDone();
  }

  dispose(): void {
    this.#event[Symbol.dispose]();
  }
}

export class WorkStreams {
  readonly out: CudaStream;
  readonly in: CudaStream;
  readonly #device: CudaDevice;
  readonly #begun: CudaEvent;
  readonly #ended: CudaEvent;
  readonly #marks: StreamMark[] = [];

  constructor(device: CudaDevice) {
    this.#device = device;
    // Copies go before what the device computes meanwhile.
    this.out = device.createStream({ priority: 'high' });
    this.in = device.createStream({ priority: 'high' });
    this.#begun = device.createEvent();
    this.#ended = device.createEvent();
  }

  makeMark(way: BlockWay): WorkMark {
    const mark = new StreamMark(this.#device.createEvent(), this[way]);
    this.#marks.push(mark);
    return mark;
  }

  /** What is enqueued from now on follows all that the device's stream has to do now. */
  begin(): void {
    this.#begun.record(this.#device.stream);
    this.out.waitFor(this.#begun);
    this.in.waitFor(this.#begun);
  }

  /** Whatever the device's stream does next follows what was enqueued so far. */
  join(): void {
    const { stream } = this.#device;
    for (const one of [this.out, this.in]) {
      this.#ended.record(one);
      stream.waitFor(this.#ended);
    }
  }

  /** Resolves when nothing is under way any more. */
  async close(): Promise<void> {
    const { context } = this.#device;
    if (!context.disposed && context.lost === undefined) {
      await this.out.drained();
      await this.in.drained();
    }
    for (const mark of this.#marks) mark.dispose();
    for (const owned of [this.#begun, this.#ended, this.out, this.in]) owned[Symbol.dispose]();
  }
}

// The threshold as kernels of GPUs compare it: with the bits of a magnitude.

const word = new Uint32Array(1);
const value = new Float32Array(word.buffer);
const MAX_WORD = 2 ** 32 - 1;

/** f32 and bf16: bits of the threshold as f32, which order magnitudes as they are, and any NaN above. i32: an integer. */
export function markLimit(dtype: SparseCall['dtype'], threshold: number): number {
  if (dtype === 'i32') return Math.min(Math.floor(threshold), MAX_WORD);
  value[0] = threshold;
  return word[0]!;
}
