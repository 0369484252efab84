// Every program and command of README.md and docs/ does what it says, exactly as it is printed.
//
//   ```js          run by Node as it stands, as a file with the ending .mjs.
//   ```ts          checked by the compiler against the built package; run as it stands where Node has `await using` (24).
//   ```sh          run when its first line is one of our commands: weftline ..., npx weftline ..., npm start, with or
//                  without "npm ci &&" before it (dependencies are there already, npm ci itself is not run).
//   others         not looked at.
//
// A comment above a block changes that: <!-- example: ranks=2 --> runs it under `weftline run -n 2`, `file=PATH` says that
// the block is that file of the repository, `compile` checks its types only, `skip` leaves it alone. A block under
// <!-- output --> is what the program before it prints, in any order of its lines. Blocks run in the repository's root.
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import test, { after } from 'node:test';
import { fileURLToPath } from 'node:url';
import { type CodeBlock, extractCodeBlocks } from './documentation/code-blocks.ts';
import { isWhole } from '../support/extent.ts';

const root = fileURLToPath(new URL('../../..', import.meta.url));
/** Inside the repository, so that `import 'weftline'` means this package. */
const workFolder = join(root, 'build', `documentation-${process.pid}`);
const commandLine = join(root, 'dist/programs/cli/main.js');
const TIMEOUT_MS = 600_000;
/** The first Node that runs TypeScript with `await using`. */
const NODE_OF_TYPESCRIPT = 24;

const documents = ['README.md', ...['docs', 'docs/concepts', 'docs/guides', 'docs/design'].flatMap(listDocuments)];
const blocks = documents.flatMap((file) => extractCodeBlocks(file, readFileSync(join(root, file), 'utf8')));
const programs = blocks.filter(({ language, marker }) => ['ts', 'js'].includes(language) && marker.action !== 'skip');
const everyCommand = blocks.filter((block) => block.marker.action === 'run' && isOurCommand(block));
/** The gate has the first one of each document. */
const commands = isWhole ? everyCommand : everyCommand.filter(isFirst);

mkdirSync(workFolder, { recursive: true });
after(() => rmSync(workFolder, { recursive: true, force: true }));

test('the programs in TypeScript, and those that are not run, compile', () => {
  assert.equal(
    compile(programs.filter(({ language, marker }) => language === 'ts' || marker.action === 'compile')),
    '',
  );
});

for (const block of programs) {
  const { action, ranks, path } = block.marker;
  if (action === 'compile') continue;
  // An example that several documents show runs once; of the others its text is compared.
  const isAgain =
    path !== undefined && programs.findIndex(({ marker }) => marker.path === path) !== programs.indexOf(block);
  const isOld = Number(process.versions.node.split('.')[0]) < NODE_OF_TYPESCRIPT;
  const skip = block.language === 'ts' && isOld ? `needs Node ${NODE_OF_TYPESCRIPT}` : false;
  test(`${place(block)} runs${ranks === undefined ? '' : ` on ${ranks} ranks`}`, { skip }, () => {
    const program = path === undefined ? join(workFolder, `${fileName(block)}.m${block.language}`) : join(root, path);
    if (path === undefined) writeFileSync(program, block.code);
    else assert.equal(`${block.code}\n`, readFileSync(program, 'utf8'), `${place(block)} is not ${path}`);
    if (isAgain && block.output === undefined) return;
    const launcher = ranks === undefined ? [] : [commandLine, 'run', '-n', String(ranks)];
    const printed = mustSucceed(process.execPath, [...launcher, program]);
    if (block.output !== undefined) assert.deepEqual(sortedLines(printed), sortedLines(block.output));
  });
}

for (const block of commands) {
  test(`${place(block)}: ${firstLine(block)}`, () => {
    mustSucceed('sh', ['-e', '-c', `${shellFunctions()}\n${block.code.replaceAll(/^\$ /gm, '')}`]);
  });
}

test('every program in examples/ stands in a document', () => {
  const shown = programs.map(({ marker }) => marker.path);
  const files = readdirSync(join(root, 'examples')).filter((name) => name.endsWith('.mjs'));
  assert.deepEqual(
    files.filter((name) => !shown.includes(`examples/${name}`)),
    [],
  );
});

test('extractCodeBlocks() finds blocks, their lines, their markers and their output', () => {
  const sample = [
    'text',
    '```ts',
    "import 'weftline';",
    '```',
    '<!-- example: ranks=2 file=a/b.mjs -->',
    '',
    '   ```js',
    '   await 1;',
    '',
    '     2;',
    '   ```',
    '<!-- output -->',
    '```text',
    '[0] 2',
    '```',
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
  const run = { action: 'run', ranks: undefined, path: undefined } as const;
  assert.deepEqual(extractCodeBlocks('a.md', sample), [
    { file: 'a.md', line: 3, language: 'ts', code: "import 'weftline';", marker: run, output: undefined },
    {
      file: 'a.md',
      line: 8,
      language: 'js',
      code: 'await 1;\n\n  2;',
      marker: { action: 'run', ranks: 2, path: 'a/b.mjs' },
      output: '[0] 2',
    },
    {
      file: 'a.md',
      line: 18,
      language: 'sh',
      code: 'npm start',
      marker: { ...run, action: 'skip' },
      output: undefined,
    },
    { file: 'a.md', line: 21, language: 'md', code: '```ts\ninner\n```', marker: run, output: undefined },
    { file: 'a.md', line: 27, language: '', code: '', marker: run, output: undefined },
  ]);
  assert.throws(() => extractCodeBlocks('a.md', '```ts\n1;'), /a\.md:1/);
  assert.throws(() => extractCodeBlocks('a.md', '<!-- example: twice -->\n```ts\n```'), /a\.md:1: "twice"/);
  assert.throws(() => extractCodeBlocks('a.md', '<!-- output -->\n```text\n```'), /a\.md:1: there is no program/);
});

test('compile() names the document and the line of a mistake', () => {
  const markdown = 'text\n\n```ts\nimport { toBf16 } from "weftline";\ntoBf16("1");\n```\n';
  const output = compile(extractCodeBlocks('docs/wrong.md', markdown));
  assert.match(output, /docs-wrong-4\.ts\(5,8\): error TS2345/);
  assert.equal(compile(extractCodeBlocks('docs/right.md', markdown.replace('"1"', '1'))), '');
});

function isOurs(code: string): boolean {
  return isOurCommand({ language: 'sh', code });
}

test('only our commands are run', () => {
  assert.deepEqual(
    ['npm ci && npm start', 'npx weftline doctor', '$ weftline run -n 2 x.js', 'npm start'].map(isOurs),
    [true, true, true, true],
  );
  assert.deepEqual(['npm ci', 'npm test', 'sudo rm x', 'weftlines'].map(isOurs), [false, false, false, false]);
  mustSucceed('sh', ['-e', '-c', `${shellFunctions()}\nnpm ci && npx weftline --help && weftline doctor --json`]);
});

function listDocuments(folder: string): string[] {
  return readdirSync(join(root, folder))
    .filter((name) => name.endsWith('.md'))
    .toSorted()
    .map((name) => `${folder}/${name}`);
}

function isFirst(block: CodeBlock, index: number): boolean {
  return everyCommand[index - 1]?.file !== block.file;
}

function place(block: CodeBlock): string {
  return `${block.file}:${block.line}`;
}

function firstLine({ code }: Pick<CodeBlock, 'code'>): string {
  return (code.split('\n')[0] as string).replace(/^\$ /, '');
}

function fileName(block: CodeBlock): string {
  return `${block.file.replace(/\.md$/, '').replaceAll('/', '-')}-${block.line}`;
}

function isOurCommand(block: Pick<CodeBlock, 'language' | 'code'>): boolean {
  return block.language === 'sh' && /^(npm ci && )?(npm start|(npx )?weftline)( |$)/.test(firstLine(block));
}

function sortedLines(text: string): string[] {
  return text.trimEnd().split('\n').toSorted();
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
    noEmit: true,
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

/** Returns what it printed. */
function mustSucceed(program: string, args: readonly string[]): string {
  const { status, signal, stdout, stderr } = spawnSync(program, args, {
    cwd: root,
    encoding: 'utf8',
    timeout: TIMEOUT_MS,
  });
  assert.equal(status, 0, `ended with ${signal ?? `exit code ${status}`}\n${stdout}\n${stderr}`);
  return stdout;
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
