// The rules that keep the project's shape: order of folders, native code in one place, words.
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { existsSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import test from 'node:test';
import { listFiles, parseSource, readSource, root, type SourceFile } from './architecture/source-tree.ts';
import { settingsTable } from '#lib/settings/settings.js';

/** Each folder of src imports only from those before it; the main entry is last. */
const folderOrder = [
  'core',
  'abi',
  'congestion',
  'settings',
  'native',
  'threads',
  'tracing',
  'metrics',
  'meeting',
  'rails',
  'device',
  'unpack',
  'world',
  'windows',
  'transport',
  'agent',
  'kv',
  'device-api',
  'group',
  'ep',
  'collectives',
  'reference',
  'programs',
  'index.ts',
] as const;

/** Files that read variables of CUDA, UCX and the cache folder of a user. */
const readersOfForeignVariables = [
  'src/native/file-probe.ts',
  'src/native/ucx.ts',
  'src/agent/backends/ucx/ucx-context.ts',
  'src/device/cuda/jit/cubin-cache.ts',
];
/** A place behind the first byte, written as a number. */
const numberedPlace = /\.(?:get|set)(?:Big)?(?:Uint|Int|Float)(?:8|16|32|64)\(\s*[1-9][^)]*\)/g;

/** What they open is the kernel's or the package's own, is made with a name that nobody has, or is guarded by rules of its own. */
const openersOfTheirOwn = [
  'src/abi/emit.ts',
  'src/agent/backends/local/local-backend.ts',
  'src/core/guarded-file.ts',
  'src/device/cpu/kernels.ts',
  'src/device/cuda/jit/cubin-cache.ts',
  'src/device/cuda/jit/cubin-cache.ts',
  'src/meeting/credentials.ts',
  'src/meeting/listener.ts',
  'src/meeting/credentials.ts',
  'src/native/file-probe.ts',
  'src/native/memory-file.ts',
  'src/native/process-memory.ts',
  'src/programs/bench/peer-programs.ts',
  'src/programs/bench/machine.ts',
  'src/programs/cli/compile-command.ts',
  'src/programs/cli/main.ts',
  'src/programs/cli/program.ts',
  'src/programs/report/html/page-html.ts',
  'src/tracing/trace-rings.ts',
  'src/tracing/trace-rings.ts',
  'src/windows/shared-file.ts',
  'src/windows/shared-memory.ts',
  'src/world/launcher.ts',
  'src/world/watching/find-jobs.ts',
  'src/world/watching/process-facts.ts',
];

/** Lines of the log and JSON, which are escaped already, and scripts for shells, which are the library's own text. */
const writersOfTheirOwn = ['src/core/log.ts', 'src/programs/cli/output.ts', 'src/programs/cli/completion-command.ts'];

/** This file, which holds samples of what it looks for. */
const own = 'test/unit/architecture.test.ts';

const sources: readonly SourceFile[] = listFiles('src', ['.ts']).map(readSource);
const packageJson = JSON.parse(readFileSync(join(root, 'package.json'), 'utf8')) as {
  readonly exports: Readonly<Record<string, string | { readonly default: string }>>;
  readonly bin: Readonly<Record<string, string>>;
};

const declaredLayouts = sources.flatMap(layoutsOf);

/** The layouts that a file declares by name, each with the constant that holds it. */
function layoutsOf({ path, text }: Pick<SourceFile, 'path' | 'text'>): {
  readonly path: string;
  readonly name: string;
  readonly variable: string | undefined;
}[] {
  return [...text.matchAll(/(?:\bconst (\w+)(?:: [^=\n]+)? = )?\bdefineLayout\(\s*'(\w+)'/g)].map((match) => ({
    path,
    name: match[2] as string,
    variable: match[1],
  }));
}

function folderOf(path: string): string {
  return path.split('/')[1] as string;
}

function place(path: string): number {
  return (folderOrder as readonly string[]).indexOf(folderOf(path));
}

function noneOf(problems: readonly string[]): void {
  assert.equal(problems.length, 0, `\n  ${problems.join('\n  ')}`);
}

test('every folder of src has a place in the order', () => {
  noneOf(
    [...new Set(sources.map((file) => folderOf(file.path)))].filter(
      (folder) => !(folderOrder as readonly string[]).includes(folder),
    ),
  );
});

test('each folder imports only from itself and from those before it', () => {
  noneOf(
    sources.flatMap((file) =>
      file.imports
        .filter((line) => line.target.startsWith('src/') && place(line.target) > place(file.path))
        .map((line) => `${file.path} imports ${line.target}, which comes later`),
    ),
  );
});

test('nothing imports the programs, not even the main entry', () => {
  noneOf(
    sources
      .filter((file) => folderOf(file.path) !== 'programs')
      .flatMap((file) =>
        file.imports
          .filter((line) => line.target.startsWith('src/programs/'))
          .map((line) => `${file.path} imports ${line.target}`),
      ),
  );
});

test('the environment is read in settings, world and programs, and where a variable is of other software', () => {
  const mayRead = ['settings', 'world', 'programs'];
  noneOf(
    sources
      .filter((file) => !mayRead.includes(folderOf(file.path)) && !readersOfForeignVariables.includes(file.path))
      .filter((file) => /\bprocess\.env\b/.test(file.text))
      .map((file) => `${file.path} reads process.env`),
  );
});

test('src/abi holds the layouts that kernels read, and no others', () => {
  const kernels = listFiles('kernels', ['.cu', '.cuh']).map((path) => readFileSync(join(root, path), 'utf8'));
  const readers = [...kernels, readFileSync(join(root, 'src/abi/emit.ts'), 'utf8')].join('\n');
  const layouts = declaredLayouts.filter(({ path }) => folderOf(path) === 'abi');
  assert.ok(layouts.length > 60);
  noneOf(
    layouts
      .filter(({ name, variable }) => !new RegExp(`\\b(${name}|${variable})\\b`).test(readers))
      .map(({ path, name }) => `${path} declares ${name}, which no kernel reads: its owner may`),
  );
});

test('every name of src/abi is used outside of its file', () => {
  noneOf(
    sources
      .filter(({ path }) => folderOf(path) === 'abi')
      .flatMap(({ path, exports }) => exports.map((name) => ({ path, name })))
      .filter(({ path, name }) =>
        sources.every((file) => file.path === path || !new RegExp(`\\b${name}\\b`).test(file.text)),
      )
      .filter(({ name }) => !declaredLayouts.some(({ variable }) => variable === name))
      .map(({ path, name }) => `${path} exports ${name}, which nothing uses`),
  );
});

test('each byte layout is declared once', () => {
  const seen = new Map<string, string>();
  const problems: string[] = [];
  for (const { path, name } of declaredLayouts) {
    if (seen.has(name)) problems.push(`${path} declares ${name}, which ${seen.get(name)} declares`);
    seen.set(name, path);
  }
  noneOf(problems);
});

test('bytes are read and written at places that a declared layout names', () => {
  noneOf(
    sources.flatMap(({ path, text }) =>
      [...text.matchAll(numberedPlace)].map(([line]) => `${path} has a place as a number: ${line}`),
    ),
  );
});

test('the search for layouts finds the forms they take', () => {
  const text =
    "export const info = defineLayout('Info', { a: 'u32' });\nconst wide = defineLayout(\n  'Wide',\n  {},\n);";
  assert.deepEqual(
    layoutsOf({ path: 'src/core/x.ts', text }).map(({ name, variable }) => [name, variable]),
    [
      ['Info', 'info'],
      ['Wide', 'wide'],
    ],
  );
  assert.match('view.setUint32(12, value, true)', numberedPlace);
  assert.doesNotMatch('view.getUint32(0, true) + view.getUint16(head.offset.kind)', numberedPlace);
});

test('no cycles of files, types included', () => {
  noneOf(findCycles(sources));
});

test('only src/native imports koffi', () => {
  noneOf(
    sources
      .filter((file) => folderOf(file.path) !== 'native')
      .filter((file) => file.imports.some((line) => line.target === 'koffi') || /['"]koffi['"]\)/.test(file.text))
      .map((file) => file.path),
  );
});

test('only src/threads/start-worker.ts starts threads', () => {
  const starters = sources.filter((file) => /\bnew Worker\(/.test(file.text)).map((file) => file.path);
  assert.deepEqual(starters, ['src/threads/start-worker.ts']);
});

test('threads bind functions of the C library before they work', () => {
  const entries = sources.filter((file) => /^export (?:async )?function run\(/m.test(file.text));
  assert.ok(entries.length >= 7);
  noneOf(
    entries
      .filter((file) => !/\bnew WorkerPort\b|\bserveEngine\(|^ *bindDeclaredFunctions\(\)/m.test(file.text))
      .map((file) => `${file.path} neither makes a WorkerPort nor calls bindDeclaredFunctions()`),
  );
});

test('importing the package loads nothing native', () => {
  const entries = Object.keys(packageJson.exports)
    .filter((key) => !key.endsWith('.json'))
    .map((key) => key.replace(/^\./, 'weftline'));
  assert.ok(entries.length >= 3);
  assertLoadsNothingNative(`for (const name of ${JSON.stringify(entries)}) await import(name);`);
});

test('the thread that rebalances experts loads nothing native', () => {
  assertLoadsNothingNative(`
    const { rebalanceExpertsAsync } = await import('weftline/ep/placement');
    await rebalanceExpertsAsync([new Float64Array([1, 2, 3, 4])], { replicas: 4, ranks: 2 });`);
});

function assertLoadsNothingNative(script: string): void {
  const told = `${script}
    console.log(JSON.stringify(process.report.getReport().sharedObjects.filter((path) => path.endsWith('.node'))));`;
  const { stdout, stderr } = spawnSync(process.execPath, ['--input-type=module', '--eval', told], {
    cwd: root,
    encoding: 'utf8',
  });
  assert.equal(stdout.trim(), '[]', stderr);
}

test('files that others might have made are opened in one place', () => {
  const opens =
    /\b(?:openSync|readFileSync|writeFileSync|appendFileSync|mkdtempSync|createReadStream|createWriteStream)\(/;
  noneOf(
    sources
      .filter(({ path, text }) => opens.test(text) && !openersOfTheirOwn.includes(path))
      .map(({ path }) => `${path} opens a file itself: src/core/guarded-file.ts does so`),
  );
});

test('programs write to terminals through src/core/print.ts alone', () => {
  const writes = /\b(?:stdout|stderr)\.write\(|\bconsole\.(?:log|error|warn|info|debug)\(/;
  noneOf(
    sources
      .filter(({ path, text }) => writes.test(text) && !writersOfTheirOwn.includes(path))
      .map(({ path }) => `${path} writes text that may be another's: src/core/print.ts shows it`),
  );
});

test('every source file says in its first line what it owns', () => {
  noneOf(
    sources
      .filter((file) => !/^(\/\/ |\/\*\* )/.test(file.text.replace(/^#!.*\n/, '')))
      .map((file) => `${file.path} does not begin with a comment`),
  );
});

test('no word of a machine, a registry or unfinished work', () => {
  const files = ['src', 'test', 'scripts', 'kernels', 'docs', 'examples', '.ci']
    .filter((folder) => existsSync(join(root, folder)))
    .flatMap((folder) => listFiles(folder, ['.ts', '.js', '.mjs', '.md', '.json', '.cu', '.cuh', 'run']));
  const forbidden: readonly (readonly [string, RegExp])[] = [
    ['a path of one machine', /(?<![\w.$}])\/(?:home|work|Users|root)\/\w/],
    ['a registry', /\bregistry\.[a-z]/i],
    ['unfinished work', /\b(?:TODO|FIXME|XXX)\b/],
  ];
  const problems: string[] = [];
  for (const path of ['README.md', 'package.json', '.npmrc', ...files]) {
    if (path === own) continue;
    for (const [index, line] of readFileSync(join(root, path), 'utf8').split('\n').entries()) {
      for (const [what, pattern] of forbidden) {
        if (pattern.test(line)) problems.push(`${path}:${index + 1} ${what}: ${line.trim().slice(0, 100)}`);
      }
    }
  }
  noneOf(problems);
});

test('every WEFTLINE_ variable is a setting, or one of those that the launcher passes to its ranks', () => {
  const declared = new Set<string>(Object.values(settingsTable).map((setting) => setting.env));
  const launcher = sources.find((file) => file.path === 'src/world/environment.ts');
  for (const [name] of launcher?.text.matchAll(/WEFTLINE_[A-Z0-9_]+/g) ?? []) declared.add(name);
  noneOf(
    sources.flatMap((file) =>
      [...file.text.matchAll(/\bWEFTLINE_[A-Z0-9_]+/g)]
        .filter(([name]) => !declared.has(name))
        .map(([name]) => `${file.path} reads ${name}`),
    ),
  );
});

test('the reader of sources sees each form of import and export', () => {
  const text = [
    "import { a, type B as C } from './x.ts';",
    "import type * as D from 'd';",
    "import {\n  type E,\n  type F,\n} from '../abi/e.ts';",
    "import './bare.ts';",
    "export { g as h } from './g.ts';",
    "export async function i(): Promise<void> { await import('./late.ts'); }",
    'export const j = 1;',
    'const k = 2;',
    'export { k as l };',
    'export abstract class M {}',
    'export interface N {}',
  ].join('\n');
  const file = parseSource('src/core/sample.ts', text);
  assert.deepEqual(
    file.imports.map((line) => [line.target, line.names.join(' '), line.typeOnly]),
    [
      ['src/core/x.ts', 'a B', false],
      ['d', '*', true],
      ['src/abi/e.ts', 'E F', true],
      ['src/core/g.ts', 'g', false],
      ['src/core/bare.ts', '*', false],
      ['src/core/late.ts', '*', false],
    ],
  );
  assert.deepEqual(file.exports, ['i', 'j', 'M', 'N', 'l']);
});

test('the search for cycles finds those that load and those of types alone', () => {
  const a = parseSource('src/core/a.ts', "import { b } from './b.ts';");
  const b = parseSource('src/core/b.ts', "import { c } from './c.ts';");
  const c = parseSource('src/core/c.ts', "import { a } from './a.ts';");
  const typed = parseSource('src/core/c.ts', "import type { a } from './a.ts';");
  const other = parseSource('src/core/c.ts', "import type { d } from './d.ts';");
  const cycle = ['src/core/a.ts -> src/core/b.ts -> src/core/c.ts -> src/core/a.ts'];
  assert.deepEqual(findCycles([a, b, c]), cycle);
  assert.deepEqual(findCycles([a, b, typed]), cycle);
  assert.deepEqual(findCycles([a, b, other]), []);
});

/** Depth first over imports, those of types included; each cycle is reported where it closes. */
function findCycles(files: readonly SourceFile[]): string[] {
  const byPath = new Map(files.map((file) => [file.path, file]));
  const done = new Set<string>();
  const cycles: string[] = [];
  const visit = (path: string, trail: readonly string[]): void => {
    const at = trail.indexOf(path);
    if (at !== -1) cycles.push([...trail.slice(at), path].join(' -> '));
    if (at !== -1 || done.has(path)) return;
    for (const line of byPath.get(path)?.imports ?? []) {
      if (byPath.has(line.target)) visit(line.target, [...trail, path]);
    }
    done.add(path);
  };
  for (const file of files) visit(file.path, []);
  return cycles;
}
