// The ways to a kernel's machine code, with a compiler that is only pretended: cache, bundle, errors.
import assert from 'node:assert/strict';
import { chmodSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { isAbsolute, join } from 'node:path';
import test, { type TestContext } from 'node:test';
import { readBundle, writeBundle } from '#lib/device/cuda/jit/aot-bundle.js';
import { architectureOf, compileFlags, parseArchitecture } from '#lib/device/cuda/device-properties.js';
import { cacheKey, CubinCache, readKernelText, resolveCacheFolder } from '#lib/device/cuda/jit/cubin-cache.js';
import { KernelCompiler, type KernelCompilerOptions } from '#lib/device/cuda/jit/kernel-compiler.js';
import type { Compilation, Compiler } from '#lib/native/nvrtc.js';
import { definesOf, kernelFile, variantName, variantsOf } from '#lib/device/cuda/kernel-files.js';

const file = kernelFile(
  'sample.cu',
  {},
  { constants: { HIDDEN: { shape: 'HIDDEN', examples: [64, 128] }, SCALED: { choices: [0, 1] } } },
);
const values = { HIDDEN: 7168, SCALED: 1 };
const text = {
  name: 'kernels/cuda/sample.cu',
  text: 'kernel',
  headers: { 'weftline/a.cuh': 'a', 'weftline/b.cuh': 'b' },
};

function temporaryFolder(context: TestContext): string {
  const folder = mkdtempSync(join(tmpdir(), 'weftline-compiler-'));
  context.after(() => rmSync(folder, { recursive: true, force: true }));
  return folder;
}

interface Pretended {
  readonly seen: (readonly string[])[];
  readonly compiler: Compiler;
}

function pretend(result: Compilation = { ok: true, cubin: Uint8Array.of(1, 2, 3), log: '' }): Pretended {
  const seen: (readonly string[])[] = [];
  const compile = (_source: unknown, flags: readonly string[]): Promise<Compilation> => {
    seen.push(flags);
    return Promise.resolve(result);
  };
  return { seen, compiler: { version: '13.0', compile } };
}

function create(
  pretended: Pretended,
  options: Partial<KernelCompilerOptions> & { cacheFolder: string },
): KernelCompiler {
  return new KernelCompiler({
    architecture: 'sm_90a',
    openCompiler: () => pretended.compiler,
    readText: () => text,
    ...options,
  });
}

test('the key changes with the text, each header, the flags, the compiler and the architecture, and with nothing else', () => {
  const flags = compileFlags('sm_90a');
  const key = cacheKey(text, flags, '13.0');
  assert.match(key, /^[0-9a-f]{64}$/);
  const swapped = { 'weftline/b.cuh': 'b', 'weftline/a.cuh': 'a' };
  assert.equal(cacheKey({ ...text, headers: swapped }, flags, '13.0'), key);
  const others = [
    cacheKey({ ...text, text: 'kernel2' }, flags, '13.0'),
    cacheKey({ ...text, headers: { ...text.headers, 'weftline/a.cuh': 'A' } }, flags, '13.0'),
    cacheKey({ ...text, headers: { 'weftline/a.cuh': 'a' } }, flags, '13.0'),
    cacheKey(text, compileFlags('sm_80'), '13.0'),
    cacheKey(text, [...flags, '-DWEFTLINE_HIDDEN=1'], '13.0'),
    cacheKey(text, flags, '12.9'),
  ];
  assert.equal(new Set([key, ...others]).size, 7);
});

test('the cache lies in the folder of the setting, else where the XDG rules say', () => {
  assert.equal(resolveCacheFolder('/a', { XDG_CACHE_HOME: '/b', HOME: '/c' }), '/a');
  assert.equal(resolveCacheFolder('', { XDG_CACHE_HOME: '/b', HOME: '/c' }), '/b/weftline');
  assert.equal(resolveCacheFolder('', { XDG_CACHE_HOME: 'relative', HOME: '/c' }), '/c/.cache/weftline');
  assert.equal(resolveCacheFolder('', { HOME: '/c' }), '/c/.cache/weftline');
  assert.equal(resolveCacheFolder('here', {}), join(process.cwd(), 'here'));
  for (const HOME of ['', '.', 'relative', undefined]) {
    const folder = resolveCacheFolder('', { HOME });
    assert.ok(folder === undefined || (isAbsolute(folder) && !folder.startsWith(process.cwd())), folder);
  }
});

test('a cache without a folder keeps nothing', () => {
  const cache = new CubinCache(undefined);
  assert.equal(cache.write('k', Uint8Array.of(1)), false);
  assert.equal(cache.read('k'), undefined);
});

test('the cache gives back what was kept, and nothing that is damaged', (context) => {
  const folder = temporaryFolder(context);
  const cache = new CubinCache(folder);
  assert.equal(cache.read('k'), undefined);
  assert.equal(cache.write('k', Uint8Array.of(1, 2, 3)), true);
  assert.deepEqual([...(cache.read('k') ?? [])], [1, 2, 3]);
  // Someone else was first.
  assert.equal(cache.write('k', Uint8Array.of(4)), true);
  assert.deepEqual([...(cache.read('k') ?? [])], [1, 2, 3]);
  writeFileSync(join(folder, 'kernels/k/kernel.cubin'), 'x');
  assert.equal(cache.read('k'), undefined);
  assert.equal(cache.write('k', Uint8Array.of(5)), true);
  assert.deepEqual([...(cache.read('k') ?? [])], [5]);
  rmSync(join(folder, 'kernels/k/kernel.cubin.sha256'));
  assert.equal(cache.read('k'), undefined);
  assert.deepEqual(readdirSync(join(folder, 'kernels')), ['k']);
});

test('a cache that cannot be written only costs time', async (context) => {
  const folder = temporaryFolder(context);
  writeFileSync(join(folder, 'file'), '');
  chmodSync(join(folder, 'file'), 0o444);
  const pretended = pretend();
  const cacheFolder = join(folder, 'file');
  assert.deepEqual([...(await create(pretended, { cacheFolder }).cubin(file, values))], [1, 2, 3]);
  await create(pretended, { cacheFolder }).cubin(file, values);
  assert.equal(pretended.seen.length, 2);
});

test('a variant is compiled once per cache, also when it is asked for twice at once', async (context) => {
  const cacheFolder = temporaryFolder(context);
  const pretended = pretend();
  const compiler = create(pretended, { cacheFolder });
  await Promise.all([compiler.cubin(file, values), compiler.cubin(file, values)]);
  await create(pretended, { cacheFolder }).cubin(file, values);
  assert.deepEqual(pretended.seen, [
    ['-arch=sm_90a', '-std=c++17', '-lineinfo', '-DWEFTLINE_HIDDEN=7168', '-DWEFTLINE_SCALED=1'],
  ]);
  await compiler.cubin(file, { ...values, SCALED: 0 });
  assert.equal(pretended.seen.length, 2);
});

test('what the compiler says is in the error, and the next call tries again', async (context) => {
  const cacheFolder = temporaryFolder(context);
  const pretended = pretend({ ok: false, log: 'kernels/cuda/sample.cu(3): error: no' });
  const compiler = create(pretended, { cacheFolder });
  const message =
    'sample.cu HIDDEN=7168 SCALED=1 does not compile for sm_90a with NVRTC 13.0:\nkernels/cuda/sample.cu(3): error: no';
  await assert.rejects(compiler.cubin(file, values), { code: 'WL_COMPILE', message });
  await assert.rejects(compiler.cubin(file, values), { code: 'WL_COMPILE' });
  assert.equal(pretended.seen.length, 2);
});

test('a bundle is used before anything is compiled, and only it where that is asked', async (context) => {
  const folder = temporaryFolder(context);
  const aotFolder = join(folder, 'bundle');
  const pretended = pretend();
  const maker = create(pretended, { cacheFolder: folder });
  const cubin = Uint8Array.of(9);
  writeBundle(aotFolder, '13.0', [
    { file, values, architecture: 'sm_90a', sources: maker.sources(file, values), cubin },
  ]);
  const user = create(pretended, { cacheFolder: folder, aotFolder, useAot: true });
  assert.deepEqual([...(await user.cubin(file, values))], [9]);
  assert.equal(pretended.seen.length, 0);
  await assert.rejects(user.cubin(file, { HIDDEN: 64, SCALED: 0 }), {
    code: 'WL_COMPILE',
    message: /sample\.cu HIDDEN=64 SCALED=0; run "weftline compile --arch sm_90a --hidden 64 --out .*bundle"/,
  });
  await create(pretended, { cacheFolder: folder, aotFolder }).cubin(file, { HIDDEN: 64, SCALED: 0 });
  assert.equal(pretended.seen.length, 1);

  // Filling it again keeps the rest.
  writeBundle(aotFolder, '13.0', [
    { file, values: { HIDDEN: 64, SCALED: 0 }, architecture: 'sm_80', sources: 's', cubin: Uint8Array.of(8) },
  ]);
  assert.deepEqual([...(await create(pretended, { cacheFolder: folder, aotFolder }).cubin(file, values))], [9]);
});

test('a bundle of other sources, a damaged one and none at all are told apart', (context) => {
  const folder = temporaryFolder(context);
  const wanted = { name: variantName(file, values), architecture: 'sm_90a', sources: 'now' };
  assert.throws(() => readBundle(folder, wanted), { code: 'WL_FILE', message: /holds no compiled kernels/ });
  const compiled = { file, values, architecture: 'sm_90a', sources: 'then', cubin: Uint8Array.of(1) };
  writeBundle(folder, '13.0', [compiled]);
  assert.throws(() => readBundle(folder, wanted), { code: 'WL_COMPILE', message: /sources of another version/ });
  writeBundle(folder, '13.0', [{ ...compiled, sources: 'now' }]);
  assert.deepEqual([...(readBundle(folder, wanted) ?? [])], [1]);
  const manifest = join(folder, 'weftline-kernels.json');
  const { variants } = JSON.parse(readFileSync(manifest, 'utf8')) as { variants: { cubin: string }[] };
  assert.equal(variants.length, 1);
  writeFileSync(join(folder, variants[0]?.cubin as string), 'other');
  assert.throws(() => readBundle(folder, wanted), { code: 'WL_FILE_FORMAT' });
  rmSync(join(folder, variants[0]?.cubin as string));
  assert.throws(() => readBundle(folder, wanted), { code: 'WL_FILE_FORMAT' });
  writeFileSync(manifest, '{"schema":"weftline.kernels/9"}');
  assert.throws(() => readBundle(folder, wanted), { code: 'WL_FILE_FORMAT' });
});

test('architectures are named as compilers name them', () => {
  assert.equal(architectureOf({ major: 9, minor: 0 }), 'sm_90a');
  assert.equal(architectureOf({ major: 8, minor: 6 }), 'sm_86');
  assert.deepEqual(['sm_90', '90', 'sm_90a', 'sm_100'].map(parseArchitecture), [
    'sm_90a',
    'sm_90a',
    'sm_90a',
    'sm_100',
  ]);
  for (const name of ['', 'sm_9', 'sm_75', 'hopper', 'sm_90b']) {
    assert.throws(() => parseArchitecture(name), { code: 'WL_INVALID_ARGUMENT' });
  }
});

test('variants are all combinations; constants outside their range are refused', () => {
  assert.deepEqual(
    variantsOf(file).map((variant) => variantName(file, variant)),
    [
      'sample.cu HIDDEN=64 SCALED=0',
      'sample.cu HIDDEN=64 SCALED=1',
      'sample.cu HIDDEN=128 SCALED=0',
      'sample.cu HIDDEN=128 SCALED=1',
    ],
  );
  assert.equal(variantsOf(file, { HIDDEN: [7168], TOPK: [1, 2, 3] }).length, 2);
  for (const wrong of [
    { HIDDEN: 0, SCALED: 0 },
    { HIDDEN: 1.5, SCALED: 0 },
    { HIDDEN: 1, SCALED: 2 },
    { HIDDEN: 64 },
  ]) {
    assert.throws(() => definesOf(file, wrong), {
      code: 'WL_INVALID_ARGUMENT',
      message: /sample\.cu/,
    });
  }
});

test('the kernels that ship can be read, with all their headers', () => {
  const shipped = readKernelText('self-test.cu');
  assert.match(shipped.text, /selfTestFill/);
  for (const [name, header] of Object.entries(shipped.headers)) {
    assert.match(name, /^(?:weftline\/)?[\w-]+(?:\/[\w-]+)*\.cuh$/);
    assert.ok(header.length > 0);
  }
  for (const [, name] of Object.values(shipped.headers)
    .join('\n')
    .matchAll(/#include "([^"]+)"/g)) {
    assert.ok(name !== undefined && name in shipped.headers, name);
  }
});
