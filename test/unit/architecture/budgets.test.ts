// How large each folder may be. What grows takes the room from something else, or says why it needs more.
import assert from 'node:assert/strict';
import test from 'node:test';
import { listFiles, readSource } from './source-tree.ts';

/** The most lines and the most exported names, by folder. */
const budgets: Readonly<Record<string, readonly [lines: number, names: number]>> = {
  'src/core': [1720, 128],
  'src/abi': [2571, 207],
  'src/congestion': [450, 9],
  'src/settings': [810, 8],
  'src/native': [4540, 180],
  'src/threads': [988, 20],
  'src/tracing': [1550, 49],
  'src/metrics': [820, 20],
  'src/meeting': [1530, 51],
  'src/rails': [672, 27],
  'src/device': [4395, 117],
  'src/unpack': [2190, 29],
  'src/world': [6660, 165],
  'src/windows': [1655, 44],
  'src/transport': [15_391, 300],
  'src/agent': [19_343, 396],
  'src/kv': [1683, 42],
  'src/device-api': [2875, 48],
  'src/group': [3422, 72],
  'src/ep': [17_776, 297],
  'src/collectives': [7897, 182],
  'src/reference': [860, 28],
  'src/programs': [25_380, 532],
  'kernels/wasm': [2944, 85],
  'kernels/cuda': [13_062, 0],
  scripts: [3590, 14],
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
