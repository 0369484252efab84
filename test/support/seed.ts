// The seed of random tests: fixed, unless WEFTLINE_TEST_SEED is set to a number, or to "random" as in `npm run test:nightly`; scripts/test.mjs prints it.

const FIXED_SEED = 20_261_122;
const MAX_SEED = 1_000_000_007;

const wish = process.env['WEFTLINE_TEST_SEED'] ?? String(FIXED_SEED);
export const seed: number = wish === 'random' ? Date.now() % MAX_SEED : Number(wish);
if (!Number.isSafeInteger(seed)) throw new Error(`WEFTLINE_TEST_SEED is ${wish}: expected a whole number, or random`);

/** Printed where it is used, so that a failure can be repeated. */
export function testSeed(): number {
  console.log(`WEFTLINE_TEST_SEED=${seed}`);
  return seed;
}
