// Lending the processor: at each look where others use it, once in a while where nobody does.
import assert from 'node:assert/strict';
import test from 'node:test';
import { ProcessorLoans } from '#lib/threads/spin-time.js';

/** How many of `looks` lent: those that come back with another time than they were called at. */
function loansOf(loans: ProcessorLoans, looks: number, now: () => number): number {
  let lent = 0;
  for (let look = 0; look < looks; look += 1) {
    const time = now();
    if (loans.lend(time) !== time) lent += 1;
  }
  return lent;
}

/** A loan from such a time seems to have taken long, or none. */
const longAgo = (): number => performance.now() - 1000;
const ahead = (): number => performance.now() + 1_000_000;

test('as long as others use the processor, every look lends it', () => {
  assert.equal(loansOf(new ProcessorLoans(), 1000, longAgo), 1000);
});

test('where nobody uses it, few looks lend it, until somebody does', () => {
  const loans = new ProcessorLoans();
  const lent = loansOf(loans, 1064, ahead);
  assert.ok(lent > 64 && lent < 164, `${lent} of 1064`);
  loansOf(loans, 16, longAgo);
  assert.equal(loansOf(loans, 50, longAgo), 50);
});
