// How much of the many alike cases of a suite runs: with WEFTLINE_TEST_EXTENT=whole, as in `npm run test:nightly`, all of
// them; else a sample that has each dimension once.

export const isWhole: boolean = process.env['WEFTLINE_TEST_EXTENT'] === 'whole';

/** All of these cases, or in the gate the first ones, which should differ as much as they can. */
export function sampled<T>(cases: readonly T[], count: number): readonly T[] {
  return isWhole ? cases : cases.slice(0, count);
}
