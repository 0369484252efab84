// What one rank passes to a dispatch, the same for all that dispatch.

/** What one rank passes to dispatch, as plain arrays. A row is an array of H elements (bit patterns). */
export interface ReferenceInput {
  readonly x: readonly (readonly number[])[];
  /** Scales of fp8 rows, which EpBuffer alone takes. */
  readonly scales?: readonly (readonly number[])[];
  /** [T][K], -1 for none. */
  readonly topkIdx: readonly (readonly number[])[];
  readonly topkWeights?: readonly (readonly number[])[];
}
