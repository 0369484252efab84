// What counts, sizes and ranks are.

/** True for a whole number that is exact, and at least `least`. */
export function isWhole(value: unknown, least: number): value is number {
  return typeof value === 'number' && Number.isSafeInteger(value) && value >= least;
}
