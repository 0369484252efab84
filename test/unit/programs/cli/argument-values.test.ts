import assert from 'node:assert/strict';
import test from 'node:test';
import {
  byteArgument,
  decimalArgument,
  integerArgument,
  listArgument,
  switchArgument,
} from '#lib/programs/cli/argument-values.js';

test('counts take digits, exponents and suffixes in steps of 1000', () => {
  const count = integerArgument(1, 2e9);
  assert.deepEqual(['1', '1000000', '1e6', '1M', '1m', '1.5K', '2G'].map(count), [1, 1e6, 1e6, 1e6, 1e6, 1500, 2e9]);
  for (const wrong of ['', '0', '3G', '1.5', '-1', '1 K', 'K', '1KiB', '0x10', 'many', '1e400']) {
    assert.throws(() => count(wrong), /Expected an integer from 1 to 2000000000/, wrong);
  }
});

test('sizes take the same with steps of 1024', () => {
  const size = byteArgument(0, 2 ** 30);
  assert.deepEqual(['0', '65536', '64K', '64KiB', '64kb', '64k', '1M', '1G', '1e6', '0.5K', '12B'].map(size), [
    0,
    65_536,
    65_536,
    65_536,
    65_536,
    65_536,
    1 << 20,
    2 ** 30,
    1e6,
    512,
    12,
  ]);
  for (const wrong of ['', '2G', '0.3K', '1T', '-1'])
    assert.throws(() => size(wrong), /Expected a size .* 1 GiB/, wrong);
});

test('the largest size that is named is one that is taken, and so are the examples', () => {
  const segment = byteArgument(512, 65_472, { orZero: true });
  const message =
    'Expected 0 or a size from 512 bytes to 65472 bytes (63.9 KiB), such as 4096, 4K (4096 bytes) or 4e3.';
  for (const wrong of ['64K', '1', '511']) assert.throws(() => segment(wrong), { message }, wrong);
  assert.deepEqual(['0', '512'].map(segment), [0, 512]);
  assert.deepEqual(['65472', '4096', '4K', '4e3'].map(segment), [65_472, 4096, 4096, 4000]);
  assert.throws(() => byteArgument(1, 2 ** 30)('2G'), /from 1 byte to 1 GiB, such as 65536/);
  assert.throws(() => byteArgument(1, 2e9)('2G'), /from 1 byte to 2000000000 bytes \(1\.9 GiB\), such as 65536/);
});

test('decimals, switches and lists', () => {
  const decimals = ['0.5', '2', '1e2', '.01', '2.', '1e-3', '1.5E+1'];
  assert.deepEqual(decimals.map(decimalArgument(0.001, 100)), [0.5, 2, 100, 0.01, 2, 0.001, 15]);
  for (const wrong of ['0', '101', 'x', '-1', '.', '', 'e1', '1e', '0x1'])
    assert.throws(() => decimalArgument(0.001, 100)(wrong), /from 0.001 to 100/);
  assert.deepEqual(['true', '1', 'False', 'no'].map(switchArgument), [true, true, false, false]);
  assert.throws(() => switchArgument('maybe'), /true or false/);
  assert.deepEqual(listArgument(byteArgument(1, 1e9))('256, 64K,1M'), [256, 65_536, 1 << 20]);
  assert.throws(() => listArgument(byteArgument(1, 1e9))('256,,1'), /Expected a size/);
});
