// Numbers of combines: how many there were, or, where ranks come and go, such as follow from the number of the dispatch before.
import { LOW_LATENCY_CALLS, LOW_LATENCY_RESULTS } from '../../../abi/low-latency.ts';
import { WeftlineError } from '../../../core/errors.ts';

/** Numbers of combines from one dispatch to the next, of elastic objects. Few, so that numbers do not wrap in between. */
export const COMBINES_PER_DISPATCH = 16;

/** A combine, and the dispatch whose handle it has. */
interface NumberedCombine {
  /** 0: none. */
  readonly number: number;
  readonly dispatch: number;
}

export class CombineNumbers {
  readonly #isElastic: boolean;
  #count = 0;
  #dispatch = 0;
  /** Combines that were begun since that dispatch. */
  #since = 0;
  /** By count. */
  readonly #numbers = new Float64Array(LOW_LATENCY_CALLS);
  /** By parity of the dispatch: the last one whose rows lay in that memory. */
  #last = noCombines();

  /** A rank that has joined knows only the combines since a dispatch: `isElastic` numbers go by those. */
  constructor(isElastic: boolean) {
    this.#isElastic = isElastic;
  }

  /** Combines that were begun here. */
  get count(): number {
    return this.#count;
  }

  beginDispatch(dispatch: number): void {
    this.#dispatch = dispatch;
    this.#since = 0;
  }

  /** Of a combine that begins now. Fails with WL_CAPACITY. */
  next(): { readonly number: number; readonly count: number } {
    if (this.#isElastic && this.#since === COMBINES_PER_DISPATCH - 1) {
      const message = `An elastic EpLowLatency takes at most ${COMBINES_PER_DISPATCH - 1} combines from one dispatch to the next`;
      throw new WeftlineError('WL_CAPACITY', message, { details: { combines: this.#since } });
    }
    this.#count += 1;
    this.#since += 1;
    const number = this.#isElastic ? this.#dispatch * COMBINES_PER_DISPATCH + this.#since : this.#count;
    this.#numbers[this.#count % LOW_LATENCY_CALLS] = number;
    return { number, count: this.#count };
  }

  /** Of one of the last combines. */
  numberOf(count: number): number {
    return this.#numbers[count % LOW_LATENCY_CALLS]!;
  }

  /** That combine has rows in the memory of the dispatch's result. */
  use(dispatch: number, number: number): void {
    this.#last[dispatch % LOW_LATENCY_RESULTS] = { number, dispatch };
  }

  /** The last combine whose rows lay in the memory of that dispatch's result. */
  before(dispatch: number): NumberedCombine {
    return this.#last[dispatch % LOW_LATENCY_RESULTS]!;
  }

  /** This rank takes part again: what it waited for is of the past. */
  beginAnew(): void {
    this.#last = noCombines();
  }
}

function noCombines(): NumberedCombine[] {
  return Array.from({ length: LOW_LATENCY_RESULTS }, () => ({ number: 0, dispatch: 0 }));
}
