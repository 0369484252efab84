// Whatever another user puts where the library opens a file: it is not followed, not waited for, not believed.
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import {
  chmodSync,
  chownSync,
  existsSync,
  linkSync,
  lstatSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  statSync,
  symlinkSync,
  utimesSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { basename, dirname, join } from 'node:path';
import test, { type TestContext } from 'node:test';
import { readTableFile } from '#lib/collectives/algorithm-table.js';
import { openGuarded, readInput, replaceFile, writeOutput } from '#lib/core/guarded-file.js';
import { readBundle, writeBundle } from '#lib/device/cuda/jit/aot-bundle.js';
import { CubinCache } from '#lib/device/cuda/jit/cubin-cache.js';
import { readUserText } from '#lib/device/cuda/kernel.js';
import { readModelConfig } from '#lib/programs/moe/checkpoint/model-folder.js';
import { SafetensorsWriter } from '#lib/programs/moe/safetensors-file.js';
import { collectTrace } from '#lib/programs/cli/trace-command.js';
import { createTraceFile, partPath, reserve, RingSink } from '#lib/tracing/trace-rings.js';
import { openSharedFile } from '#lib/windows/shared-file.js';
import { noteFailure } from '#lib/world/failure-log.js';
import { removeStaleFiles } from '#lib/world/shared-memory-files.js';

const OTHER = 65_534;
const isRoot = process.geteuid?.() === 0;

function folderOf(t: TestContext): string {
  const folder = mkdtempSync(join(tmpdir(), 'weftline-planted-'));
  t.after(() => rmSync(folder, { recursive: true }));
  return folder;
}

/** Puts something else where a good file was: a link to it, a pipe, and, as root, the same file of another user. */
const plants: Readonly<Record<string, (path: string) => void>> = {
  link: (path) => {
    const good = join(dirname(path), `.elsewhere-${basename(path)}`);
    renameSync(path, good);
    symlinkSync(good, path);
  },
  pipe: (path) => {
    rmSync(path);
    assert.equal(spawnSync('mkfifo', ['-m', '600', path]).status, 0);
  },
  ...(isRoot ? { 'file of another user': (path: string) => chownSync(path, OTHER, OTHER) } : {}),
};

const bundled = { name: 'none', architecture: 'sm_90a', sources: 's' };

/** Makes a good file of each kind; opens it, and says whether it was taken for good. */
const predicted: Readonly<
  Record<string, (folder: string) => { readonly path: string; readonly isTaken: () => boolean }>
> = {
  'a part of a trace': (folder) => {
    const file = join(folder, 't.json');
    const path = partPath(file, 'another', 7);
    const who = { pid: 7, rank: 0, size: 1, host: 'another', program: 'x', launcher: 5 };
    RingSink.claim(createTraceFile(path, who), 'main')!.begin('call', 1, 'x');
    return {
      path,
      isTaken: () => {
        rmSync(file, { force: true });
        return attempt(() => collectTrace(file).isWritten);
      },
    };
  },
  'the file of a traced process': (folder) => {
    const path = join(folder, 'part');
    createTraceFile(path, { pid: 7, rank: 0, size: 1, host: 'another', program: 'x', launcher: 5 });
    return { path, isTaken: () => attempt(() => reserve(path, 0, 4096)) };
  },
  'a kernel of the cache': (folder) => {
    const cache = new CubinCache(folder);
    assert.ok(cache.write('k', Uint8Array.of(1)));
    return { path: join(folder, 'kernels/k/kernel.cubin'), isTaken: () => cache.read('k') !== undefined };
  },
  'the hash of a kernel of the cache': (folder) => {
    const cache = new CubinCache(folder);
    assert.ok(cache.write('k', Uint8Array.of(1)));
    return { path: join(folder, 'kernels/k/kernel.cubin.sha256'), isTaken: () => cache.read('k') !== undefined };
  },
  'the manifest of a bundle': (folder) => {
    writeBundle(folder, 'c', []);
    const path = join(folder, 'weftline-kernels.json');
    return { path, isTaken: () => attempt(() => readBundle(folder, bundled) === undefined) };
  },
  'a kernel of a bundle': (folder) => {
    const file = { file: 'sample.cu', constants: {} } as never;
    writeBundle(folder, 'c', [{ ...bundled, file, values: {}, cubin: Uint8Array.of(1) }]);
    const path = join(
      folder,
      readdirSync(folder).find((name) => name.endsWith('.cubin'))!,
    );
    return { path, isTaken: () => attempt(() => readBundle(folder, { ...bundled, name: 'sample.cu' }) !== undefined) };
  },
  'the memory of a job': (folder) => {
    const path = join(folder, 'memory');
    writeFileSync(path, 'four', { mode: 0o600 });
    return { path, isTaken: () => attempt(() => openSharedFile(path, 4) > 0) };
  },
  'the log of failures': (folder) => {
    const path = join(folder, 'failures');
    writeFileSync(path, '', { mode: 0o600 });
    return { path, isTaken: () => noteFailure(path, { rank: 0, time: 1, because: [] }) !== undefined };
  },
};

/** An error means that it was not taken; the words of Node's own are none of ours. */
function attempt(take: () => boolean): boolean {
  try {
    return take();
  } catch (error) {
    assert.match((error as { code: string }).code, /^WL_/, String(error));
    return false;
  }
}

for (const [what, make] of Object.entries(predicted)) {
  test(`${what} is taken from this user only, and through no link or pipe`, (t) => {
    for (const [kind, plant] of Object.entries(plants)) {
      const { path, isTaken } = make(folderOf(t));
      assert.ok(isTaken(), 'what this user made is taken');
      plant(path);
      // A folder of another user may hold files of that user: here it is this user's.
      assert.ok(!isTaken(), kind);
    }
  });
}

test('what others may write to is not run', (t) => {
  const folder = folderOf(t);
  const cache = new CubinCache(folder);
  const before = process.umask(0);
  try {
    assert.ok(cache.write('k', Uint8Array.of(1)));
    writeBundle(join(folder, 'bundle'), 'c', []);
  } finally {
    process.umask(before);
  }
  const modes = ['kernels', 'kernels/k', 'kernels/k/kernel.cubin', 'bundle/weftline-kernels.json'].map(
    (name) => statSync(join(folder, name)).mode & 0o777,
  );
  assert.deepEqual(modes, [0o700, 0o700, 0o600, 0o644], 'whatever the umask');
  for (const name of ['kernels/k/kernel.cubin', 'kernels/k', 'kernels']) {
    const path = join(folder, name);
    const { mode } = statSync(path);
    assert.ok(cache.read('k'));
    chmodSync(path, 0o777);
    assert.equal(cache.read('k'), undefined, name);
    chmodSync(path, mode);
  }
  // A cache of an earlier version, made by a loose umask, is used again.
  chmodSync(join(folder, 'kernels'), 0o775);
  assert.ok(cache.write('k', Uint8Array.of(2)));
  assert.ok(cache.read('k'));
  chmodSync(join(folder, 'bundle/weftline-kernels.json'), 0o666);
  const message = /weftline-kernels\.json, which will run: it has mode 0666.*chmod go-w/;
  assert.throws(() => readBundle(join(folder, 'bundle'), bundled), { code: 'WL_FILE', message });
});

test('a cache is not written through the link of another', (t) => {
  const folder = folderOf(t);
  mkdirSync(join(folder, 'victim'));
  symlinkSync(join(folder, 'victim'), join(folder, 'kernels'));
  assert.equal(new CubinCache(folder).write('k', Uint8Array.of(1)), false);
  assert.deepEqual(readdirSync(join(folder, 'victim')), []);
});

test('a file that the user names may be a link, but no pipe of somebody else', (t) => {
  const folder = folderOf(t);
  const at = (name: string): string => join(folder, name);
  writeFileSync(at('text'), '{}');
  symlinkSync(at('text'), at('link'));
  assert.equal(spawnSync('mkfifo', [at('config.json')]).status, 0);
  assert.equal(readInput(at('link')).toString(), '{}');
  assert.throws(() => readInput(at('text'), 1), { code: 'WL_FILE', message: /has more than 1 B/ });
  const pipe = at('config.json');
  const readers = [
    () => readInput(pipe),
    () => collectTrace(pipe),
    () => readTableFile(pipe),
    () => readModelConfig(folder),
    () => readUserText({ file: pipe, kernels: {} }),
  ];
  for (const read of readers) assert.throws(read, { code: /^WL_FILE/ });
  assert.equal(readInput('/proc/self/stat').includes(`${process.pid} (`), true, 'also files that tell no size');
});

test('output replaces what has its name, and follows no link of another', (t) => {
  const folder = folderOf(t);
  const at = (name: string): string => join(folder, name);
  const written = (name: string): string => {
    writeOutput(at(name), 'new');
    return readFileSync(at(name), 'utf8');
  };
  writeFileSync(at('victim'), 'kept', { mode: 0o600 });
  linkSync(at('victim'), at('second name'));
  assert.equal(written('second name'), 'new');
  assert.equal(readFileSync(at('victim'), 'utf8'), 'kept');
  assert.equal(statSync(at('second name')).mode & 0o777, 0o600, 'the mode stays');
  symlinkSync(at('second name'), at('own link'));
  assert.equal(written('own link'), 'new');
  assert.ok(lstatSync(at('own link')).isSymbolicLink());
  mkdirSync(at('deep/er'), { recursive: true });
  symlinkSync(at('deep/er'), at('folder'));
  symlinkSync('../new', at('deep/er/relative'));
  symlinkSync('folder/relative', at('chain'));
  assert.equal(written('chain'), 'new', 'links to links, and to what is not there yet');
  assert.deepEqual(readdirSync(at('deep')).toSorted(), ['er', 'new'], '".." behind a link is where the link leads');
  symlinkSync('endless', at('endless'));
  assert.throws(() => written('endless'), { code: 'WL_FILE', message: /is a symbolic link behind 40 others/ });
  assert.equal(spawnSync('mkfifo', [at('pipe')]).status, 0);
  assert.throws(() => written('pipe'), { code: 'WL_FILE', message: /is a named pipe/ });
  writeOutput('/dev/null', 'new');
  if (isRoot) {
    symlinkSync(at('victim'), at('link'));
    assert.equal(spawnSync('chown', ['-h', `${OTHER}`, at('link')]).status, 0);
    assert.throws(() => written('link'), { code: 'WL_FILE', message: /is a symbolic link of user 65534/ });
    symlinkSync('link', at('own link to it'));
    assert.throws(() => written('own link to it'), { code: 'WL_FILE', message: /link is a symbolic link of user/ });
    writeFileSync(at('of another'), 'old');
    chmodSync(at('of another'), 0o777);
    chownSync(at('of another'), OTHER, OTHER);
    assert.equal(written('of another'), 'new');
    assert.equal(statSync(at('of another')).mode & 0o777, 0o666 & ~process.umask(), 'not what another chose');
  }
  symlinkSync(at('victim'), at('draft'));
  replaceFile(at('draft'), 'new');
  assert.ok(lstatSync(at('draft')).isFile());
  assert.equal(readFileSync(at('victim'), 'utf8'), 'kept');
  const left = readdirSync(folder).filter((name) => name.startsWith('.'));
  assert.deepEqual(left, []);
  assert.throws(() => openGuarded(at('none'), { owner: 'anyone' }), { code: 'ENOENT' });
});

test('a model that is written by parts goes through no link or pipe', async (t) => {
  const plan = { path: join(folderOf(t), 'm'), tensors: {}, unique: 'job' };
  const partial = `${plan.path}.job.partial`;
  const victim = `${plan.path}.victim`;
  writeFileSync(victim, 'kept');
  symlinkSync(victim, partial);
  await assert.rejects(SafetensorsWriter.attach(plan), { code: 'WL_FILE' });
  {
    await using writer = await SafetensorsWriter.create(plan);
    await writer.commit();
  }
  assert.equal(spawnSync('mkfifo', [partial]).status, 0);
  await assert.rejects(SafetensorsWriter.attach(plan), { code: 'WL_FILE' });
  await using writer = await SafetensorsWriter.create(plan);
  await writer.commit();
  assert.equal(readFileSync(victim, 'utf8'), 'kept');
});

test('stale names in /dev/shm that are links, pipes or of others stay, and nothing waits for them', (t) => {
  const folder = folderOf(t);
  const at = (name: string): string => join(folder, `weftline-${name}`);
  writeFileSync(join(folder, 'victim'), 'kept');
  symlinkSync(join(folder, 'victim'), at('link'));
  assert.equal(spawnSync('mkfifo', [at('pipe')]).status, 0);
  writeFileSync(at('old'), '');
  for (const name of ['old', 'pipe']) utimesSync(at(name), 1, 1);
  const others = isRoot ? [at('of another')] : [];
  for (const path of others) {
    writeFileSync(path, '');
    chownSync(path, OTHER, OTHER);
  }
  assert.deepEqual(removeStaleFiles({ folder, now: Date.now() + 120_000 }), [at('old')]);
  for (const path of [at('link'), at('pipe'), ...others]) assert.ok(existsSync(path), path);
});
