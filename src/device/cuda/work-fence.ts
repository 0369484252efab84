// Tells when everything that was enqueued on any stream of a device up to some moment is done.
import type { CudaContext } from './cuda-context.ts';
import { CudaEvent } from './cuda-event.ts';
import type { CudaStream } from './cuda-stream.ts';

export interface Fence {
  isPassed(): boolean;
}

export class WorkFences {
  readonly #context: CudaContext;
  readonly #streams: ReadonlySet<CudaStream>;
  readonly #idleEvents: CudaEvent[] = [];
  #latest: StreamFence | undefined;
  #latestWork = -1;

  constructor(context: CudaContext, streams: ReadonlySet<CudaStream>) {
    this.#context = context;
    this.#streams = streams;
  }

  /** A fence after all work enqueued so far; the same one until more work follows. */
  now(): Fence {
    if (this.#latest !== undefined && this.#latestWork === this.#context.workCount) return this.#latest;
    const events: CudaEvent[] = [];
    for (const stream of this.#streams) {
      const event = this.#idleEvents.pop() ?? new CudaEvent(this.#context, { timing: false, timeoutMs: 0 });
      events.push(event.record(stream));
    }
    this.#latest = new StreamFence(events, this.#idleEvents);
    this.#latestWork = this.#context.workCount;
    return this.#latest;
  }
}

class StreamFence implements Fence {
  readonly #events: CudaEvent[];
  readonly #idleEvents: CudaEvent[];

  constructor(events: CudaEvent[], idleEvents: CudaEvent[]) {
    this.#events = events;
    this.#idleEvents = idleEvents;
  }

  isPassed(): boolean {
    for (let last = this.#events.at(-1); last !== undefined; last = this.#events.at(-1)) {
      if (!last.isDone()) return false;
      this.#events.pop();
      this.#idleEvents.push(last);
    }
    return true;
  }
}
