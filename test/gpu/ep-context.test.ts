// DispatchCombineContext on GPUs, and a layer that grows; once more with kernels that were compiled ahead of time.
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import test from 'node:test';
import { CudaDevice } from 'weftline';
import { contextFindings } from '../local/support/context-findings.ts';
import { resultOf, runRanks } from '../local/support/run-ranks.ts';
import { cacheFolder, noGpu } from './support/gpu.ts';
import { TemporaryFolder } from './support/temporary-folder.ts';
import { settingsTable } from '#lib/settings/settings.js';

const script = new URL('../local/ranks/ep-context.js', import.meta.url);
const env = { WEFTLINE_TEST_DEVICE: 'cuda', [settingsTable.cacheFolder.env]: cacheFolder };

test('the context grows, and says what it was closed for', { skip: noGpu }, async () => {
  const { exitCode, ranks, transcript } = await runRanks(2, script, { env });
  assert.equal(exitCode, 0, transcript);
  for (const rank of ranks) assert.deepEqual(resultOf(rank), contextFindings, transcript);
});

test('a layer runs kernels of "weftline compile", and of nothing else', { skip: noGpu }, async () => {
  const cli = fileURLToPath(new URL('../../../dist/programs/cli/main.js', import.meta.url));
  using folder = new TemporaryFolder();
  const architecture = await architectureHere();
  execFileSync(process.execPath, [cli, 'compile', '--arch', architecture, '--out', folder.path], { stdio: 'ignore' });
  const withFolder = { ...env, [settingsTable.aotFolder.env]: folder.path };
  const { exitCode, ranks, transcript } = await runRanks(2, script, { args: ['aot'], env: withFolder });
  assert.equal(exitCode, 0, transcript);
  for (const rank of ranks) assert.deepEqual(resultOf(rank), contextFindings, transcript);
});

async function architectureHere(): Promise<string> {
  await using device = await CudaDevice.create();
  const { major, minor } = device.properties.capability;
  return `sm_${major}${minor}`;
}
