// What is wrong with a document that a file holds, on one line: where, what stands there, what was expected.
import type { z } from '#zod';
import { quote } from '../../core/quote.ts';

/** Of the first thing that is wrong. `document`: what was checked. */
export function describeIssue({ issues: [first] }: z.ZodError, document: unknown): string {
  const { path, message } = first!;
  if (path.length === 0) return message;
  const value = path.reduce<unknown>(
    (at, key) => (at as Readonly<Record<PropertyKey, unknown>> | undefined)?.[key],
    document,
  );
  return `${path.map(String).join('.')} is ${value === undefined ? 'missing' : quote(value)} (${message})`;
}
