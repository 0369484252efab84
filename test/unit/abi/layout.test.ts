import assert from 'node:assert/strict';
import test from 'node:test';
import { alignUp, Block, defineLayout } from '#lib/abi/layout.js';

const mixed = defineLayout('mixed', {
  flag: 'u8',
  count: 'u32',
  signs: { of: 'i32', count: 3 },
  tail: 'u8',
  address: 'u64',
  ratio: 'f32',
  bytes: { of: 'u8', count: 5 },
  total: 'u64',
});

test('defineLayout() places fields as C does and rounds the size up', () => {
  assert.deepEqual(
    { ...mixed.offset },
    { flag: 0, count: 4, signs: 8, tail: 20, address: 24, ratio: 32, bytes: 36, total: 48 },
  );
  assert.equal(mixed.size, 56);
  assert.equal(defineLayout('line', { word: 'u32' }, 64).size, 64);
  assert.equal(defineLayout('empty', {}).size, 0);
});

test('a block gives back what was set, and touches nothing else', () => {
  const buffer = new ArrayBuffer(mixed.size + 16);
  new Uint8Array(buffer).fill(0xa5);
  const block = new Block(mixed, buffer, 8);
  block.set('flag', 200);
  block.set('count', 0xffff_fffe);
  for (const [index, value] of [-1, 0, 2 ** 31 - 1].entries()) block.set('signs', value, index);
  block.set('address', 2 ** 52 + 12_345);
  block.set('ratio', 0.25);
  for (let index = 0; index < 5; index += 1) block.set('bytes', index + 1, index);
  block.set('total', Number.MAX_SAFE_INTEGER);
  assert.equal(block.get('flag'), 200);
  assert.equal(block.get('count'), 0xffff_fffe);
  assert.deepEqual(
    [0, 1, 2].map((index) => block.get('signs', index)),
    [-1, 0, 2 ** 31 - 1],
  );
  assert.equal(block.get('tail'), 0xa5);
  assert.equal(block.get('address'), 2 ** 52 + 12_345);
  assert.equal(block.get('ratio'), 0.25);
  assert.deepEqual(
    [0, 1, 2, 3, 4].map((index) => block.get('bytes', index)),
    [1, 2, 3, 4, 5],
  );
  assert.equal(block.get('total'), Number.MAX_SAFE_INTEGER);
  assert.deepEqual([...new Uint8Array(buffer, 0, 8), ...new Uint8Array(buffer, 8 + mixed.size)], Array(16).fill(0xa5));
});

test('fields are little-endian', () => {
  const block = new Block(mixed, new ArrayBuffer(mixed.size), 0);
  block.set('count', 0x0102_0304);
  block.set('address', 0x05_0607_0809);
  const bytes = (field: 'count' | 'address', length: number): number[] => {
    const copy = new ArrayBuffer(mixed.size);
    const again = new Block(mixed, copy, 0);
    again.set(field, block.get(field));
    return [...new Uint8Array(copy, mixed.offset[field], length)];
  };
  assert.deepEqual(bytes('count', 4), [4, 3, 2, 1]);
  assert.deepEqual(bytes('address', 8), [9, 8, 7, 6, 5, 0, 0, 0]);
});

test('an index outside a field is refused', () => {
  const block = new Block(mixed, new ArrayBuffer(mixed.size), 0);
  assert.throws(() => block.get('signs', 3), { code: 'WL_INTERNAL' });
  assert.throws(() => block.set('signs', 1, -1), { code: 'WL_INTERNAL' });
  assert.throws(() => block.get('count', 1), { code: 'WL_INTERNAL' });
  assert.equal(block.get('signs', 2), 0);
});

test('alignUp() gives the next multiple', () => {
  assert.deepEqual(
    [0, 1, 63, 64, 65].map((value) => alignUp(value, 64)),
    [0, 64, 64, 64, 128],
  );
  assert.equal(alignUp(2 ** 32 - 1, 65_536), 2 ** 32);
});
