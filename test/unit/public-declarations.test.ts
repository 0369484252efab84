// What a program sees of the package, read from the declarations that are built: everything has a comment, and each object can
// be closed by name.
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import test, { type TestContext } from 'node:test';
import { fileURLToPath } from 'node:url';
import { publicClasses, publicDeclarations } from './public-declarations/declarations.ts';

const root = fileURLToPath(new URL('../../..', import.meta.url));
const declarations = publicDeclarations();
const classes = publicClasses();

test('the declarations of the public classes are found', () => {
  const names = classes.map(({ name }) => name);
  for (const name of ['EpBuffer', 'CpuDevice', 'World', 'Transport', 'Agent', 'DeviceHost', 'WeftlineError']) {
    assert.ok(names.includes(name), name);
  }
});

test('what `await using` closes has a method that does the same on Node 20', () => {
  const wrong = classes
    .filter(({ members }) => members.some(({ name }) => /^\[Symbol\.(?:async)?[dD]ispose\]$/.test(name)))
    .filter(({ members }) => !members.some(({ name }) => name === 'close'))
    .map(({ file, name }) => `${file}: ${name} has no close()`);
  assert.deepEqual(wrong, []);
});

test('everything that the package exports has a comment', () => {
  const wrong = declarations.filter(({ comment }) => comment === '').map(({ file, name }) => `${file}: ${name}`);
  assert.ok(declarations.length > 100);
  assert.deepEqual(wrong, []);
});

test('every public method and getter has a comment', () => {
  const wrong = classes.flatMap(({ file, name, members }) =>
    members
      .filter((member) => member.isMethod && !/^\[Symbol\.|^constructor$/.test(member.name))
      // One comment speaks for all declarations of a method.
      .filter((member) => !members.some((other) => other.name === member.name && other.comment !== ''))
      .map((member) => `${file}: ${name}.${member.name}`),
  );
  assert.deepEqual(wrong, []);
});

test('the comment of every function that the package exports names its parameters', () => {
  const functions = declarations.filter(({ kind }) => kind === 'function');
  assert.deepEqual(functions.find(({ name }) => name === 'openDevice')?.parameters, ['request', 'group']);
  const wrong = functions.flatMap(({ file, name, comment, parameters }) =>
    parameters
      .filter((parameter) => !comment.includes(`@param ${parameter} `))
      .map((parameter) => `${file}: ${name}(${parameter})`),
  );
  assert.deepEqual(wrong, []);
});

test('the declarations of all entries type-check by themselves', (t) => {
  assert.equal(compilerOutput(t, { lib: ['es2022'], skipLibCheck: false }, `${root}dist/types/**/*.d.ts`), '');
});

test('results of expert parallelism are typed by what was sent', (t) => {
  const program = `${root}test/unit/public-declarations/ep-results.ts`;
  for (const exactOptionalPropertyTypes of [false, true]) {
    assert.equal(compilerOutput(t, { exactOptionalPropertyTypes }, program), '');
  }
});

/** What the compiler prints of these files under strict settings; empty when all is well. */
function compilerOutput(t: TestContext, options: object, files: string): string {
  const folder = mkdtempSync(join(tmpdir(), 'weftline-types-'));
  t.after(() => rmSync(folder, { recursive: true }));
  const compilerOptions = { target: 'es2022', types: [], strict: true, noEmit: true, module: 'nodenext', ...options };
  const config = join(folder, 'tsconfig.json');
  writeFileSync(config, JSON.stringify({ compilerOptions, include: [files] }));
  const compiler = join(root, 'node_modules/typescript/bin/tsc');
  return spawnSync(process.execPath, [compiler, '-p', config, '--pretty', 'false'], { encoding: 'utf8' }).stdout;
}
