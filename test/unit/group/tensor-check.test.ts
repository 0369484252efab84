import assert from 'node:assert/strict';
import test from 'node:test';
import { CpuDevice, type Device, type DType, Tensor } from 'weftline';
import { checkTensor, rowAlignment } from '#lib/group/tensor-check.js';

/** A tensor of a GPU's memory, which no test touches. */
function gpuTensor(dtype: DType, shape: readonly number[], byteOffset = 0): { device: Device; tensor: Tensor } {
  const device = { kind: 'cuda' } as Device;
  const storage = { device, address: 0x7f00_0000_0000, bytes: 4096, disposed: false, [Symbol.dispose]: () => {} };
  return { device, tensor: new Tensor(storage, dtype, shape, byteOffset) };
}

test('rows of a GPU must begin where its copy engine can, since anything else would lose the device', () => {
  const rule = { dtype: ['bf16'] as const, shape: ['T', 8], alignment: rowAlignment(16) };
  const whole = gpuTensor('bf16', [5, 8]);
  checkTensor('x', whole.tensor, { ...rule, device: whole.device });
  checkTensor('x', whole.tensor.slice(1, 5), { ...rule, device: whole.device });
  const { device, tensor } = gpuTensor('bf16', [33]);
  const shifted = tensor.slice(1, 33).reshape([4, 8]);
  assert.throws(() => checkTensor('x', shifted, { ...rule, device }), {
    code: 'WL_INVALID_ARGUMENT',
    message: /Invalid x: expected .* at a multiple of 16 bytes.*, got "a view that begins at byte 2"/,
  });
  const short = gpuTensor('fp8e4m3', [3, 24]);
  const fp8Rule = { device: short.device, dtype: ['fp8e4m3'] as const, shape: ['T', 24], alignment: rowAlignment(24) };
  checkTensor('x', short.tensor.slice(1, 3), fp8Rule);
});

test('elements of a GPU must begin at a multiple of their size', () => {
  const { device, tensor } = gpuTensor('f32', [4], 2);
  assert.throws(() => checkTensor('w', tensor, { device, dtype: ['f32'], shape: [4] }), /a multiple of 4 bytes/);
});

test('CPU ranks take rows that begin anywhere', async () => {
  await using device = await CpuDevice.create();
  const flat = device.empty('bf16', [33]);
  const rule = { device, dtype: ['bf16'] as const, shape: [4, 8], alignment: rowAlignment(16) };
  checkTensor('x', flat.slice(1, 33).reshape([4, 8]), rule);
});
