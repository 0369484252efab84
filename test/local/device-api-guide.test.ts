// The kernels of docs/guides/device-api.md compile with nvcc without a warning, and calls at no level do not. No GPU needed.
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import test, { after } from 'node:test';
import { fileURLToPath } from 'node:url';
import { compileFlags } from '#lib/device/cuda/device-properties.js';
import { kernelFolder } from '#lib/device/cuda/jit/cubin-cache.js';
import { nixlHeaderKernels, nixlKernels, warpKernels } from './support/nixl-kernels.ts';
import { extractCodeBlocks } from './documentation/code-blocks.ts';
import { sampled } from '../support/extent.ts';

const noCompiler = spawnSync('nvcc', ['--version']).status === 0 ? false : 'there is no nvcc';
const guide = fileURLToPath(new URL('../../../docs/guides/device-api.md', import.meta.url));
const kernels = extractCodeBlocks('docs/guides/device-api.md', readFileSync(guide, 'utf8')).filter(
  ({ language }) => language === 'cuda',
);
const folder = mkdtempSync(join(tmpdir(), 'weftline-guide-'));
after(() => rmSync(folder, { recursive: true, force: true }));

function compile(code: string, architecture = 'sm_90a'): { readonly ok: boolean; readonly said: string } {
  const path = join(folder, 'kernel.cu');
  writeFileSync(path, code);
  const include = join(kernelFolder(), 'include');
  const flags = [...compileFlags(architecture), '-Werror', 'all-warnings', '-I', include, '-cubin', '-o', `${path}bin`];
  const { status, stderr, stdout } = spawnSync('nvcc', [...flags, path], { encoding: 'utf8' });
  return { ok: status === 0, said: stdout + stderr };
}

test('the guide shows kernels', () => assert.ok(kernels.length >= 4));

for (const { line, code } of kernels) {
  test(`docs/guides/device-api.md:${line} compiles`, { skip: noCompiler }, () => {
    const { ok, said } = compile(code);
    assert.ok(ok, said);
  });
}

for (const [what, code] of Object.entries({ nixlKernels, nixlHeaderKernels, warpKernels })) {
  for (const architecture of sampled(['sm_90a', 'sm_80'], 1)) {
    test(`${what} compile for ${architecture} by NIXL's names`, { skip: noCompiler }, () => {
      const { ok, said } = compile(code, architecture);
      assert.ok(ok, said);
    });
  }
}

test(
  "kernels in the order of NIXL's header do not compile with that of its guide, and the other way round",
  { skip: noCompiler },
  () => {
    const asGuide = compile(nixlHeaderKernels.replace('nixl_device.cuh', 'nixl_guide.cuh'));
    assert.equal(asGuide.ok, false);
    const asHeader = compile(nixlKernels.replace('nixl_guide.cuh', 'nixl_device.cuh'));
    assert.equal(asHeader.ok, false);
    assert.match(asHeader.said, /deleted function/);
    const both = compile('#include "nixl_device.cuh"\n#include "nixl_guide.cuh"\n');
    assert.match(both.said, /another order of arguments than nixl_device\.cuh: include one of them/);
  },
);

test('a level of NIXL that weftline lacks does not compile', { skip: noCompiler }, () => {
  const call = 'nixlGpuReadSignal<static_cast<nixl_gpu_level_t>(3)>(counter)';
  const code = `#include "nixl_device.cuh"\nextern "C" __global__ void k(uint64_t* counter) { *counter = ${call}; }\n`;
  const { ok, said } = compile(code);
  assert.equal(ok, false);
  assert.match(said, /name who makes this call together/);
});

function kernel(call: string): string {
  return `#include "weftline/weftline.cuh"\nextern "C" __global__ void k(weftline::Request r) { weftline::${call}; }\n`;
}

test('a call without a level, or at an invalid one, does not compile', { skip: noCompiler }, () => {
  const calls = [
    'put(r, 0, 0, 8)',
    'signal(r, 0, 1)',
    'flush(r)',
    'wait(nullptr, 1, nullptr)',
    'readSignal(nullptr)',
    'putShare(r, 0, 0, 8, 0, 1)',
    'putWord(r, 0, 1, 1)',
    'waitWord(nullptr, 1, *static_cast<weftline::u64*>(nullptr), nullptr)',
    'putWithSignal(r, 0, 0, 8, r, 0, 1)',
  ];
  for (const call of sampled(calls, 2)) {
    const { ok, said } = compile(kernel(call));
    assert.equal(ok, false, call);
    assert.match(said, /name who makes this call together/);
  }
  assert.equal(compile(kernel('put<32>(r, 0, 0, 8)')).ok, false);
  assert.ok(compile(kernel('put<weftline::Level::Warp>(r, 0, 0, 8)'), 'sm_80').ok);
});

const noHostCompiler = spawnSync('g++', ['--version']).status === 0 ? false : 'there is no g++';

test('all threads that poll a signal together see the same value', { skip: noHostCompiler }, () => {
  const headers = join(kernelFolder(), 'include', 'weftline');
  const level = readFileSync(join(headers, 'level.cuh'), 'utf8').replace('#include "weftline/types.cuh"', '');
  const signal = readFileSync(join(headers, 'device-api', 'signal.cuh'), 'utf8');
  const readSignal = /template <Level level[^\n]*\n[^\n]* readSignal\([\s\S]*?\n}\n/.exec(signal);
  assert.ok(readSignal !== null);
  const harness = readFileSync(new URL('../../../test/local/support/read-signal.cpp', import.meta.url), 'utf8')
    .replace('// LEVEL', level.replace('#pragma once', ''))
    .replace('// READ_SIGNAL', `namespace weftline {\n${readSignal[0]}\n}`);
  const path = join(folder, 'read-signal.cpp');
  writeFileSync(path, harness);
  const built = spawnSync('g++', ['-std=c++20', '-pthread', '-o', `${path}.out`, path], { encoding: 'utf8' });
  assert.equal(built.status, 0, built.stderr);
  assert.equal(spawnSync(`${path}.out`, { encoding: 'utf8', timeout: 60_000 }).stdout, '0 0\n');
});
