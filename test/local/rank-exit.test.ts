// Ranks that end without world.close() where no launcher of weftline serves the store, but rank 0.
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { join } from 'node:path';
import test from 'node:test';
import { fileURLToPath } from 'node:url';
import { freePort } from '../support/free-port.js';
import { folderUntilExit } from '../support/folder-until-exit.js';
import { resultOf, runRanks } from './support/run-ranks.js';

const script = fileURLToPath(new URL('./support/failing-rank.js', import.meta.url));
const unclosed = new URL('./ranks/unclosed.js', import.meta.url);
const timeout = 600_000;

/** Two ranks as torchrun starts them. */
async function runTwo(way: string) {
  const job = { WORLD_SIZE: '2', MASTER_ADDR: '127.0.0.1', MASTER_PORT: String(await freePort()) };
  return Promise.all(
    ['0', '1'].map(async (rank) => {
      const env = { ...process.env, NODE_TEST_CONTEXT: undefined, ...job, RANK: rank };
      const child = spawn(process.execPath, [script, way], { stdio: ['ignore', 'inherit', 'pipe'], env });
      let stderr = '';
      child.stderr.on('data', (chunk: Buffer) => (stderr += chunk.toString()));
      const [code] = (await once(child, 'close')) as [number | null];
      return { code, stderr };
    }),
  );
}

test(
  'a script may end without world.close(): rank 0 serves the store until the others have left',
  { timeout },
  async () => {
    assert.deepEqual(await runTwo('unclosed'), [
      { code: 0, stderr: '' },
      { code: 0, stderr: '' },
    ]);
  },
);

test('rank 0 warns when it takes the store with it by process.exit()', { timeout }, async () => {
  const [first, second] = await runTwo('exits');
  assert.equal(first?.code, 0);
  assert.equal(
    first.stderr,
    'weftline: rank 0 called process.exit() before world.close(): ranks that still use the store, which rank 0 serves, lose it\n',
  );
  assert.doesNotMatch(second?.stderr ?? '', /process\.exit/);
});

for (const [object, result] of [
  ['EpBuffer', 2],
  ['EPAll2AllLayer', 2],
  ['EpLowLatency', 2],
  ['Communicator', 4],
] as const) {
  test(`a process ends with its program, which leaves its ${object} across hosts open, and takes nothing from the others`, async () => {
    const args = [object, join(folderUntilExit('weftline-exit-'), 'ended')];
    const options = { args, env: { WEFTLINE_HOSTS: '2' } };
    const { exitCode, ranks, transcript } = await runRanks(4, unclosed, options);
    assert.equal(exitCode, 0, transcript);
    assert.deepEqual(ranks.map(resultOf), Array<number>(4).fill(result), transcript);
  });
}
