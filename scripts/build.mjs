// Builds everything into dist/ (library, kernels) and build/test/ (compiled tests). No tool outside node_modules.
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
import { fileURLToPath } from 'node:url';

const root = fileURLToPath(new URL('..', import.meta.url));

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
  ];
  const hash = createHash('sha256').update(flags.join(' '));
  for (const name of sources) hash.update(name).update(readFileSync(folder + name));
  const key = hash.digest('hex');
  const output = `${root}dist/kernels/weftline.wasm`;
  const stamp = `${output}.sha256`;
  if (existsSync(output) && existsSync(stamp) && readFileSync(stamp, 'utf8') === key) return;
  mkdirSync(`${root}dist/kernels`, { recursive: true });
  node('node_modules/assemblyscript/bin/asc.js', 'kernels/wasm/index.ts', ...flags, '-o', `${output}.new`);
  renameSync(`${output}.new`, output);
  writeFileSync(stamp, key);
}

/** CUDA kernels travel as text, with the header of all layouts; they are compiled where they run. */
function copyCudaSources() {
  const folder = `${root}dist/kernels/cuda`;
  rmSync(folder, { recursive: true, force: true });
  cpSync(`${root}kernels/cuda`, folder, { recursive: true });
  node('dist/abi/emit.js', `${folder}/include/weftline/abi.cuh`);
}

node('node_modules/typescript/bin/tsc', '-b');
buildWasm();
copyCudaSources();
chmodSync(`${root}dist/programs/cli/main.js`, 0o755);
