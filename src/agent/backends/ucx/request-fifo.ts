// Requests that UCX has not finished, in the order of posting. Hot path: no allocation.
import { ucsStatus } from '../../../abi/ucx-structs.ts';
import type { UcxWorker } from './ucx-worker.ts';

export class RequestFifo {
  /** Requests pushed, and taken out, so far. */
  pushed = 0;
  popped = 0;
  readonly capacity: number;
  readonly #worker: UcxWorker;
  readonly #requests: Float64Array;
  readonly #tags: Float64Array;

  constructor(worker: UcxWorker, capacity: number) {
    this.#worker = worker;
    this.capacity = capacity;
    this.#requests = new Float64Array(capacity);
    this.#tags = new Float64Array(capacity);
  }

  get room(): number {
    return this.capacity - (this.pushed - this.popped);
  }

  /** Where the next one goes: a number below the capacity that no pending one has. */
  get place(): number {
    return this.pushed % this.capacity;
  }

  /** `request` 0 is one that has ended already. The caller has looked at `room`. */
  push(request: number, tag: number): void {
    const { place } = this;
    this.#requests[place] = request;
    this.#tags[place] = tag;
    this.pushed += 1;
  }

  /** Takes out the oldest if it has ended: its status, else `ucsStatus.inProgress`. Its tag is then `tag`. */
  pop(): number {
    if (this.popped === this.pushed) return ucsStatus.inProgress;
    const place = this.popped % this.capacity;
    const request = this.#requests[place] as number;
    const status = request === 0 ? ucsStatus.ok : this.#worker.check(request);
    if (status === ucsStatus.inProgress) return status;
    this.tag = this.#tags[place] as number;
    this.popped += 1;
    return status;
  }

  /** Of the one that `pop` took out last. */
  tag = 0;
}
