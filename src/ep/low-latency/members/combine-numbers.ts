// Numbers of combines: how many there were, or, where ranks come and go, such as follow from the number of their dispatch.
import { LOW_LATENCY_RESULTS } from '../../../abi/low-latency.ts';
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
  #dispatch = 0;
  /** Of the combine that was begun last. */
  #number = 0;
  /** By parity of the dispatch: the last one whose rows lay in that memory. */
  #last = noCombines();

  /** A rank that has joined knows nothing of combines before its first dispatch: `isElastic` numbers do not go by those. */
  constructor(isElastic: boolean) {
    this.#isElastic = isElastic;
  }

  beginDispatch(dispatch: number): void {
    this.#dispatch = dispatch;
  }

  /**
   * Of a combine that begins now, with the handle of that dispatch. Numbers only grow. Fails with WL_CAPACITY.
   *
   * INVARIANT: that of a handle's first combine depends on the handle alone, unless one of a later dispatch came before. So a
   * rank whose first dispatch is the second of two that overlap agrees with the others, who combine the first of them too.
   */
  next(dispatch: number): number {
    let number = this.#number + 1;
    if (this.#isElastic) {
      number = Math.max(number, dispatch * COMBINES_PER_DISPATCH + 1);
      if (number >= (this.#dispatch + 1) * COMBINES_PER_DISPATCH) {
        const most = COMBINES_PER_DISPATCH - 1;
        const message = `An elastic EpLowLatency takes at most ${most} combines from one dispatch to the next`;
        throw new WeftlineError('WL_CAPACITY', message, { details: { combines: most } });
      }
    }
    this.#number = number;
    return number;
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
    this.#number = 0;
    this.#last = noCombines();
  }
}

function noCombines(): NumberedCombine[] {
  return Array.from({ length: LOW_LATENCY_RESULTS }, () => ({ number: 0, dispatch: 0 }));
}
