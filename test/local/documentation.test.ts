// Every code block of README.md and docs/*.md does what it says.
//
//   ```ts, ```js   type-checked against the built package, then run as one rank.
//   ```sh          run when its first line is one of our commands: weftline ..., npx weftline ..., npm start, with or
//                  without "npm ci &&" before it (dependencies are there already, npm ci itself is not run).
//   others         not looked at.
//
// A comment above a block changes that: <!-- example: ranks=2 --> runs it under `weftline run -n 2`,
// <!-- example: compile --> only type-checks it, <!-- example: skip --> leaves it alone. Blocks run in the repository's root.
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { existsSync, mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import test, { after } from 'node:test';
import { fileURLToPath } from 'node:url';
import { type CodeBlock, extractCodeBlocks } from './documentation/code-blocks.ts';

const root = fileURLToPath(new URL('../../..', import.meta.url));
/** Inside the repository, so that `import 'weftline'` means this package. */
const workFolder = join(root, 'build', `documentation-${process.pid}`);
const commandLine = join(root, 'dist/programs/cli/main.js');
const TIMEOUT_MS = 120_000;

const documents = ['README.md', ...listDocs()];
const blocks = documents.flatMap((file) => extractCodeBlocks(file, readFileSync(join(root, file), 'utf8')));
const programs = blocks.filter((block) => ['ts', 'js'].includes(block.language) && block.marker !== 'skip');
const commands = blocks.filter((block) => block.language === 'sh' && block.marker === 'run' && isOurCommand(block));

after(() => rmSync(workFolder, { recursive: true, force: true }));

test('the programs in the documentation compile', () => {
  assert.equal(compile(programs), '');
});

for (const block of programs) {
  if (block.marker === 'compile') continue;
  const ranks = typeof block.marker === 'object' ? block.marker.ranks : undefined;
  test(`${place(block)} runs${ranks === undefined ? '' : ` on ${ranks} ranks`}`, () => {
    const launcher = ranks === undefined ? [] : [commandLine, 'run', '-n', String(ranks)];
    mustSucceed(process.execPath, [...launcher, join(workFolder, 'out', `${fileName(block)}.js`)]);
  });
}

for (const block of commands) {
  test(`${place(block)}: ${firstLine(block)}`, () => {
    mustSucceed('sh', ['-e', '-c', `${shellFunctions()}\n${block.code.replaceAll(/^\$ /gm, '')}`]);
  });
}

test('extractCodeBlocks() finds blocks, their lines and their markers', () => {
  const sample = [
    'text',
    '```ts',
    "import 'weftline';",
    '```',
    '<!-- example: ranks=2 -->',
    '',
    '   ```js',
    '   await 1;',
    '',
    '     2;',
    '   ```',
    '<!-- example: skip -->',
    '~~~sh title',
    'npm start',
    '~~~',
    '````md',
    '```ts',
    'inner',
    '```',
    '````',
    '<!-- another comment -->',
    '```',
    '```',
  ].join('\n');
  assert.deepEqual(
    extractCodeBlocks('a.md', sample).map(({ line, language, code, marker }) => [line, language, code, marker]),
    [
      [3, 'ts', "import 'weftline';", 'run'],
      [8, 'js', 'await 1;\n\n  2;', { ranks: 2 }],
      [14, 'sh', 'npm start', 'skip'],
      [17, 'md', '```ts\ninner\n```', 'run'],
      [23, '', '', 'run'],
    ],
  );
  assert.throws(() => extractCodeBlocks('a.md', '```ts\n1;'), /a\.md:1/);
  assert.throws(() => extractCodeBlocks('a.md', '<!-- example: twice -->\n```ts\n```'), /a\.md:1: "twice"/);
});

test('compile() names the document and the line of a mistake', () => {
  const markdown = 'text\n\n```ts\nimport { toBf16 } from "weftline";\ntoBf16("1");\n```\n';
  const output = compile(extractCodeBlocks('docs/wrong.md', markdown));
  assert.match(output, /docs-wrong-4\.ts\(5,8\): error TS2345/);
  assert.equal(compile(extractCodeBlocks('docs/right.md', markdown.replace('"1"', '1'))), '');
});

function isOurs(code: string): boolean {
  return isOurCommand({ file: 'a.md', line: 1, language: 'sh', code, marker: 'run' });
}

test('only our commands are run', () => {
  assert.deepEqual(
    ['npm ci && npm start', 'npx weftline doctor', '$ weftline run -n 2 x.js', 'npm start'].map(isOurs),
    [true, true, true, true],
  );
  assert.deepEqual(['npm ci', 'npm test', 'sudo rm x', 'weftlines'].map(isOurs), [false, false, false, false]);
  mustSucceed('sh', ['-e', '-c', `${shellFunctions()}\nnpm ci && npx weftline --help && weftline doctor --json`]);
});

function listDocs(): string[] {
  if (!existsSync(join(root, 'docs'))) return [];
  return readdirSync(join(root, 'docs'))
    .filter((name) => name.endsWith('.md'))
    .toSorted()
    .map((name) => `docs/${name}`);
}

function place(block: CodeBlock): string {
  return `${block.file}:${block.line}`;
}

function firstLine(block: CodeBlock): string {
  return (block.code.split('\n')[0] as string).replace(/^\$ /, '');
}

function fileName(block: CodeBlock): string {
  return `${block.file.replace(/\.md$/, '').replaceAll('/', '-')}-${block.line}`;
}

function isOurCommand(block: CodeBlock): boolean {
  return /^(npm ci && )?(npm start|(npx )?weftline)( |$)/.test(firstLine(block));
}

/** What the compiler prints; empty when all is well. Lines are those of the document. */
function compile(parts: readonly CodeBlock[]): string {
  if (parts.length === 0) return '';
  rmSync(join(workFolder, 'in'), { recursive: true, force: true });
  mkdirSync(join(workFolder, 'in'), { recursive: true });
  for (const block of parts) {
    writeFileSync(
      join(workFolder, 'in', `${fileName(block)}.${block.language}`),
      // An empty export makes a module of a block without imports, so that blocks do not share names.
      `${'\n'.repeat(block.line - 1)}${block.code}\nexport {};\n`,
    );
  }
  const options = {
    rootDir: 'in',
    outDir: 'out',
    composite: false,
    declaration: false,
    allowJs: true,
    checkJs: true,
    noUnusedLocals: false,
    noUnusedParameters: false,
  };
  writeFileSync(
    join(workFolder, 'tsconfig.json'),
    JSON.stringify({ extends: '../../tsconfig.base.json', compilerOptions: options, include: ['in'] }),
  );
  const compiler = join(root, 'node_modules/typescript/bin/tsc');
  const { stdout, stderr } = spawnSync(process.execPath, [compiler, '-p', workFolder, '--pretty', 'false'], {
    cwd: root,
    encoding: 'utf8',
  });
  return stdout + stderr;
}

function mustSucceed(program: string, args: readonly string[]): void {
  const { status, signal, stdout, stderr } = spawnSync(program, args, {
    cwd: root,
    encoding: 'utf8',
    timeout: TIMEOUT_MS,
  });
  assert.equal(status, 0, `ended with ${signal ?? `exit code ${status}`}\n${stdout}\n${stderr}`);
}

/** The commands as this checkout has them; `npm start` without its build, for the tests run on what is built. */
function shellFunctions(): string {
  const { scripts } = JSON.parse(readFileSync(join(root, 'package.json'), 'utf8')) as { scripts: { start: string } };
  const start = scripts.start.replace(/^npm run .*? && /, '').replace(/^node /, `"${process.execPath}" `);
  return [
    `weftline() { "${process.execPath}" "${commandLine}" "$@"; }`,
    'npx() { "$@"; }',
    `npm() { case "$1" in ci) ;; start) ${start} ;; *) return 2 ;; esac; }`,
  ].join('\n');
}
