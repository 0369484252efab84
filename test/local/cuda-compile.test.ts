// Kernel variants and every header compile with nvcc without a warning, and hot kernels do not spill. No GPU needed. The gate
// has one variant of each file for Hopper and the headers that users include; WEFTLINE_TEST_EXTENT=whole has all, for Ampere too.
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import test, { after } from 'node:test';
import { compileFlags } from '#lib/device/cuda/device-properties.js';
import { headerNames, kernelFolder } from '#lib/device/cuda/jit/cubin-cache.js';
import { isWhole } from '../support/extent.ts';
import { compilationCache, Nvcc } from './support/nvcc.ts';
import { definesOf, kernelFiles, variantName, variantsOf } from '#lib/device/cuda/kernel-files.js';

const noCompiler = spawnSync('nvcc', ['--version']).status === 0 ? false : 'there is no nvcc';
const architectures = isWhole ? ['sm_80', 'sm_90a'] : ['sm_90a'];
const include = join(kernelFolder(), 'include');
const nvcc = new Nvcc({ include, cache: compilationCache() });
const folder = mkdtempSync(join(tmpdir(), 'weftline-kernels-'));

after(() => {
  nvcc.close();
  rmSync(folder, { recursive: true, force: true });
});

/** What the compiler and its assembler say; fails the test unless it succeeds. */
async function compile(path: string, flags: readonly string[]): Promise<string> {
  const { said } = await nvcc.compile(path, [...flags, '-Werror', 'all-warnings', '-Xptxas', '-v']);
  return said;
}

/** "dispatchRows spills 8 bytes" for each kernel that spills or keeps arrays in local memory. */
function spills(said: string): string[] {
  return [...said.matchAll(/properties for (\w+)\n\s*(\d+) bytes stack frame, (\d+) bytes spill/g)]
    .filter(([, , stack, spilled]) => Number(stack) + Number(spilled) > 0)
    .map(([, name, stack, spilled]) => `${name} has a stack of ${stack} bytes and spills ${spilled}`);
}

for (const architecture of architectures) {
  for (const file of Object.values(kernelFiles)) {
    for (const values of isWhole ? variantsOf(file) : variantsOf(file).slice(-1)) {
      test(`${variantName(file, values)} for ${architecture}`, { skip: noCompiler }, async () => {
        const flags = [...compileFlags(architecture), ...definesOf(file, values)];
        const said = await compile(join(kernelFolder(), file.file), flags);
        for (const entry of Object.keys(file.kernels)) assert.match(said, new RegExp(`entry function '${entry}'`));
        if (file.hot) assert.deepEqual(spills(said), []);
      });
    }
  }
}

// Hooks stand in kernels of all these files, and a wait of each.
const traced = ['ep-', 'layer-', 'low-latency-', 'collective-'];
for (const file of Object.values(kernelFiles).filter(
  ({ file: name }) => isWhole && traced.some((part) => name.startsWith(part)),
)) {
  test(`${file.file}, traced`, { skip: noCompiler }, async () => {
    const flags = [...compileFlags('sm_90a'), ...definesOf(file, variantsOf(file).at(-1)!), '-DWEFTLINE_TRACE=1'];
    await compile(join(kernelFolder(), file.file), flags);
  });
}

// What they are for each architecture shows in the kernels.
test('each header by itself', { skip: noCompiler }, async () => {
  const headers = headerNames();
  const forUsers = ['weftline/abi.cuh', 'nixl_device.cuh'];
  for (const header of forUsers) assert.ok(headers.includes(header));
  for (const header of isWhole ? headers : forUsers) {
    const path = join(folder, `${header.replaceAll('/', '-')}.cu`);
    writeFileSync(path, `#include "${header}"\n#include "${header}"\n`);
    await compile(path, compileFlags('sm_90a'));
  }
});

test(
  'trace points leave nothing in a kernel, and stand where a definition finds them',
  { skip: noCompiler },
  async () => {
    const combine = join(kernelFolder(), 'ep-combine.cu');
    const file = Object.values(kernelFiles).find((entry) => entry.file === 'ep-combine.cu');
    assert.ok(file !== undefined);
    const [values] = variantsOf(file);
    // Without -lineinfo the code tells nothing of its text.
    const flags = ['-arch=sm_90a', '-std=c++17', ...definesOf(file, values!)];
    const build = async (name: string, text: string, more: readonly string[]): Promise<string> => {
      const source = join(folder, `${name}.cu`);
      writeFileSync(source, text);
      return (await nvcc.compile(source, [...flags, ...more])).code;
    };
    const text = readFileSync(combine, 'utf8');
    const without = text.replaceAll(/^ *WEFTLINE_TRACE_.*\n/gm, '');
    assert.notEqual(without, text);
    const points = await build('trace', text, []);
    assert.notEqual(points, await build('trace', text, ['-DWEFTLINE_TRACE=1']));
    assert.equal(points, await build('trace', without, []));
    const clock = ['-DWEFTLINE_TRACE_BEGIN(point)=__nanosleep(1)', '-DWEFTLINE_TRACE_END(point)=__nanosleep(2)'];
    assert.notEqual(points, await build('trace', text, clock));
  },
);

test('every file of kernels/cuda is in the catalogue', () => {
  const files = readdirSync(kernelFolder()).filter((name) => name.endsWith('.cu'));
  assert.deepEqual(
    Object.values(kernelFiles)
      .map((file) => file.file)
      .toSorted(),
    files.toSorted(),
  );
});

test('a spill is noticed', () => {
  const said = `ptxas info    : Function properties for a\n    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Function properties for b\n    16 bytes stack frame, 12 bytes spill stores, 12 bytes spill loads\n`;
  assert.deepEqual(spills(said), ['b has a stack of 16 bytes and spills 12']);
});
