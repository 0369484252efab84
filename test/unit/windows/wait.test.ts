// How long a wait for a word sleeps at a time.
import assert from 'node:assert/strict';
import test from 'node:test';
import { type SharedWord, waitForWord } from '#lib/windows/wait.js';

/** A word whose sleeps are over at once; notes how long they were to be, in ns. */
function notingWord(): { readonly word: SharedWord; readonly slices: number[] } {
  const slices: number[] = [];
  const sleep = (_seen: number, nanoseconds: number): boolean => {
    slices.push(nanoseconds);
    return true;
  };
  const words = new Int32Array(new SharedArrayBuffer(8));
  const futex = { waitBlocking: sleep, wait: async (seen: number, ns: number) => sleep(seen, ns), wakeAll: () => {} };
  return { slices, word: { value: words.subarray(0, 1), waiters: words.subarray(1), futex } };
}

const source = { waitFacts: () => ({ operation: 'a test' }) };
const work = (): void => {};

for (const [what, wait, longest] of [
  ['nothing else to do', {}, 1_000_000],
  ['work that nothing rings for', { work }, 500_000],
  ['work that the word is rung for', { work, isRung: () => true }, 1_000_000],
  ['work that the word is not rung for now', { work, isRung: () => false }, 500_000],
] as const) {
  test(`a wait sleeps long unless it must look for work: ${what}`, async () => {
    const { word, slices } = notingWord();
    const ready = (): boolean => slices.length === 1;
    await waitForWord(word, { ...wait, ready, check: () => {}, source, endsAt: Number.POSITIVE_INFINITY });
    assert.deepEqual(slices, [longest]);
  });
}
