// What a program sees of the package, read from the declarations that are built: each object can be closed by name.
import assert from 'node:assert/strict';
import test from 'node:test';
import { publicClasses } from './public-declarations/declarations.ts';

const classes = publicClasses();

test('the declarations of the public classes are found', () => {
  const names = classes.map(({ name }) => name);
  for (const name of ['EpBuffer', 'CpuDevice', 'World', 'Transport', 'Agent', 'DeviceHost', 'WeftlineError']) {
    assert.ok(names.includes(name), name);
  }
});

test('what `await using` closes has a method that does the same on Node 20', () => {
  const enders = ['close', 'finalize', 'release', 'dispose'];
  const wrong = classes
    .filter(({ members }) => members.some(({ name }) => /^\[Symbol\.(?:async)?[dD]ispose\]$/.test(name)))
    .filter(({ members }) => !members.some(({ name }) => enders.includes(name)))
    .map(({ file, name }) => `${file}: ${name} has none of ${enders.join(', ')}`);
  assert.deepEqual(wrong, []);
});
