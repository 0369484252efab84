import assert from 'node:assert/strict';
import test from 'node:test';
import { type FileProbe, findCudaLibrary } from '#lib/native/file-probe.js';

function machine(paths: readonly string[], env: Readonly<Record<string, string>> = {}): FileProbe {
  return {
    arch: 'x64',
    env,
    readText: () => undefined,
    exists: (path) => paths.includes(path),
    list: (folder) =>
      [
        ...new Set(
          paths
            .filter((path) => path.startsWith(`${folder}/`))
            .map((path) => path.slice(folder.length + 1).split('/')[0] as string),
        ),
      ].toSorted(),
    realPath: () => undefined,
  };
}

const findNvrtc = (probe: FileProbe, setting?: string): string | undefined => findCudaLibrary(probe, 'nvrtc', setting);

const toolkit = '/usr/local/cuda-13.0/targets/x86_64-linux/lib/libnvrtc.so.13';
const other = '/opt/cuda-12/lib64/libnvrtc.so.12';
const wheel = '/opt/venv/lib/python3.12/site-packages/nvidia/cuda_nvrtc/lib/libnvrtc.so.12';
const wheel13 = '/opt/venv/lib/python3.12/site-packages/nvidia/cu13/lib/libnvrtc.so.13';

test('a setting wins, be it the library or its folder, and nothing else is taken in its place', () => {
  const all = machine([toolkit, other, wheel], { CUDA_HOME: '/usr/local/cuda-13.0' });
  assert.equal(findNvrtc(all, other), other);
  assert.equal(findNvrtc(all, '/opt/cuda-12/lib64'), other);
  assert.equal(findNvrtc(all, '/nowhere'), undefined);
});

test('CUDA_HOME wins over what is installed', () => {
  assert.equal(findNvrtc(machine([toolkit, other], { CUDA_HOME: '/opt/cuda-12' })), other);
  assert.equal(findNvrtc(machine([toolkit, other], { CUDA_HOME: '/gone' })), toolkit);
});

test('Python packages are found by the active environment and by the python3 of PATH', () => {
  assert.equal(findNvrtc(machine([wheel], { VIRTUAL_ENV: '/opt/venv' })), wheel);
  assert.equal(findNvrtc(machine([wheel13, '/opt/venv/bin/python3'], { PATH: '/bin:/opt/venv/bin' })), wheel13);
  assert.equal(findNvrtc(machine([wheel])), undefined);
});

test('the highest version of a folder is taken, and never the builtins', () => {
  const folder = '/opt/t/lib64';
  const names = ['libnvrtc-builtins.so.13.0', 'libnvrtc.alt.so.13', 'libnvrtc.so', 'libnvrtc.so.12', 'libnvrtc.so.13'];
  const probe = machine(
    [...names, 'libnvrtc.so.13.0.88'].map((name) => `${folder}/${name}`),
    { CUDA_HOME: '/opt/t' },
  );
  assert.equal(findNvrtc(probe), `${folder}/libnvrtc.so.13`);
  assert.equal(findNvrtc(machine([`${folder}/libnvrtc-builtins.so.13.0`], { CUDA_HOME: '/opt/t' })), undefined);
});

test('cuBLAS is found beside NVRTC, and never taken for its helper', () => {
  const folder = '/opt/venv/lib/python3.12/site-packages/nvidia/cublas/lib';
  const env = { VIRTUAL_ENV: '/opt/venv' };
  const names = ['libcublasLt.so.12', 'libcublas.so.12', 'libnvblas.so.12'].map((name) => `${folder}/${name}`);
  assert.equal(findCudaLibrary(machine(names, env), 'cublas'), `${folder}/libcublas.so.12`);
  assert.equal(findCudaLibrary(machine([`${folder}/libcublasLt.so.12`], env), 'cublas'), undefined);
  assert.equal(findCudaLibrary(machine([toolkit]), 'cublas'), undefined);
});
