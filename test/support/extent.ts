// How much of the many alike cases of a suite runs: with WEFTLINE_TEST_EXTENT=whole, as in `npm run test:nightly`, all of
// them; else a sample that has each dimension once.

export const isWhole: boolean = process.env['WEFTLINE_TEST_EXTENT'] === 'whole';
