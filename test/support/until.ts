// Waits of tests for something that another thread, process or turn of the event loop brings about.
import assert from 'node:assert/strict';

/** Turns of the event loop before a wait sleeps between looks. */
const EAGER_LOOKS = 100;

/** Looks until the condition holds. Fails after `milliseconds`, naming what did not come to be. */
export async function until(
  holds: () => boolean | Promise<boolean>,
  what = 'the condition of this wait',
  milliseconds = 120_000,
): Promise<void> {
  const end = performance.now() + milliseconds;
  for (let looks = 0; !(await holds()); looks += 1) {
    assert.ok(performance.now() < end, `${what} did not come to hold within ${milliseconds} ms`);
    await new Promise((resolve) => (looks < EAGER_LOOKS ? setImmediate(resolve) : setTimeout(resolve, 5)));
  }
}
