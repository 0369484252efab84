// One word per idea: names of the library and its kernels use the words of CONTRIBUTING.md, and none of those that it rules out.
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import test from 'node:test';
import { listFiles, root, withoutProse } from './source-tree.ts';

interface Word {
  readonly word: string;
  /** Words that mean the same, and that no name there may hold. */
  readonly not: readonly string[];
  /** Folders of the repository. */
  readonly folders: readonly string[];
}

/** What follows a dot is declared elsewhere, by this project or by another. */
const namePattern = /(?<![.\w$#]|->)[A-Za-z_$][\w$]*/g;

const words = readWords(readFileSync(join(root, 'CONTRIBUTING.md'), 'utf8'));
const files = [...listFiles('src', ['.ts']), ...listFiles('kernels', ['.ts', '.cu', '.cuh'])].map((path) => ({
  path,
  names: namesOf(path, readFileSync(join(root, path), 'utf8')),
}));

/** The rows of the table under "Words": word, meaning, words that are ruled out, folders. */
function readWords(text: string): Word[] {
  const section = text.slice(text.indexOf('\n## Words\n')).split('\n## ')[1] ?? '';
  return [...section.matchAll(/^\| (.+) \| .+ \| (.+) \| (.+) \|$/gm)]
    .map(([, word, not, folders]) => ({
      word: word as string,
      not: listOf(not as string),
      folders: listOf(folders as string),
    }))
    .filter(({ word }) => word !== 'word');
}

function listOf(cell: string): string[] {
  return cell.split(', ').map((part) => part.replaceAll('`', ''));
}

/** The names that a file declares or uses, and its own. */
function namesOf(path: string, text: string): string[] {
  const own = path.slice(path.lastIndexOf('/') + 1).replace(/\..*$/, '');
  return [...new Set([own, ...(withoutProse(text).match(namePattern) ?? [])])];
}

/** `sentPathBytes` is "sent path bytes". What is under way is on no way, and NodeJS is a name of others. */
function wordsOf(identifier: string): string {
  return identifier
    .replaceAll(/([a-z\d])([A-Z])/g, '$1 $2')
    .replaceAll(/([A-Z])([A-Z][a-z])/g, '$1 $2')
    .replaceAll(/[\s_$-]+/g, ' ')
    .toLowerCase()
    .replace('under way', 'underway')
    .replace('node js', 'nodejs');
}

function wrongNames({ word, not, folders }: Word, tree: typeof files): string[] {
  const ruledOut = new RegExp(`(?:^| )(?:${not.join('|')})s?(?: |$)`);
  return tree
    .filter(({ path }) => folders.some((folder) => path.startsWith(`${folder}/`)))
    .flatMap(({ path, names }) =>
      names
        .filter((one) => ruledOut.test(wordsOf(one)))
        .map((one) => `${path}: ${one}, where CONTRIBUTING.md has the word "${word}"`),
    );
}

test('names use one word per idea', () => {
  assert.ok(words.length >= 20);
  const problems = words.flatMap((word) => wrongNames(word, files));
  assert.equal(problems.length, 0, `\n  ${problems.join('\n  ')}`);
});

test('no word is ruled out where another row defines it', () => {
  const defined = words.flatMap(({ word, folders }) => listOf(word).map((one) => ({ one, folders })));
  const clashes = words.flatMap(({ word, not, folders }) =>
    defined
      .filter(({ one, folders: own }) => not.includes(one) && own.some((folder) => folders.includes(folder)))
      .map(({ one }) => `${word} rules out ${one}`),
  );
  assert.deepEqual(clashes, []);
});

test('the search for names reads declarations of TypeScript and CUDA, and no prose', () => {
  const text = [
    "import { routeOf } from './nic-table.ts'; // a road",
    'const { wayBack, nicBytes: rail } = this.#table.slice(0);',
    'class RoadTable { readonly #nicOf = `a ${nothing} way`; }',
    'unsigned way = block->route;',
  ].join('\n');
  const wrong = wrongNames({ word: 'path', not: ['route', 'road', 'way', 'nic'], folders: ['src/transport'] }, [
    { path: 'src/transport/road-table.ts', names: namesOf('src/transport/road-table.ts', text) },
    { path: 'src/agent/road.ts', names: ['road'] },
  ]);
  assert.deepEqual(
    wrong.map((line) => line.split(/[:,]/)[1]?.trim()),
    ['road-table', 'routeOf', 'wayBack', 'nicBytes', 'RoadTable', 'way'],
  );
  assert.equal(wordsOf('MAX_UNDER_WAY'), 'max underway');
  assert.equal(wordsOf('cpuHTTPServer2'), 'cpu http server2');
});
