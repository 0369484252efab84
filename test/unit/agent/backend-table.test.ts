// What it takes to add a backend of agents.
import assert from 'node:assert/strict';
import test from 'node:test';
import { backendNames } from '#lib/agent/backends/backend-table.js';
import { listFiles, readSource } from '../architecture/source-tree.ts';

const table = 'src/agent/backends/backend-table.ts';
/** It has the link of one over a transport without sockets. */
const simulation = 'src/programs/sim/job/simulated-job.ts';

test('a new backend is a folder of its own and a line of the table', () => {
  const files = listFiles('src', ['.ts']).map(readSource);
  assert.deepEqual(
    [...new Set(files.flatMap(({ path }) => folderOf(path) ?? []))].toSorted(),
    [...backendNames].toSorted(),
  );
  const outside = files.filter((file) =>
    file.imports.some(({ target }) => folderOf(target) !== undefined && folderOf(target) !== folderOf(file.path)),
  );
  assert.deepEqual(
    outside.map(({ path }) => path),
    [table, simulation],
  );
});

/** Folder of the backend that a file is part of. */
function folderOf(path: string): string | undefined {
  return /^src\/agent\/backends\/([^/]+)\//.exec(path)?.[1];
}
