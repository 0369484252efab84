// Builds everything into dist/ (library, its declarations, kernels) and build/test/ (compiled tests). No tool outside
// node_modules. With --library: dist/ only, which is what "npm start" and the package need.
import { spawnSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import {
  chmodSync,
  cpSync,
  existsSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  writeFileSync,
} from 'node:fs';
import { dirname } from 'node:path';
import { fileURLToPath } from 'node:url';
import { brotliCompressSync, constants } from 'node:zlib';
import { packageTypes } from './package-types.mjs';

const root = fileURLToPath(new URL('..', import.meta.url));
const compiler = 'node_modules/typescript/bin/tsc';
const libraryOnly = process.argv.includes('--library');
const cudaFolder = `${root}dist/kernels/cuda`;
const browserFolder = 'programs/report/html/browser';
const abiModule = `${root}build/wasm/abi.ts`;

function node(script, ...args) {
  const { status, signal } = spawnSync(process.execPath, [`${root}${script}`, ...args], {
    cwd: root,
    stdio: 'inherit',
  });
  if (status !== 0) {
    console.error(`build: ${script} ${args.join(' ')} ended with ${signal ?? `exit code ${status}`}`);
    process.exit(1);
  }
}

/**
 * Installs what a build needs where that is missing and the package is to be packed: "npm pack" works in a clean clone.
 * Returns false if there is nothing to build with, and nothing that has to be built.
 */
function haveTools() {
  if (existsSync(root + compiler)) return true;
  if (process.env['npm_lifecycle_event'] === 'prepare') {
    console.error('build: skipped, because development dependencies are not installed');
    return false;
  }
  if (process.env['npm_lifecycle_event'] !== 'prepack') {
    console.error('build: dependencies are missing: run "npm ci"');
    process.exit(1);
  }
  // A dry run of packing is no dry run of what it needs.
  const args = ['ci', '--ignore-scripts', '--include=dev', '--no-dry-run', '--no-json', '--silent'];
  const { status } = spawnSync('npm', args, { cwd: root, stdio: ['ignore', 'ignore', 'inherit'] });
  if (status !== 0) process.exit(1);
  return true;
}

/** Removes maps, and outputs whose sources are gone: the compiler leaves them, and they would be packed or tested. */
function removeStale(sources, outputs, kept) {
  if (!existsSync(root + outputs)) return;
  for (const entry of readdirSync(root + outputs, { recursive: true, encoding: 'utf8' })) {
    const name = entry.replace(/(?:\.d\.ts|\.js)(?:\.map)?$/, '');
    if (name === entry || kept.some((folder) => name.startsWith(folder))) continue;
    if (entry.endsWith('.map') || !existsSync(`${root}${sources}/${name}.ts`)) rmSync(`${root}${outputs}/${entry}`);
  }
}

/** Removes comments of programs in dist/: they are a fifth of the packed size, and declarations keep theirs. Skipped if nothing was compiled. */
function removeComments() {
  const key = createHash('sha256')
    .update(readFileSync(`${root}dist/.tsbuildinfo`))
    .digest('hex');
  const stamp = `${root}dist/.comments-removed`;
  if (existsSync(stamp) && readFileSync(stamp, 'utf8') === key) return;
  const again = ['--noCheck', '--composite', 'false', '--incremental', 'false', '--declaration', 'false'];
  node(compiler, '-p', 'src', '--removeComments', ...again);
  writeFileSync(stamp, key);
}

/** Compiles kernels/wasm into one module; skipped when neither the sources nor the flags changed. */
function buildWasm() {
  const folder = `${root}kernels/wasm/`;
  const sources = readdirSync(folder)
    .filter((name) => name.endsWith('.ts'))
    .toSorted();
  const flags = [
    '-O3',
    '--noAssert',
    '--runtime',
    'stub',
    '--enable',
    'simd',
    '--enable',
    'threads',
    '--enable',
    'bulk-memory',
    '--importMemory',
    '--sharedMemory',
    '--initialMemory',
    '1',
    '--maximumMemory',
    '65536',
    // The module "abi".
    '--lib',
    'build/wasm',
  ];
  const hash = createHash('sha256').update(flags.join(' '));
  for (const name of sources) hash.update(name).update(readFileSync(folder + name));
  hash.update(readFileSync(abiModule));
  const key = hash.digest('hex');
  const output = `${root}dist/kernels/weftline.wasm`;
  const stamp = `${root}build/weftline.wasm.sha256`;
  if (existsSync(output) && existsSync(stamp) && readFileSync(stamp, 'utf8') === key) return;
  for (const made of ['build', 'dist/kernels']) mkdirSync(root + made, { recursive: true });
  node('node_modules/assemblyscript/bin/asc.js', 'kernels/wasm/index.ts', ...flags, '-o', `${output}.new`);
  renameSync(`${output}.new`, output);
  writeFileSync(stamp, key);
}

/** CUDA kernels travel as text, with the header of all layouts; they are compiled where they run. */
function copyCudaSources() {
  rmSync(cudaFolder, { recursive: true, force: true });
  cpSync(`${root}kernels/cuda`, cudaFolder, { recursive: true });
}

/**
 * What draws the charts of reports, in the browser: Observable Plot and those parts of d3 that its charts here need, in one
 * file, with their licences. Maps, trees and named colour schemes are left out: Plot asks for one of these when it begins.
 */
function bundleChartLibrary() {
  const modules = [
    'array',
    'color',
    'format',
    'interpolate',
    'path',
    'time',
    'time-format',
    'scale',
    'selection',
    'shape',
  ];
  const read = (name, file) => {
    const folder = `${root}node_modules/${name}/`;
    const { version } = JSON.parse(readFileSync(`${folder}package.json`, 'utf8'));
    const licence = readFileSync(`${folder}LICENSE`, 'utf8').trim();
    return { code: readFileSync(`${folder}dist/${file}`, 'utf8'), notice: `${name} ${version}\n${licence}\n` };
  };
  const d3 = modules.map((name) => read(`d3-${name}`, `d3-${name}.min.js`));
  const plot = read('@observablehq/plot', 'plot.umd.min.js');
  const notices = [...d3, plot].map(({ notice }) => notice).join('\n');
  const code = [...d3.map((part) => part.code), 'd3.geoTransform = () => ({});', plot.code].join('\n');
  const text = `/*\n${notices}*/\n${code}`;
  if (/<\/script|<!--/i.test(text)) throw new Error('the chart library would end the element that it is pasted into');
  const output = `${root}dist/${browserFolder}/chart-library.js.br`;
  const stamp = `${root}build/chart-library.sha256`;
  const key = createHash('sha256').update(text).digest('hex');
  if (existsSync(output) && existsSync(stamp) && readFileSync(stamp, 'utf8') === key) return;
  writeFileSync(output, brotliCompressSync(text, { params: { [constants.BROTLI_PARAM_LGWIN]: 24 } }));
  mkdirSync(`${root}build`, { recursive: true });
  writeFileSync(stamp, key);
}

/** What drives the charts, as one text without imports that pages hold: its form must not depend on how programs are packed. */
async function bundlePageScript() {
  await esbuild.build({
    entryPoints: [`${root}dist/${browserFolder}/draw-charts.js`],
    outfile: `${root}dist/${browserFolder}/page-script.mjs`,
    bundle: true,
    format: 'esm',
    target: 'es2022',
    charset: 'utf8',
    minifyWhitespace: true,
    legalComments: 'none',
  });
}

/**
 * What sources use of zod, `#zod` for them, in one file: its 95 modules, most of them texts in other languages, are a third
 * of what importing the library would load. Names that no source writes as `z.name` are not in it.
 */
async function bundleSchemas() {
  const sources = readdirSync(`${root}src`, { recursive: true, encoding: 'utf8' })
    .filter((name) => name.endsWith('.ts'))
    .map((name) => readFileSync(`${root}src/${name}`, 'utf8'))
    .filter((text) => text.includes(" from '#zod';"));
  const names = [...new Set(sources.flatMap((text) => [...text.matchAll(/\bz\s*\.(\w+)/g)].map(([, name]) => name)))];
  const folder = `${root}node_modules/zod/`;
  const { version } = JSON.parse(readFileSync(`${folder}package.json`, 'utf8'));
  const licence = readFileSync(`${folder}LICENSE`, 'utf8').trim();
  const known = Object.keys(await import('zod'));
  // In an order that files do not change.
  const used = known.filter((name) => names.includes(name));
  const entry = [
    `import { config, ${used.map((name) => `${name} as $${name}`).join(', ')} } from 'zod';`,
    "import english from 'zod/v4/locales/en.js';",
    'config(english());',
    `export const z = { ${used.map((name) => `${name}: $${name}`).join(', ')} };`,
  ].join('\n');
  const output = `${root}dist/vendor/zod.js`;
  const stamp = `${root}build/zod.sha256`;
  const key = createHash('sha256').update(`${version} ${esbuild.version}\n${entry}`).digest('hex');
  if (existsSync(output) && existsSync(stamp) && readFileSync(stamp, 'utf8') === key) return;
  mkdirSync(`${root}build`, { recursive: true });
  await esbuild.build({
    stdin: { contents: entry, resolveDir: root },
    outfile: output,
    bundle: true,
    format: 'esm',
    target: 'node20.19',
    minify: true,
    lineLimit: 120,
    legalComments: 'none',
    banner: { js: `/*\nzod ${version}\n${licence}\n*/` },
  });
  writeFileSync(stamp, key);
}

/** The peer of a benchmark is built where it runs. */
function copyPeerSources() {
  const file = 'programs/bench/collectives/mpi-loop.c';
  cpSync(`${root}src/${file}`, `${root}dist/${file}`);
}

/** What `weftline --version` says of the build: the commit, with + where files differ from it; nothing outside a repository. */
function writeBuildFacts() {
  const git = (...args) => spawnSync('git', args, { cwd: root, encoding: 'utf8' });
  const { status, stdout } = git('rev-parse', '--short=12', 'HEAD');
  const isOwn = existsSync(`${root}.git`) && status === 0;
  const changed = isOwn && git('status', '--porcelain', '--untracked-files=no').stdout !== '';
  const facts = isOwn ? { commit: `${stdout.trim()}${changed ? '+' : ''}` } : {};
  writeFileSync(`${root}dist/build.json`, `${JSON.stringify(facts)}\n`);
}

/** What kernels share with the host: a CUDA header, and an AssemblyScript module. */
function emitAbi() {
  mkdirSync(dirname(abiModule), { recursive: true });
  node('dist/abi/emit.js', `${cudaFolder}/include/weftline/abi.cuh`, abiModule);
}

if (!haveTools()) process.exit(0);
/** Installed by now. */
const esbuild = await import('esbuild');
node(compiler, '-b', 'src', ...(libraryOnly ? [] : ['test']));
removeComments();
removeStale('src', 'dist', ['kernels/', 'types/', 'vendor/']);
removeStale('test', 'build/test', []);
const { exports } = JSON.parse(readFileSync(`${root}package.json`, 'utf8'));
packageTypes(
  root,
  Object.values(exports).flatMap(({ types }) => (types === undefined ? [] : [types.replace('./dist/types/', '')])),
);
copyCudaSources();
copyPeerSources();
bundleChartLibrary();
await bundlePageScript();
await bundleSchemas();
emitAbi();
buildWasm();
writeBuildFacts();
chmodSync(`${root}dist/programs/cli/main.js`, 0o755);
