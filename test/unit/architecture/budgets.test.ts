// How large each folder may be. What grows takes the room from something else, or says why it needs more.
import assert from 'node:assert/strict';
import test from 'node:test';
import { listFiles, readSource } from './source-tree.ts';

/** By folder: the most lines, and the most exported names. */
const budgets: Readonly<Record<string, readonly [lines: number, names: number]>> = {
  'src/core': [1790, 129],
  'src/abi': [2870, 215],
  'src/congestion': [490, 10],
  'src/settings': [890, 10],
  'src/native': [5180, 207],
  'src/threads': [860, 24],
  'src/tracing': [1710, 60],
  'src/metrics': [900, 27],
  'src/meeting': [1590, 54],
  'src/rails': [730, 28],
  'src/device': [5410, 170],
  'src/unpack': [2440, 36],
  'src/world': [6950, 179],
  'src/windows': [1720, 48],
  'src/transport': [16_490, 322],
  'src/agent': [21_750, 446],
  'src/device-api': [3460, 59],
  'src/group': [3280, 74],
  'src/ep': [17_270, 348],
  'src/collectives': [8960, 203],
  'src/reference': [900, 32],
  'src/programs': [26_080, 656],
  'kernels/wasm': [3110, 88],
  'kernels/cuda': [13_110, 0],
  scripts: [3910, 16],
};

function sizeOf(folder: string): readonly [lines: number, names: number] {
  const files = listFiles(folder, ['.ts', '.mjs', '.cu', '.cuh']).map(readSource);
  const lines = files.reduce((sum, { text }) => sum + text.split('\n').length - 1, 0);
  return [lines, files.reduce((sum, { exports }) => sum + exports.length, 0)];
}

test('every folder keeps to its budget of lines and of exported names', () => {
  const problems = Object.entries(budgets).flatMap(([folder, most]) =>
    sizeOf(folder).flatMap((size, index) =>
      size <= most[index]!
        ? []
        : [`${folder} has ${size} ${['lines', 'exported names'][index]}, and its budget is ${most[index]}`],
    ),
  );
  assert.equal(problems.length, 0, `\n  ${problems.join('\n  ')}\n  CONTRIBUTING.md says when a budget is raised`);
});

test('every folder of the library has a budget', () => {
  const folders = listFiles('src', ['.ts']).map((path) => path.split('/').slice(0, -1).slice(0, 2).join('/'));
  const missing = [...new Set(folders)].filter((folder) => folder !== 'src' && !(folder in budgets));
  assert.deepEqual(missing, []);
});
