// A reporter for node's test runner: how many tests ran in each part of the suite, why others were skipped, which files
// took longest, and last what failed, so that the end of a long output shows it. Where WEFTLINE_TEST_FAILED names a file,
// what failed is written there as well, by test file, for who repeats it.
import { writeFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';

/** Most characters of what a failed test says: the whole of it stands where the test ran. */
const MAX_FAILURE_CHARACTERS = 2000;
/** How many of the files that took longest are listed, unless they took less than SLOW_MS. */
const SLOW_FILES = 12;
const SLOW_MS = 10_000;

const root = fileURLToPath(new URL('../build/test/', import.meta.url));

function partOf(file) {
  return file?.startsWith(root) ? file.slice(root.length).split('/')[0] : 'other';
}

function outcomeOf(type, { skip }) {
  if (skip !== undefined && skip !== false) return 'skipped';
  return type === 'test:pass' ? 'passed' : 'failed';
}

/** `count` times each reason, the most frequent first. */
function* reasonLines(reasons) {
  for (const [reason, count] of [...reasons].toSorted(([, a], [, b]) => b - a)) yield `  ${count} skipped: ${reason}\n`;
}

/** The files whose tests took longest, added up. Files run beside each other. */
function* slowLines(times) {
  const slow = [...times].filter(([, ms]) => ms >= SLOW_MS).toSorted(([, a], [, b]) => b - a);
  if (slow.length === 0) return;
  yield '\nslowest:\n';
  for (const [file, ms] of slow.slice(0, SLOW_FILES)) yield `  ${(ms / 1000).toFixed(0)} s: ${file}\n`;
}

/** A test that failed by itself, not because one within it did: its file, line and name, and what it says. */
function failureLines({ file, line, name, details }) {
  const { error } = details;
  if (error?.failureType === 'subtestsFailed') return '';
  const cause = error?.cause ?? error;
  const text = cause?.stack ?? cause?.message ?? String(cause);
  const place = file?.startsWith(root) ? `${file.slice(root.length)}:${line}` : (file ?? '');
  const told = text.slice(0, MAX_FAILURE_CHARACTERS).replaceAll('\n', '\n    ');
  return `  ${place} ${name}\n    ${told}\n`;
}

/** By file, where somebody asks for it. */
function writeFailures(failures) {
  const path = process.env['WEFTLINE_TEST_FAILED'];
  if (path === undefined) return;
  const files = {};
  for (const { file, lines } of failures) files[file] = (files[file] ?? '') + lines;
  writeFileSync(path, JSON.stringify(files));
}

export default async function* summary(source) {
  const parts = new Map();
  const failures = [];
  const times = new Map();
  for await (const { type, data } of source) {
    if (type !== 'test:pass' && type !== 'test:fail') continue;
    // A file that has tests is reported as a test of its own when it fails.
    const part = partOf(data.file ?? data.name);
    const counts = parts.get(part) ?? { passed: 0, failed: 0, skipped: 0, reasons: new Map() };
    parts.set(part, counts);
    const outcome = outcomeOf(type, data);
    counts[outcome] += 1;
    if (data.nesting === 0 && data.file?.startsWith(root)) {
      const file = data.file.slice(root.length);
      times.set(file, (times.get(file) ?? 0) + data.details.duration_ms);
    }
    if (outcome === 'failed') failures.push({ file: data.file ?? data.name, lines: failureLines(data) });
    if (outcome !== 'skipped') continue;
    const reason = typeof data.skip === 'string' ? data.skip : 'no reason given';
    counts.reasons.set(reason, (counts.reasons.get(reason) ?? 0) + 1);
  }
  yield '\n';
  for (const [part, { passed, failed, skipped, reasons }] of [...parts].toSorted(([a], [b]) => (a < b ? -1 : 1))) {
    yield `${part}: ${passed} passed, ${failed} failed, ${skipped} skipped\n`;
    yield* reasonLines(reasons);
  }
  yield* slowLines(times);
  writeFailures(failures);
  if (failures.length > 0) yield `\nfailed:\n${failures.map(({ lines }) => lines).join('')}`;
}
