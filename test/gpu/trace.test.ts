// Kernels in traces: two ranks, which may share a GPU, tell of their phases and waits, with the results that they have untraced.
import assert from 'node:assert/strict';
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import test from 'node:test';
import { collectTrace } from '#lib/programs/cli/trace-command.js';
import type { Span, TracePart } from '#lib/tracing/read-part.js';
import { summarize } from '#lib/tracing/trace-summary.js';
import { resultOf, runRanks } from '../local/support/run-ranks.ts';
import { cacheFolder, noGpu } from './support/gpu.ts';
import { TemporaryFolder } from './support/temporary-folder.ts';
import { settingsTable } from '#lib/settings/settings.js';

const script = new URL('../local/ranks/traced-calls.js', import.meta.url);
const timeoutMs = 200_000;
const env = { WEFTLINE_TEST_DEVICE: 'cuda', [settingsTable.cacheFolder.env]: cacheFolder };

const kernels = [
  'ep-dispatch',
  'ep-combine',
  'layer-prepare',
  'layer-dispatch',
  'layer-combine',
  'low-latency-dispatch',
  'low-latency-combine',
  'collective-copies',
  'collective-reductions',
  'collective-messages',
];

function gpuThreads(part: TracePart) {
  return part.threads.filter(({ name }) => name.startsWith('GPU '));
}

function gpuSpans(part: TracePart): Span[] {
  return gpuThreads(part).flatMap(({ spans }) => spans);
}

function launches(part: TracePart, kernel: string): Span[] {
  return gpuSpans(part).filter(({ label }) => label === `kernel ${kernel}`);
}

/** Comparisons of clocks err, and clocks drift between them. */
function slackOf(part: TracePart): number {
  return 200 + Math.max(...part.gpuClocks.map(({ mostErrorUs }) => mostErrorUs));
}

function checkTimes(part: TracePart): void {
  const slack = slackOf(part);
  const calls = part.threads[0]!.spans.filter(({ point }) => point === 'call');
  const dispatches = calls.filter(({ label }) => label.startsWith('EpBuffer.dispatch'));
  const kernelsOfDispatch = launches(part, 'ep-dispatch').toSorted((left, right) => left.begin - right.begin);
  assert.equal(dispatches.length, 3);
  // Blocks of several groups of 16 are several spans.
  for (const [index, call] of dispatches.entries()) {
    const own = kernelsOfDispatch.filter(
      ({ begin }) =>
        begin > call.begin - slack && begin < (dispatches[index + 1]?.begin ?? Number.POSITIVE_INFINITY) - slack,
    );
    assert.ok(own.length > 0, `dispatch ${index}`);
    // The call returns when it knows the counts, which the kernel has told before its end.
    const counts = gpuSpans(part).filter(
      ({ point, subject }) => point === 'ep.dispatch.counts' && own.some((kernel) => kernel.subject === subject),
    );
    assert.ok(counts.length > 0);
    for (const { begin } of counts) assert.ok(begin > call.begin - slack && begin < call.end! + slack);
  }
  for (const span of gpuSpans(part)) {
    assert.ok(span.begin > calls[0]!.begin - slack && (span.end ?? span.begin) < Date.now() * 1000 + slack);
    assert.ok(span.end === undefined || span.end >= span.begin);
  }
}

test('kernels of two ranks are in the trace, and results are as without', { skip: noGpu }, async (context) => {
  const plain = await runRanks(2, script, { env, timeoutMs });
  assert.equal(plain.exitCode, 0, plain.transcript);
  using folder = new TemporaryFolder();
  const file = join(folder.path, 't.json');
  const traced = await runRanks(2, script, { env: { ...env, [settingsTable.trace.env]: file }, timeoutMs });
  assert.equal(traced.exitCode, 0, traced.transcript);
  assert.deepEqual(traced.ranks.map(resultOf), plain.ranks.map(resultOf));
  const { parts } = collectTrace(file);
  const ranks = parts.filter(({ rank }) => rank >= 0);
  assert.equal(ranks.length, 2);
  for (const part of ranks) {
    context.diagnostic(`rank ${part.rank}: ${JSON.stringify(part.gpuClocks)}`);
    const seen = new Set(gpuSpans(part).flatMap(({ label }) => /^kernel (.*)$/.exec(label)?.[1] ?? []));
    assert.deepEqual(
      kernels.filter((kernel) => !seen.has(kernel)),
      [],
    );
    const points = new Set(gpuSpans(part).map(({ point }) => point));
    for (const point of [
      'ep.dispatch.rows',
      'ep.combine.rows',
      'ep.closing',
      'layer.dispatch.rows',
      'kernel.wait',
    ] as const)
      assert.ok(points.has(point), point);
    assert.ok(
      gpuSpans(part).every(({ end }) => end !== undefined),
      'all has ended',
    );
    checkTimes(part);
  }
  const { kernelWaits } = summarize(ranks);
  assert.ok(kernelWaits.some(({ waiter, peer }) => waiter === 'rank 0' && peer === 'rank 1'));
  assert.ok(kernelWaits.some(({ waiter, peer }) => waiter === 'rank 1' && peer === 'rank 0'));
  const { traceEvents, otherData } = JSON.parse(readFileSync(file, 'utf8')) as {
    traceEvents: { name: string; ph: string; pid: number; args: { name?: string } }[];
    otherData: { gpuClocks: unknown[] };
  };
  assert.equal(otherData.gpuClocks.length, 2);
  const tracks = traceEvents.filter(({ name, args }) => name === 'thread_name' && args.name?.startsWith('GPU '));
  assert.deepEqual(new Set(tracks.map(({ pid }) => pid)), new Set([0, 1]));
});

test('what kernels told before their rank was killed is there', { skip: noGpu }, async () => {
  using folder = new TemporaryFolder();
  const file = join(folder.path, 't.json');
  const options = { args: ['killed'], env: { ...env, [settingsTable.trace.env]: file }, timeoutMs };
  await runRanks(2, script, options);
  const parts = collectTrace(file).parts.filter(({ rank }) => rank >= 0);
  assert.equal(parts.length, 2);
  // The other one may be ended by the launcher, before or after its last call.
  const done = parts.filter((part) => launches(part, 'collective-messages').length > 0);
  assert.ok(done.length > 0);
  for (const part of done) assert.ok(launches(part, 'ep-dispatch').length >= 3);
  assert.deepEqual(
    readdirSync('/dev/shm').filter((name) => name.startsWith('weftline.trace.')),
    [],
  );
});
