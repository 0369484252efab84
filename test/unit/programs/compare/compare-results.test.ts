// Two result documents side by side: which figures they have, which of them is better, and what cannot be compared.
import assert from 'node:assert/strict';
import { readdirSync } from 'node:fs';
import test from 'node:test';
import { fileURLToPath } from 'node:url';
import { compareResults, figuresOf } from '#lib/programs/compare/compare-results.js';
import { compareVerdict, compareView } from '#lib/programs/cli/compare-command.js';
import { viewText } from '#lib/programs/report/view.js';
import { resultDocument } from '../../../support/report-pages.ts';

function summary(median: number, spread: number): Readonly<Record<string, number>> {
  return {
    count: 5,
    min: median - 2 * spread,
    p25: median - spread,
    median,
    p75: median + spread,
    max: median + 2 * spread,
  };
}

function result(times: readonly number[], tokens = 128): Readonly<Record<string, unknown>> {
  return {
    schema: 'weftline.bench.ep/1',
    iterations: 31,
    workload: { tokens, hidden: 64 },
    machine: { cores: 2 },
    cases: ['copy ceiling', 'dispatch', 'combine'].map((name, index) => ({
      name,
      microseconds: summary(times[index]!, 1),
      logicalGBps: summary(1000 / times[index]!, 0),
      rowBytes: 128,
    })),
  };
}

test('a report of 20,000 figures has the first of them, and says where the others are', () => {
  const phases = Array.from({ length: 20_000 }, (_, at) => ({ name: `n${at}`, microseconds: at + 1 }));
  const before = process.cpuUsage();
  const comparison = compareResults({ schema: 's', phases }, { schema: 's', phases });
  const text = viewText(compareView(['a', 'b'], comparison));
  assert.equal(comparison.figures.length, 20_000);
  assert.match(text, /│ n499: .*\n(?:.*\n)?and 19500 figures more, which --json and --report have\n/);
  const { user, system } = process.cpuUsage(before);
  assert.ok(user + system < 30e6, `${(user + system) / 1e6} s`);
});

test('ratios above 1 are better, of times and of rates, with what the quartiles allow', () => {
  const { figures, mean, referenceMean, differences } = compareResults(
    result([100, 100, 100]),
    result([100, 50, 200], 4096),
  );
  const of = (name: string) => figures.find((figure) => figure.name === name)!;
  assert.equal(of('dispatch: microseconds').ratio, 2);
  assert.equal(of('dispatch: logicalGBps').ratio, 2);
  assert.deepEqual([of('dispatch: microseconds').low, of('dispatch: microseconds').high], [99 / 51, 101 / 49]);
  assert.equal(of('combine: microseconds').ratio, 0.5);
  assert.deepEqual(
    ['dispatch: microseconds', 'combine: microseconds', 'copy ceiling: microseconds'].map((name) =>
      compareVerdict(of(name)),
    ),
    ['better', 'worse', 'beside'],
  );
  assert.equal(figures.length, 6, 'bytes and counts are no figures');
  assert.ok(Math.abs(mean! - 1) < 1e-9);
  assert.equal(referenceMean, 1);
  assert.deepEqual(differences, ['workload tokens: 128, 4096']);
});

test('a figure that only one has is named and not compared', () => {
  const second = {
    ...result([1, 2, 3]),
    cases: [...(result([1, 2, 3])['cases'] as unknown[]), { name: 'layer', ms: 3 }],
  };
  const comparison = compareResults(result([1, 2, 3]), second);
  assert.deepEqual([comparison.onlyFirst, comparison.onlySecond], [[], ['layer: ms']]);
  assert.match(viewText(compareView(['a', 'b'], comparison)), /\nonly in B: layer: ms\n/);
});

test('results of different commands, and documents without figures, are refused', () => {
  const other = { ...result([1, 2, 3]), schema: 'weftline.bench.p2p/1' };
  assert.throws(() => compareResults(result([1, 2, 3]), other), { code: 'WL_FILE_FORMAT' });
  assert.throws(() => compareResults({ a: 'b' }, { a: 'b' }), { code: 'WL_FILE_FORMAT' });
});

test('every result of the repository has figures, each with a name of its own, and is as good as itself', () => {
  const folder = fileURLToPath(new URL('../../../../../docs/benchmarks/results/', import.meta.url));
  const names = readdirSync(folder).flatMap((name) => (name.endsWith('.json') ? [name.slice(0, -'.json'.length)] : []));
  for (const name of names) {
    const document = resultDocument(name);
    if (!String(document['schema']).startsWith('weftline.bench.')) continue;
    const figures = figuresOf(document);
    assert.ok(figures.length > 1, name);
    assert.equal(new Set(figures.map((figure) => figure.name)).size, figures.length, name);
    for (const { ratio } of compareResults(document, document).figures) assert.equal(ratio, 1, name);
  }
});
