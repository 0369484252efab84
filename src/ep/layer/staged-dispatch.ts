// A dispatch of EPAll2AllLayer whose stages the caller runs one by one.
import { WeftlineError } from '../../core/errors.ts';
import type { DispatchStages } from './layer-engine.ts';

/** The call after each stage. */
const following: Readonly<Record<string, string>> = {
  preprocess: 'initOutputBuffer',
  initOutputBuffer: 'dispatchToken',
  dispatchToken: 'dispatchPostprocess',
};

/** Between preprocess() and dispatchPostprocess(): what will arrive. */
export class StagedDispatch {
  /** Rows that each rank will receive. */
  readonly recvRows: readonly number[];
  /** Rows that each expert of this rank will receive, in the order in which they will stand in the output. */
  readonly numRecvTokensPerExpert: readonly number[];
  readonly #stages: DispatchStages;
  #done = 'preprocess';
  #failed = false;

  /** @internal */
  constructor(stages: DispatchStages) {
    this.recvRows = stages.recvRows;
    this.numRecvTokensPerExpert = stages.perExpert;
    this.#stages = stages;
  }

  /** The call of EPAll2AllLayer that must come next. */
  get next(): string {
    return following[this.#done] ?? 'nothing';
  }

  /** True when a stage began and failed; no other one can follow. */
  get failed(): boolean {
    return this.#failed;
  }

  /** @internal */
  get stages(): DispatchStages {
    return this.#stages;
  }

  /** @internal */
  async run<T>(call: string, after: string, stage: (stages: DispatchStages) => Promise<T>): Promise<T> {
    if (this.#done !== after) {
      throw new WeftlineError('WL_INVALID_ARGUMENT', `Cannot call ${call} now: expected ${this.next}`, {
        details: { call, expected: this.next },
      });
    }
    try {
      const result = await stage(this.#stages);
      this.#done = call;
      return result;
    } catch (error) {
      this.#failed = true;
      throw error;
    }
  }
}
