import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { readdirSync, truncateSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import test from 'node:test';
import { fileURLToPath } from 'node:url';
import { CudaDevice, WeftlineError } from 'weftline';
import { KernelCompiler } from '#lib/device/cuda/jit/kernel-compiler.js';
import { readKernelText } from '#lib/device/cuda/jit/cubin-cache.js';
import { type Compiler, openNvrtc } from '#lib/native/nvrtc.js';
import { gpuTest, noGpu } from './support/gpu.js';
import { TemporaryFolder } from './support/temporary-folder.js';
import { kernelFile, kernelFiles } from '#lib/device/cuda/kernel-files.js';

const commandLine = fileURLToPath(new URL('../../../dist/programs/cli/main.js', import.meta.url));

/** The real compiler, counting. */
function counted(): { readonly compiler: Compiler; calls: number } {
  const nvrtc = openNvrtc();
  const result = {
    calls: 0,
    compiler: {
      version: nvrtc.version,
      compile: (...parameters: Parameters<Compiler['compile']>) => {
        result.calls += 1;
        return nvrtc.compile(...parameters);
      },
    },
  };
  return result;
}

test('a mistake in a kernel is shown with our file, the line and the log', { skip: noGpu }, async () => {
  using folder = new TemporaryFolder();
  const broken = kernelFile('broken.cu', {});
  const compiler = new KernelCompiler({
    architecture: 'sm_90a',
    cacheFolder: folder.path,
    openCompiler: openNvrtc,
    readText: () => ({
      ...readKernelText('self-test.cu'),
      name: 'kernels/cuda/broken.cu',
      text: '#include "weftline/wait.cuh"\nextern "C" __global__ void broken() {\n  undeclared = 1;\n}\n',
    }),
  });
  await assert.rejects(compiler.cubin(broken, {}), (error: unknown) => {
    assert.ok(error instanceof WeftlineError && error.code === 'WL_COMPILE');
    assert.match(error.message, /^broken\.cu does not compile for sm_90a with NVRTC \d+\.\d+:\n/);
    assert.match(error.message, /kernels\/cuda\/broken\.cu\(3\): error: identifier "undeclared" is undefined/);
    return true;
  });
});

test('a kernel is compiled once, and again when what is kept is damaged', { skip: noGpu }, async () => {
  using folder = new TemporaryFolder();
  const architecture = 'sm_90a';
  const nvrtc = counted();
  const create = (): KernelCompiler =>
    new KernelCompiler({ architecture, cacheFolder: folder.path, openCompiler: () => nvrtc.compiler });
  const first = create();
  const cubin = await first.cubin(kernelFiles.selfTest, {});
  await first.cubin(kernelFiles.selfTest, {});
  assert.equal(nvrtc.calls, 1);
  assert.deepEqual(Buffer.from(await create().cubin(kernelFiles.selfTest, {})), Buffer.from(cubin));
  assert.equal(nvrtc.calls, 1);

  const [key] = readdirSync(join(folder.path, 'kernels'));
  const file = join(folder.path, 'kernels', key as string, 'kernel.cubin');
  truncateSync(file, 100);
  await create().cubin(kernelFiles.selfTest, {});
  assert.equal(nvrtc.calls, 2);
  writeFileSync(file, 'something else');
  await create().cubin(kernelFiles.selfTest, {});
  assert.equal(nvrtc.calls, 3);
  await create().cubin(kernelFiles.selfTest, {});
  assert.equal(nvrtc.calls, 3);
});

test(
  'processes that compile the same kernel at the same time all get it, and leave one copy',
  { skip: noGpu },
  async () => {
    using folder = new TemporaryFolder();
    const script = fileURLToPath(new URL('processes/compile-once.js', import.meta.url));
    const children = Array.from({ length: 4 }, () =>
      spawn(process.execPath, [script, folder.path], { stdio: ['ignore', 'inherit', 'inherit'] }),
    );
    const codes = await Promise.all(children.map(async (child) => (await once(child, 'exit'))[0] as number));
    assert.deepEqual(codes, [0, 0, 0, 0]);
    assert.equal(readdirSync(join(folder.path, 'kernels')).length, 1);
  },
);

gpuTest('kernels compiled ahead of time run without NVRTC', async (device) => {
  using folder = new TemporaryFolder();
  const { major, minor } = device.properties.capability;
  const child = spawn(
    process.execPath,
    [commandLine, 'compile', '--arch', `sm_${major}${minor}`, '--hidden', '7168', '--topk', '8', '--out', folder.path],
    { stdio: ['ignore', 'ignore', 'inherit'] },
  );
  assert.equal((await once(child, 'exit'))[0], 0);
  const options = { aotFolder: folder.path, useAot: true, nvrtcPath: '/nowhere', cacheFolder: '/nowhere' };
  await using other = await CudaDevice.create(options);
  const { selfTestFill } = await other.loadKernels(kernelFiles.selfTest);
  using tensor = other.empty('i32', [2]);
  const plan = selfTestFill.plan({ grid: 1, block: 32 });
  plan.arguments.set('words', tensor.address);
  plan.arguments.set('count', 2);
  plan.arguments.set('value', 9);
  plan.launch();
  assert.deepEqual([...(await tensor.toHost())], [9, 10]);
  await using without = await CudaDevice.create({ ...options, aotFolder: '' });
  await assert.rejects(without.loadKernels(kernelFiles.selfTest), {
    code: 'WL_COMPILE',
    message: /weftline compile --arch sm_/,
  });
});
