import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import test from 'node:test';
import { fileURLToPath } from 'node:url';
import { CudaDevice, cudaDeviceCount } from 'weftline';
import { gpuTest, noGpu } from './support/gpu.js';
import { kernelFiles } from '#lib/device/cuda/kernel-files.js';

gpuTest('a device wait that expires is WL_TIMEOUT with all that is known, and the device goes on', async (device) => {
  const { selfTestWait } = await device.loadKernels(kernelFiles.selfTest);
  using flags = device.allocateHost(512);
  const words = flags.view('i32');
  const wait = selfTestWait.plan({ grid: 1, block: 32 });
  wait.arguments.set('trap', device.traps.address);
  wait.arguments.set('flag', flags.deviceAddress);
  wait.arguments.set('answer', flags.deviceAddress + 256);
  wait.arguments.set('timeoutNs', 20e6);
  wait.arguments.set('epoch', 8);
  wait.arguments.set('rank', 1);
  wait.arguments.set('peer', 3);
  wait.arguments.set('channel', 12);
  words[0] = 6;
  const start = performance.now();
  wait.launch();
  await device.stream.idle();
  assert.ok(performance.now() - start >= 19);
  assert.throws(() => device.traps.throwIfExpired((channel) => `row block ${channel}`), {
    code: 'WL_TIMEOUT',
    message: /Kernel selfTest of rank 1 waited 20 ms for rank 3 \(row block 12: expected 8, seen 6\)/,
    details: { kernel: 'selfTest', rank: 1, peer: 3, channel: 12, expected: 8, seen: 6, timeoutMs: 20 },
  });
  device.traps.throwIfExpired();
  assert.equal(words[64], 0);
  words[0] = 9;
  wait.launch();
  await device.stream.idle();
  device.traps.throwIfExpired();
  assert.equal(words[64], 8);
});

test(
  'an illegal access ends the device for the process, and every later call says what did it',
  { skip: noGpu },
  () => {
    const script = fileURLToPath(new URL('processes/lose-device.js', import.meta.url));
    const { status, stdout, stderr } = spawnSync(process.execPath, [script], { encoding: 'utf8', timeout: 60_000 });
    assert.equal(status, 0, stderr);
    const report = JSON.parse(stdout) as Record<
      string,
      { readonly code: string; readonly message: string; readonly sticky: boolean }
    >;
    const first = report['first'];
    assert.equal(first?.code, 'WL_CUDA');
    assert.match(
      first.message,
      /^cuStreamQuery failed on GPU 0 with CUDA_ERROR_ILLEGAL_ADDRESS \(700\): a kernel read or wrote/,
    );
    assert.match(
      first.message,
      /the last kernel launched was self-test\.cu:selfTestFill; the device is lost to this process/,
    );
    assert.equal(first.sticky, true);
    for (const later of ['launch', 'empty', 'upload', 'event']) {
      assert.equal(report[later]?.code, 'WL_CUDA', later);
      assert.match(
        report[later].message,
        /^GPU 0 is lost to this process since: cuStreamQuery failed .*selfTestFill/,
        later,
      );
    }
    assert.equal(report['disposed']?.code, 'none');
  },
);

test('a GPU that is not there is named', { skip: noGpu }, async () => {
  const missing = cudaDeviceCount();
  await assert.rejects(CudaDevice.create({ ordinal: missing }), {
    code: 'WL_CUDA',
    message: new RegExp(
      `cuDeviceGet failed on GPU ${missing} with CUDA_ERROR_INVALID_DEVICE \\(101\\): there is no GPU`,
    ),
  });
});
