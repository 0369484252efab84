// Trace points: each that is named exists, begins and ends in the same file, and stands in the table of the architecture.
import assert from 'node:assert/strict';
import { readdirSync, readFileSync } from 'node:fs';
import { basename, join } from 'node:path';
import test from 'node:test';
import { fileURLToPath } from 'node:url';

const root = fileURLToPath(new URL('../../../../', import.meta.url));
const call = /(?:traceBegin|traceEnd|WEFTLINE_TRACE_BEGIN|WEFTLINE_TRACE_END)\(['"]([^'"]+)['"]/g;
/** Hooks that begin and end by themselves. */
const scopes = [
  { hook: /^ *WEFTLINE_TRACE_KERNEL\(\);$/m, point: 'kernel' },
  { hook: /^ *WEFTLINE_TRACE_(?:LATER_)?WAIT\(.*\);$/m, point: 'kernel.wait' },
];

function named(text: string, pattern: RegExp): Set<string> {
  return new Set([...text.matchAll(pattern)].map(([, name]) => name!));
}

function pointsOf(text: string): Set<string> {
  const scoped = scopes.filter(({ hook }) => hook.test(text)).map(({ point }) => point);
  return new Set([...named(text, call), ...scoped]);
}

const points = named(readFileSync(`${root}src/core/trace.ts`, 'utf8'), /^ {2}'([^']+)',$/gm);
const sources = ['src', 'kernels/cuda']
  .flatMap((folder) =>
    readdirSync(root + folder, { recursive: true, encoding: 'utf8' }).map((path) => join(folder, path)),
  )
  .filter((path) => /\.(?:ts|cu|cuh)$/.test(path))
  .map((path) => ({ path, text: readFileSync(root + path, 'utf8') }))
  .map((source) => ({ ...source, points: pointsOf(source.text) }))
  .filter((source) => source.points.size > 0);

test('every trace point that hosts and kernels name is one, and every one is named', () => {
  assert.ok(points.size > 8);
  const used = new Set(sources.flatMap((source) => [...source.points]));
  assert.deepEqual([...used].toSorted(), [...points].toSorted());
});

test('what a file begins it also ends, as often', () => {
  for (const { path, text, points: own } of sources) {
    for (const point of own) {
      const count = (how: string): number => text.split(new RegExp(`${how}\\(['"]${point}['"]`)).length - 1;
      const [begins, ends] = [count('(?:traceBegin|TRACE_BEGIN)'), count('(?:traceEnd|TRACE_END)')];
      assert.equal(begins, ends, `${path}: ${point}`);
    }
  }
});

test('the architecture says where each trace point is', () => {
  const lines = readFileSync(`${root}docs/architecture.md`, 'utf8').split('\n');
  for (const point of points) {
    const row = lines.find((line) => line.startsWith('|') && line.includes(`\`${point}\``));
    const shown = [...(row ?? '').matchAll(/\]\(\.\.\/([^)]+)\)/g)].map(([, path]) => path!);
    const places = sources.filter((source) => source.points.has(point)).map(({ path }) => path);
    assert.deepEqual(shown.toSorted(), places.toSorted(), point);
    assert.ok(shown.every((path) => row!.includes(`[${basename(path)}]`)));
  }
});
