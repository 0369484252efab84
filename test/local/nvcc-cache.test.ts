// What is kept of compilations is used for the same content alone, whole entries alone, and never for failures.
import assert from 'node:assert/strict';
import {
  chmodSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  truncateSync,
  utimesSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import test, { type TestContext } from 'node:test';
import { Nvcc } from './support/nvcc.ts';

/** Counts its compilations in a file, and fails for a kernel that holds "wrong". */
const pretendedNvcc = (folder: string): string => `#!/bin/sh
case "$1" in
  --version) cat ${folder}/version; exit ;;
  -dryrun) echo '#$ TOP=${folder}/bin/..' >&2; exit ;;
esac
echo compiled >>${folder}/runs
for word; do
  case "$before" in -o) echo code >"$word" ;; esac
  case "$word" in *.cu) grep -q wrong "$word" && { echo 'it is wrong'; exit 2; } ;; esac
  before=$word
done
echo "said at $(wc -l <${folder}/runs)"
`;

interface Place {
  readonly folder: string;
  readonly kernel: string;
  readonly cache: string;
  /** Compiles as a process of its own would, and tells what was said and how many compilations there were in all. */
  readonly compile: (...flags: string[]) => Promise<{ said: string; runs: number }>;
}

function place(context: TestContext): Place {
  const folder = mkdtempSync(join(tmpdir(), 'weftline-nvcc-cache-'));
  context.after(() => rmSync(folder, { recursive: true, force: true }));
  for (const name of ['bin', 'include', 'headers/deep']) mkdirSync(join(folder, name), { recursive: true });
  const program = join(folder, 'bin/nvcc');
  writeFileSync(program, pretendedNvcc(folder));
  chmodSync(program, 0o755);
  writeFileSync(join(folder, 'version'), '13.0');
  writeFileSync(join(folder, 'include/cuda.h'), 'toolkit');
  writeFileSync(join(folder, 'headers/outer.cuh'), '#include "deep/inner.cuh"\n#include <cstdint>\n');
  writeFileSync(join(folder, 'headers/deep/inner.cuh'), '#pragma once\n#include "outer.cuh"\n');
  writeFileSync(join(folder, 'headers/other.cuh'), 'nobody includes it');
  const kernel = join(folder, 'kernel.cu');
  writeFileSync(kernel, '#if WEFTLINE_HOSTS\n#  include "outer.cuh"\n#endif\n');
  const cache = join(folder, 'cache/nvcc');
  const compile = async (...flags: string[]): Promise<{ said: string; runs: number }> => {
    const nvcc = new Nvcc({ program, include: join(folder, 'headers'), cache });
    try {
      const { said } = await nvcc.compile(kernel, flags);
      return { said, runs: runsIn(folder) };
    } finally {
      nvcc.close();
    }
  };
  return { folder, kernel, cache, compile };
}

function runsIn(folder: string): number {
  return readFileSync(join(folder, 'runs'), 'utf8').split('\n').length - 1;
}

test('what compiled is not compiled again, and says the same', async (context) => {
  const { cache, compile } = place(context);
  const first = await compile('-arch=sm_90a');
  assert.deepEqual(first, { said: 'said at 1\n', runs: 1 });
  assert.deepEqual(await compile('-arch=sm_90a'), first);
  assert.equal(readdirSync(cache).length, 1);
});

test('other flags, kernels, headers, compilers and toolkits are compiled', async (context) => {
  const { folder, kernel, compile } = place(context);
  const changes: [string, string][] = [
    [kernel, '#include "outer.cuh"\n'],
    [join(folder, 'headers/deep/inner.cuh'), 'changed'],
    [join(folder, 'version'), '13.1'],
    [join(folder, 'include/cuda.h'), 'another toolkit'],
  ];
  await compile('-arch=sm_90a');
  assert.equal((await compile('-arch=sm_80')).runs, 2);
  let runs = 2;
  for (const [path, text] of changes) {
    writeFileSync(path, text);
    assert.equal((await compile('-arch=sm_90a')).runs, (runs += 1), path);
    assert.equal((await compile('-arch=sm_90a')).runs, runs, path);
  }
  writeFileSync(join(folder, 'headers/other.cuh'), 'changed');
  assert.equal((await compile('-arch=sm_90a')).runs, runs, 'a header that the kernel does not name');
  process.env['NVCC_APPEND_FLAGS'] = '-G';
  context.after(() => delete process.env['NVCC_APPEND_FLAGS']);
  assert.equal((await compile('-arch=sm_90a')).runs, runs + 1, 'a variable of nvcc');
});

test('an entry that is not whole is compiled and written again', async (context) => {
  const { cache, compile } = place(context);
  await compile();
  const entry = join(cache, readdirSync(cache)[0]!);
  const whole = readFileSync(entry, 'utf8');
  const damages = [
    () => truncateSync(entry, 70),
    () => truncateSync(entry, 0),
    () => writeFileSync(entry, whole.replace('said at', 'sold at')),
  ];
  for (const [index, damage] of damages.entries()) {
    damage();
    const runs = index + 2;
    assert.deepEqual(await compile(), { said: `said at ${runs}\n`, runs });
    assert.deepEqual(await compile(), { said: `said at ${runs}\n`, runs });
  }
});

test('a failure is not kept', async (context) => {
  const { folder, kernel, cache, compile } = place(context);
  writeFileSync(kernel, 'wrong');
  for (const runs of [1, 2]) {
    await assert.rejects(compile(), { code: 'ERR_ASSERTION', message: /it is wrong/ });
    assert.equal(runsIn(folder), runs);
  }
  assert.throws(() => readdirSync(cache), { code: 'ENOENT' });
});

test('entries that nobody asked for in a long time are removed', async (context) => {
  const { cache, compile } = place(context);
  await compile('-arch=sm_80');
  await compile('-arch=sm_90a');
  const long = new Date('2020-01-01');
  const [one, other] = readdirSync(cache) as [string, string];
  utimesSync(join(cache, one), long, long);
  await compile('-arch=sm_100a');
  const left = readdirSync(cache);
  assert.equal(left.length, 2);
  assert.ok(!left.includes(one) && left.includes(other));
});

test('an include that names no header is not understood', async (context) => {
  const { kernel, compile } = place(context);
  writeFileSync(kernel, '#define HEADER "outer.cuh"\n#include HEADER\n');
  await assert.rejects(compile(), /cannot tell which header this is: #include HEADER/);
});

test('a cache that cannot be written does no harm', async (context) => {
  const { folder, compile } = place(context);
  writeFileSync(join(folder, 'cache'), 'a file');
  await compile();
  assert.equal((await compile()).runs, 2);
});
