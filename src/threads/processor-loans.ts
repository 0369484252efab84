// Lending the processor between two looks of a thread that polls: each time where others run meanwhile, seldom elsewhere.
import { yieldProcessor } from '../native/libc.ts';

/** A loan that is over sooner let nobody run: it is a system call for nothing, during which nobody looks. */
const SHORTEST_USE_MS = 0.0015;
/** After so many of those, the processor is offered only once in so many looks. */
const LOANS_IN_VAIN = 64;
const LOOKS_PER_LOAN = 16;

export class ProcessorLoans {
  #inVain = 0;
  #looks = 0;

  /** Hot path. To be called between looks at the time `now`, in milliseconds; returns the time afterwards. */
  lend(now: number): number {
    if (this.#inVain >= LOANS_IN_VAIN) {
      this.#looks += 1;
      if (this.#looks % LOOKS_PER_LOAN !== 0) return now;
    }
    yieldProcessor();
    const after = performance.now();
    this.#inVain = after - now < SHORTEST_USE_MS ? this.#inVain + 1 : 0;
    return after;
  }
}
