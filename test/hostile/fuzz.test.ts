// Every decoder of bytes that come from elsewhere, on hostile inputs from a fixed seed.
import assert from 'node:assert/strict';
import test from 'node:test';
import { plantedDecoders } from './fuzz/decoders/planted.ts';
import { decoders } from './fuzz/every-decoder.ts';
import { fuzz, shareOut } from './fuzz/run-fuzz.ts';
import type { DecoderShare } from './fuzz/fuzz-task.ts';
import { isWhole } from '../support/extent.ts';

const INPUTS = isWhole ? 40_000 : 15_000;
const SEED = 11;
/** Time after which the decoder that never comes back counts as hanging. */
const SHORT_HANG_MS = 1500;

const none = { seed: SEED, covered: 0, keep: false };

/** What each decoder did wrong. */
async function faultsOf(
  shares: readonly DecoderShare[],
  hangMs?: number,
): Promise<ReadonlyMap<string, readonly string[]>> {
  const found = new Map<string, readonly string[]>();
  await fuzz({
    ...none,
    shares,
    ...(hangMs === undefined ? {} : { hangMs }),
    onReport: ({ decoder, faults }) => {
      const again = (input: string): string =>
        `node build/test/hostile/fuzz/main.js --decoder ${decoder} --input ${input}`;
      found.set(
        decoder,
        faults.map(({ what, input }) => `${what}\nagain: ${again(input)}`),
      );
    },
  });
  return found;
}

test('decoders take hostile inputs in or refuse them with a code', async (context) => {
  const found = await faultsOf(shareOut(decoders, INPUTS));
  assert.equal(found.size, decoders.length);
  for (const [decoder, faults] of found) await context.test(decoder, () => assert.deepEqual(faults, []));
});

test('the fuzzer finds every kind of fault, and none where there is none', async (context) => {
  const expected: Readonly<Record<string, RegExp>> = {
    'planted-foreign-error': /TypeError: not for this/,
    'planted-wrong-code': /code WL_INTERNAL/,
    'planted-broken-promise': /Fault: written outside/,
    'planted-late-error': /nobody waits/,
    'planted-endless': /did not come back/,
    'planted-greedy-bytes': /took 2.. MiB of memory/,
    'planted-greedy-objects': /ERR_WORKER_OUT_OF_MEMORY|memory limit|did not come back/,
    'planted-pollution': /changed Object.prototype/,
  };
  const found = await faultsOf(
    plantedDecoders.map(({ name }) => ({ decoder: name, from: 0, to: 400 })),
    SHORT_HANG_MS,
  );
  for (const { name } of plantedDecoders) {
    await context.test(name, () => {
      const what = expected[name];
      const faults = found.get(name) ?? ['nothing was run'];
      if (what === undefined) assert.deepEqual(faults, []);
      else assert.match(faults[0] ?? 'nothing was found', what);
    });
  }
});
