// The calls of a collective object that a CUDA graph repeats. Its kernels count epochs and dispatches on by themselves; at each
// launch the host counts with them, so that direct calls may follow.
import type { CudaStream } from '../device/cuda/cuda-stream.ts';
import type { RecordedCalls } from '../device/cuda/cuda-graph.ts';
import type { CudaCallOrder } from './cuda-call-order.ts';

/** What an object's engine has to do with recordings. */
export interface RecordingOf {
  readonly order: CudaCallOrder;
  /** At the first call of a recording. What it returns fails at a launch if its calls cannot be made then. */
  readonly begin: () => () => void;
}

/** What counts the calls of an object. */
interface CallCounts {
  throwIfUnusable(): void;
  countLaunch(used: { readonly epochs: number; readonly dispatches: number }): void;
}

export class RecordedCollective implements RecordedCalls {
  /** Barriers that the recorded kernels come to, and their dispatches that count. */
  epochs = 0;
  dispatches = 0;
  readonly #calls: CallCounts;
  readonly #order: CudaCallOrder;
  readonly #requireReady: () => void;

  constructor(calls: CallCounts, { order, begin }: RecordingOf) {
    this.#calls = calls;
    this.#order = order;
    this.#requireReady = begin();
    order.beginRecording();
  }

  endRecording(): void {
    this.#order.endRecording();
  }

  requireReady(): void {
    this.#requireReady();
    this.#calls.throwIfUnusable();
  }

  beginLaunch(stream: CudaStream): void {
    this.#order.beginOn(stream);
  }

  endLaunch(): void {
    this.#calls.countLaunch(this);
    this.#order.end({});
  }
}
