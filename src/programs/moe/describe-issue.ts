// What is wrong with a document that a file holds, on one line: where, what stands there, what was expected.
import type { z } from '#zod';
import { printable, quote } from '../../core/quote.ts';

const MAX_TEXT = 200;

/** Of the first thing that is wrong. `document`: what was checked. */
export function describeIssue({ issues: [first] }: z.ZodError, document: unknown): string {
  const { path, message } = first!;
  if (path.length === 0) return printable(message, MAX_TEXT);
  const value = path.reduce<unknown>(
    (at, key) => (at as Readonly<Record<PropertyKey, unknown>> | undefined)?.[key],
    document,
  );
  const place = printable(path.map(String).join('.'), MAX_TEXT);
  // What parsePythonJson() makes of it would read as if the file had quotes there.
  if (value === 'NaN' && first?.code === 'invalid_type' && first.expected === 'number') {
    return `${place} is NaN, which is no number, expected one: write it there, or fetch the file again`;
  }
  return `${place} is ${value === undefined ? 'missing' : quote(value)} (${printable(message, MAX_TEXT)})`;
}
