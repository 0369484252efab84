// What benches do where ranks share a GPU, and how they show how far they are.
import assert from 'node:assert/strict';
import { PassThrough } from 'node:stream';
import test from 'node:test';
import { copyShapes, usualCopyShape } from '#lib/programs/bench/ep/cuda-copies.js';
import { effortOnSharedGpus, sharedGpuNotice } from '#lib/programs/bench/harness.js';
import { ProgressBar } from '#lib/programs/cli/with-ranks.js';

test('ranks that share a GPU run few rounds, with one count of SMs and one shape of the bare copies', () => {
  const asked = { iterations: 20, warmup: 3, pairs: 32, sms: [8, 16, 24], isOneShape: false };
  const few = { iterations: 3, warmup: 0, pairs: 4, sms: [8], isOneShape: true };
  assert.deepEqual(effortOnSharedGpus(asked), few);
  assert.equal(effortOnSharedGpus({ ...asked, iterations: 1 }).iterations, 1);
  const notice = sharedGpuNotice('ranks 0 and 2 share GPU-05');
  assert.match(notice, /^ranks 0 and 2 share GPU-05: .*the figures mean little.*lower --ranks$/);
});

test('the usual shape of a bare copy is one of those that are tried', () => {
  for (const room of [20_000, 220_000]) {
    for (const direction of ['push', 'pull'] as const) {
      const of = { direction, numSms: 8, ranks: 4, rowBytes: 14_336, room };
      assert.ok(copyShapes(of).some((shape) => JSON.stringify(shape) === JSON.stringify(usualCopyShape(of))));
    }
  }
});

/** What a bar writes for one of four rounds. */
function shown(rank: number, isQuiet: boolean, isTTY: boolean): string {
  const stream = Object.assign(new PassThrough(), { isTTY });
  using bar = new ProgressBar({ title: 'bench x', unit: 'rounds', rank, isQuiet, stream });
  bar.show(1, 4);
  let text = '';
  for (let chunk = stream.read() as Buffer | null; chunk !== null; chunk = stream.read() as Buffer | null) {
    text += chunk.toString();
  }
  return text;
}

test('a bar is shown by rank 0, on a terminal, unless the command is to be quiet', () => {
  assert.match(shown(0, false, true), /bench x .*1 of 4 rounds/);
  for (const [rank, isQuiet, isTTY] of [
    [1, false, true],
    [0, true, true],
    [0, false, false],
  ] as const) {
    assert.equal(shown(rank, isQuiet, isTTY), '');
  }
});
