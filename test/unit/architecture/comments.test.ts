// Comments are sentences, or names of things, that make sense without their neighbours: none begins in the middle of one.
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import test from 'node:test';
import { listFiles, proseOf, root } from './source-tree.ts';

const folders = ['src', 'kernels', 'test', 'scripts', 'examples'];
const endings = ['.ts', '.mjs', '.cu', '.cuh'];

/** Words with which a fragment begins: "Of the peer's ring: bytes so far", "By rank: its host", "Which of them". */
const fragmentPattern = /^(?:Of|Those|Which|Whose|Whom|Nor|Than|[SA](?:o|s) (?:many|much)|By [\w ]+:)(?!\w)/;

/** Where each comment of a text begins, and with what; lines of comments in a row are one comment. */
function commentsOf(text: string): { readonly line: number; readonly begin: string }[] {
  let end = -1;
  return proseOf(text).flatMap(({ at, text: comment }) => {
    if (!comment.startsWith('/')) return [];
    const isLine = comment.startsWith('//') && text.slice(text.lastIndexOf('\n', at) + 1, at).trim() === '';
    const goesOn = isLine && end >= 0 && text.slice(end, at).trim() === '' && !text.slice(end, at).includes('\n\n');
    end = isLine ? at + comment.length : -1;
    if (goesOn) return [];
    const begin = comment.replace(/^\/[/*]+[\s*]*/, '').split('\n')[0] as string;
    return [{ line: text.slice(0, at).split('\n').length, begin }];
  });
}

test('no comment begins as a fragment', () => {
  const problems = folders
    .flatMap((folder) => listFiles(folder, endings))
    .flatMap((path) =>
      commentsOf(readFileSync(join(root, path), 'utf8'))
        .filter(({ begin }) => fragmentPattern.test(begin))
        .map(({ line, begin }) => `${path}:${line}: ${begin}`),
    );
  assert.equal(problems.length, 0, `\n  ${problems.join('\n  ')}`);
});

test('the search for comments finds where each begins', () => {
  const text = [
    '/** Of one line. */',
    'const a = 1; // Those behind code',
    '// A sentence that',
    '// of two lines is one.',
    "const text = '// Of no comment';",
    '/**',
    ' * Whose text begins on the second line.',
    ' * Of this line nothing is asked.',
    ' */',
    '// Often a word only begins like one.',
    '',
    '// By rank: where it is.',
  ].join('\n');
  const comments = commentsOf(text);
  assert.deepEqual(
    comments.map(({ line }) => line),
    [1, 2, 3, 6, 10, 12],
  );
  assert.deepEqual(
    comments.map(({ begin }) => fragmentPattern.test(begin)),
    [true, true, false, true, false, true],
  );
});
