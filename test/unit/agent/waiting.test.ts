// Waits of an agent whose backend has no thread of its own: between two looks they sleep until there is work for it.
import assert from 'node:assert/strict';
import test from 'node:test';
import { Waiter } from '#lib/agent/waiting.js';
import { WakeWord } from '#lib/threads/wake-word.js';

interface Seen {
  readonly steps: string[];
  readonly waiter: Waiter;
}

/** News come with the look of that number, counted from 1. */
function waiterOf({ news, pause }: { readonly news: number; readonly pause: number }): Seen {
  const steps: string[] = [];
  let looks = 0;
  const waiter = new Waiter({
    wake: new WakeWord(),
    timeoutMs: 60_000,
    spinUs: 0,
    poll: () => {
      steps.push('look');
      return ++looks === news;
    },
    set: {
      prefersPolling: false,
      help: () => false,
      prepareSleep: () => pause,
      nap: (milliseconds) => void steps.push(`nap ${milliseconds}`),
    },
  });
  return { steps, waiter };
}

function afterLooks(count: number): { readonly isSettled: boolean; describe: () => string } {
  let looks = 0;
  return {
    get isSettled(): boolean {
      return ++looks === count;
    },
    describe: () => 'It did not come',
  };
}

test('a wait without news naps for as long as the backends allow, instead of looking on end', async () => {
  const { steps, waiter } = waiterOf({ news: 2, pause: 0.1 });
  await waiter.wait(afterLooks(4));
  assert.deepEqual(steps, ['look', 'nap 0.1', 'look', 'look', 'nap 0.1', 'look']);
});

test('no nap where a backend has work already', async () => {
  const { steps, waiter } = waiterOf({ news: 0, pause: 0 });
  await waiter.wait(afterLooks(3));
  assert.deepEqual(steps, ['look', 'look', 'look']);
});
