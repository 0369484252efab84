// The guest's kernel and its modules: Debian's current kernel package, downloaded and unpacked into a cache folder, never
// installed.
import { copyFileSync, existsSync, mkdirSync, mkdtempSync, readdirSync, renameSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import { run } from './run.mjs';

/** Depends on the current kernel. Its variants for clouds have no RDMA. */
const CURRENT_KERNEL = 'linux-image-amd64';

/** What the guest needs: its root from the host, devices for network tests, and RDMA over them. */
const MODULES = [
  'virtio_pci',
  '9pnet_virtio',
  '9p',
  'overlay',
  'veth',
  'dummy',
  'sch_netem',
  'ib_uverbs',
  'rdma_ucm',
  // Without it "rdma link add" finds no such file or directory.
  'crc32_generic',
  'rdma_rxe',
];

/** Name of the package with the current kernel: linux-image-6.1.0-56-amd64. */
function currentPackage() {
  const text = run('apt-cache', ['depends', '--important', CURRENT_KERNEL]);
  const name = /^\s*Depends: (linux-image-\d\S*)$/m.exec(text)?.[1];
  if (name === undefined)
    throw new Error(`apt knows no kernel that ${CURRENT_KERNEL} depends on: run "apt-get update"`);
  return name;
}

/** Version of the package that apt would download: the same name gets new contents. */
function candidateOf(name) {
  const version = /^Version: (\S+)$/m.exec(run('apt-cache', ['show', '--no-all-versions', name]))?.[1];
  if (version === undefined) throw new Error(`apt knows no version of ${name}: run "apt-get update"`);
  return version;
}

/**
 * The newest kernel that is in the cache, or that apt offers: a folder with `vmlinuz` and `modules/`, in which
 * `modules/order` lists the files in the order to load them.
 */
export function prepareKernel(cache) {
  let name;
  let version;
  try {
    name = currentPackage();
    version = candidateOf(name);
  } catch (error) {
    // Without package lists, what was downloaded before will do.
    const [newest] = cachedKernels(cache).toReversed();
    if (newest === undefined) throw error;
    return newest;
  }
  const folder = join(cache, `${name}_${version.replaceAll(':', '%3a')}`);
  if (!existsSync(folder)) download(cache, folder, name, version);
  return folder;
}

/** Fails unless there is a kernel in the cache. Downloads nothing. */
export function requireKernel(cache) {
  if (cachedKernels(cache).length > 0) return;
  throw new Error(`no kernel in ${cache}: run "npm run soft-roce -- --prepare", which downloads some 70 MB`);
}

function cachedKernels(cache) {
  if (!existsSync(cache)) return [];
  return readdirSync(cache)
    .filter((entry) => entry.startsWith('linux-image-'))
    .toSorted((a, b) => a.localeCompare(b, 'en', { numeric: true }))
    .map((entry) => join(cache, entry));
}

function download(cache, folder, name, version) {
  mkdirSync(cache, { recursive: true });
  const making = mkdtempSync(join(cache, 'making-'));
  try {
    console.error(`soft-roce: downloading ${name} ${version}`);
    run('apt-get', ['download', `${name}=${version}`], { cwd: making });
    const [file] = readdirSync(making).filter((entry) => entry.endsWith('.deb'));
    const root = join(making, 'root');
    run('dpkg-deb', ['--extract', join(making, file), root]);
    const release = name.slice('linux-image-'.length);
    const kernel = join(making, 'kernel');
    mkdirSync(join(kernel, 'modules'), { recursive: true });
    copyFileSync(join(root, 'boot', `vmlinuz-${release}`), join(kernel, 'vmlinuz'));
    copyModules(root, release, join(kernel, 'modules'));
    // Whoever is second finds the folder of the first.
    if (!existsSync(folder)) renameSync(kernel, folder);
  } finally {
    rmSync(making, { recursive: true, force: true });
  }
}

/** Copies the modules and what they depend on, with a number in front of each that says when it is loaded. */
function copyModules(root, release, folder) {
  run('depmod', ['-b', root, release]);
  const files = [];
  for (const module of MODULES) {
    const lines = run('modprobe', ['-d', root, '-S', release, '--show-depends', module]).split('\n');
    for (const line of lines) {
      const file = /^insmod (\S+)/.exec(line)?.[1];
      if (file !== undefined && !files.includes(file)) files.push(file);
    }
  }
  for (const [index, file] of files.entries()) {
    const name = file.slice(file.lastIndexOf('/') + 1);
    copyFileSync(file, join(folder, `${String(index).padStart(2, '0')}-${name}`));
  }
}
