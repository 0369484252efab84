// Tensors as a program without types may ask for them: what is no element type, no shape, no value is named.
import assert from 'node:assert/strict';
import test from 'node:test';
import { CpuDevice, openDevice } from 'weftline';
import { dequantizeRows, quantizeRows } from 'weftline/ep';
import { join } from 'weftline/world';
import { withCode } from '../../support/with-code.ts';
import { chooseDevice } from '#lib/device/device-choice.js';

const invalid = (words: RegExp): ReturnType<typeof withCode> => withCode('WL_INVALID_ARGUMENT', words);

/** As a program without types would pass it. */
function as(value: unknown): never {
  return value as never;
}

test('values are of the typed array that holds the elements, and of no other', async () => {
  const device = await CpuDevice.create({ addressSpaceMiB: 16 });
  const wrong: readonly (readonly [dtype: unknown, values: unknown, words: RegExp])[] = [
    ['f32', [1, 2], /values: expected a Float32Array, as elements of f32 are held, got \[1, 2\]/],
    ['f32', new Float64Array(2), /expected a Float32Array.* got Float64Array/],
    ['f32', new Uint8Array(2), /expected a Float32Array/],
    ['f32', 'ab', /expected a Float32Array/],
    ['bf16', new Float32Array(2), /expected a Uint16Array of bit patterns, as elements of bf16 are held/],
    ['i64', new Int32Array(2), /expected a BigInt64Array/],
    ['i32', undefined, /expected an Int32Array/],
    ['i32', null, /Int32Array.* got null/],
  ];
  for (const [dtype, values, words] of wrong) {
    await assert.rejects(device.tensor(as(dtype), [2], as(values)), invalid(words));
    await assert.rejects(device.empty(as(dtype), [2]).fromHost(as(values)), invalid(words));
  }
  const bytes = await device.tensor('u8', [2], Buffer.from([1, 2]));
  assert.deepEqual([...bytes.view()], [1, 2], 'a Buffer is a Uint8Array');
  await device.close();
});

test('element types and shapes are checked before memory is taken', async () => {
  const device = await CpuDevice.create({ addressSpaceMiB: 16 });
  const used = device.space.used;
  for (const dtype of [undefined, null, 'float32', 'toString', 7, {}, ['f32']]) {
    assert.throws(() => device.empty(as(dtype), [1]), invalid(/dtype: expected one of bf16, f16, .* got/));
    await assert.rejects(device.tensor(as(dtype), [1], as(new Float32Array(1))), invalid(/dtype: /));
  }
  for (const shape of [undefined, null, 3, '3', {}, new Uint8Array(1)]) {
    assert.throws(() => device.empty('f32', as(shape)), invalid(/shape: expected an array of whole numbers, such as/));
  }
  assert.equal(device.space.used, used);
  assert.throws(() => device.empty('f32', [4]).reshape(as(4)), invalid(/shape: expected an array/));
  await device.close();
});

test('a view frees nothing', async () => {
  const device = await CpuDevice.create({ addressSpaceMiB: 16 });
  const { used } = device.space;
  const owner = device.empty('u8', [4, 4]);
  const held = device.space.used;
  for (const view of [owner.slice(0, 4), owner.reshape([16]), owner.slice(1, 2).reshape([2, 2])]) view.close();
  assert.equal(device.space.used, held);
  const view = owner.slice(1, 2);
  owner.close();
  assert.equal(device.space.used, used);
  assert.throws(() => view.view(), withCode('WL_CLOSED', /closed/));
  await device.close();
});

test('rows to be quantised, and back, are tensors', async () => {
  const device = await CpuDevice.create({ addressSpaceMiB: 16 });
  const x = await device.tensor('bf16', [1, 8], new Uint16Array(8));
  const rows = quantizeRows(device, x);
  assert.throws(() => quantizeRows(device, x, as(null)), invalid(/options of quantizeRows: expected an object/));
  assert.throws(() => quantizeRows(device, x, as({ roundscale: true })), invalid(/did you mean roundScale/));
  assert.throws(() => quantizeRows(device, x, { out: as({}) }), invalid(/out\.data: expected a fp8e4m3 tensor/));
  assert.throws(() => dequantizeRows(as(undefined), rows), invalid(/device: expected a CpuDevice/));
  assert.throws(() => dequantizeRows(device, as(undefined)), invalid(/data: expected a fp8e4m3 tensor/));
  assert.throws(() => dequantizeRows(device, { ...rows, scales: as(x) }), invalid(/scales: .* got "a bf16 tensor"/));
  assert.throws(() => dequantizeRows(device, rows, as(rows.data)), invalid(/out: expected a bf16 tensor/));
  rows.data.close();
  assert.throws(() => dequantizeRows(device, rows), invalid(/data: .* got "a closed tensor"/));
  await device.close();
});

test('a device is asked for by its kind', async () => {
  const world = await join({ environment: {} });
  for (const kind of ['gpu', 'CPU', '', 7, null, 1n]) {
    await assert.rejects(openDevice(as(kind), world), invalid(/device: expected auto, cpu, cuda, got/));
    await assert.rejects(chooseDevice(as(kind), world), invalid(/device: /));
  }
  await world.close();
});
