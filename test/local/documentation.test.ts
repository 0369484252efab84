// Every program and command of README.md and docs/ does what it says, exactly as it is printed.
//
//   ```js          checked by the compiler, and run by Node as it stands, as a file with the ending .mjs.
//   ```ts          the same, but run only where Node has `await using` (24).
//   ```sh          in README.md, the concepts, the guides and docs/design run when its first line is one of our commands: weftline ..., npx weftline ..., npm start, with or
//                  without "npm ci &&" before it (dependencies are there already, npm ci itself is not run).
//   others         not looked at.
//
// A comment above a block changes that: <!-- example: ranks=2 --> runs it under `weftline run -n 2` (with `minRanks=1` also with
// `--min-ranks 1`), `file=PATH` says that the block is that file of the repository, `compile` checks its types only, `snippet` checks the types of a part of a
// program, and `skip` leaves a command alone. A block under <!-- output --> is what the program before it prints, in any
// order of its lines. Blocks run in the repository's root.
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

const blocks = ['README.md', ...listDocuments()].flatMap((file) =>
  extractCodeBlocks(file, readFileSync(join(root, file), 'utf8')),
);
const programs = blocks.filter(({ language }) => ['ts', 'js'].includes(language));
const examples = readdirSync(join(root, 'examples')).filter((name) => name.endsWith('.mjs'));
/** Commands of other documents are how the figures there were measured. */
const everyCommand = blocks.filter(
  (block) =>
    /^(README|docs\/[^/]*|docs\/(concepts|guides|design)\/[^/]*)\.md$/.test(block.file) &&
    block.marker.action === 'run' &&
    isOurCommand(block),
);
/** The gate has the first one of each document. */
const commands = isWhole ? everyCommand : everyCommand.filter(isFirst);

mkdirSync(workFolder, { recursive: true });
after(() => rmSync(workFolder, { recursive: true, force: true }));

test('all programs, parts of programs and examples type-check', () => {
  const sources = programs.filter(({ marker }) => marker.path === undefined).map(sourceOf);
  for (const name of examples) sources.push({ name, code: readFileSync(join(root, 'examples', name), 'utf8') });
  assert.ok(sources.length > 20);
  assert.equal(typeCheck(sources), '');
  assert.deepEqual(programs.filter(({ marker }) => marker.action === 'skip').map(place), []);
});

test("the README's program type-checks in a project of a user that is merely strict", () => {
  const [{ code }] = programs.filter(({ file }) => file === 'README.md') as [CodeBlock];
  const compilerOptions = { strict: true, module: 'nodenext', target: 'es2022', types: ['node'], noEmit: true };
  for (const skipLibCheck of [true, false]) {
    const project = { compilerOptions: { ...compilerOptions, skipLibCheck }, sources: [{ name: 'program.ts', code }] };
    assert.equal(compilerOutput([project]), '', `skipLibCheck ${skipLibCheck}`);
  }
});

for (const block of programs) {
  const { action, ranks, minRanks, path } = block.marker;
  if (action !== 'run') continue;
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
    const flags = minRanks === undefined ? [] : ['--min-ranks', String(minRanks)];
    const launcher = ranks === undefined ? [] : [commandLine, 'run', '-n', String(ranks), ...flags];
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
  assert.deepEqual(
    examples.filter((name) => !shown.includes(`examples/${name}`)),
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
  const run = { action: 'run', ranks: undefined, minRanks: undefined, path: undefined } as const;
  assert.deepEqual(extractCodeBlocks('a.md', sample), [
    { file: 'a.md', line: 3, language: 'ts', code: "import 'weftline';", marker: run, output: undefined },
    {
      file: 'a.md',
      line: 8,
      language: 'js',
      code: 'await 1;\n\n  2;',
      marker: { action: 'run', ranks: 2, minRanks: undefined, path: 'a/b.mjs' },
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

test('typeCheck() names the document and the line of a mistake', () => {
  const program = '```ts\nimport { toBf16 } from "weftline";\ntoBf16("1");\n```\n';
  const snippet = '<!-- example: snippet -->\n```js\nworld.rank = 1;\n```\n';
  const markdown = `text\n\n${program}${program.replace('ts', 'js')}${snippet}`;
  const output = typeCheck(extractCodeBlocks('docs/wrong.md', markdown).map(sourceOf));
  const mistakes = [...output.matchAll(/docs-wrong-\S+: error TS\d+/g)].map(([text]) => text);
  assert.deepEqual(mistakes.toSorted(), [
    'docs-wrong-13.ts(13,7): error TS2540',
    'docs-wrong-4.ts(5,8): error TS2345',
    'docs-wrong-8.mjs(9,8): error TS2345',
  ]);
  const right = markdown.replaceAll('"1"', '1').replace('rank = 1', 'rank');
  assert.equal(typeCheck(extractCodeBlocks('docs/right.md', right).map(sourceOf)), '');
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

function listDocuments(): string[] {
  return readdirSync(join(root, 'docs'), { recursive: true, encoding: 'utf8' })
    .filter((name) => name.endsWith('.md'))
    .toSorted()
    .map((name) => `docs/${name}`);
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

/** What the compiler checks as a file of this name. */
interface Source {
  readonly name: string;
  readonly code: string;
}

/** What parts of programs may name, as if the lines before them had made it. */
const snippetNames = [
  "import { type CudaDevice, type Tensor, WeftlineError } from 'weftline';",
  "import { Communicator } from 'weftline/collectives';",
  "import { EpLowLatency, type LowLatencyConfig } from 'weftline/ep';",
  "import type { World } from 'weftline/world';",
  'declare const world: World, device: CudaDevice;',
  'declare const communicator: Communicator, output: Tensor;',
  "declare const lowLatency: EpLowLatency, config: LowLatencyConfig, out: Tensor<'bf16'>;",
  "declare const args: { x: Tensor<'bf16'>, topkIdx: Tensor<'i32'>, topkWeights: Tensor<'f32'>, dtype: 'bf16' };",
  'declare const batch: (step: number) => Promise<typeof args>;',
  "declare const experts: (rows: Tensor<'bf16'>) => Promise<Tensor<'bf16'>>;",
].join(' ');

/** The lines of the source are those of the document. */
function sourceOf(block: CodeBlock): Source {
  const above = '\n'.repeat(block.line - 2);
  if (block.marker.action === 'snippet') {
    return { name: `${fileName(block)}.ts`, code: `${snippetNames} {${above}\n${block.code}\n}\n` };
  }
  const name = `${fileName(block)}.${block.language === 'ts' ? 'ts' : 'mjs'}`;
  // An empty export makes a module of a block without imports, so that blocks do not share names.
  return { name, code: `${above}\n${block.code}\nexport {};\n` };
}

/** What the compiler prints of all these, in one run; empty when all is well. */
function typeCheck(sources: readonly Source[]): string {
  const compilerOptions = {
    strict: true,
    module: 'nodenext',
    target: 'es2023',
    lib: ['es2023', 'esnext.disposable'],
    types: ['node'],
    skipLibCheck: true,
    noEmit: true,
  };
  const isTypeScript = ({ name }: Source): boolean => name.endsWith('.ts');
  return compilerOutput([
    { compilerOptions, sources: sources.filter(isTypeScript) },
    {
      compilerOptions: { ...compilerOptions, allowJs: true, checkJs: true, noImplicitAny: false },
      sources: sources.filter((source) => !isTypeScript(source)),
    },
  ]);
}

interface Project {
  readonly compilerOptions: object;
  readonly sources: readonly Source[];
}

function compilerOutput(projects: readonly Project[]): string {
  const folders = projects.map(({ compilerOptions, sources }, index) => {
    const folder = join(workFolder, `project-${index}`);
    rmSync(folder, { recursive: true, force: true });
    mkdirSync(folder, { recursive: true });
    for (const { name, code } of sources) writeFileSync(join(folder, name), code);
    const files = sources.map(({ name }) => name);
    writeFileSync(join(folder, 'tsconfig.json'), JSON.stringify({ compilerOptions, files }));
    return folder;
  });
  const compiler = join(root, 'node_modules/typescript/bin/tsc');
  const { stdout, stderr } = spawnSync(process.execPath, [compiler, '-b', ...folders, '--pretty', 'false'], {
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
