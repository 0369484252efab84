// Agents with the default backends where /dev/shm is small, as containers have it.
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import test from 'node:test';
import { fileURLToPath } from 'node:url';
import { skipWithout } from './support/requirements.js';
import { sampled } from '../support/extent.ts';

const script = fileURLToPath(new URL('./support/many-agents.js', import.meta.url));

function inSmallMemory(size: string, command: string): { readonly status: number | null; readonly output: string } {
  const mount = `mount -t tmpfs -o size=${size} tmpfs /dev/shm`;
  const env = { ...process.env, NODE_TEST_CONTEXT: undefined };
  const words = ['-m', 'sh', '-c', `${mount} && ${command}`];
  const { status, stdout, stderr } = spawnSync('unshare', words, { encoding: 'utf8', env, timeout: 600_000 });
  return { status, output: `${stdout}${stderr}` };
}

const canMount = inSmallMemory('8m', 'true').status === 0;
const options = { skip: skipWithout('mounts', canMount ? undefined : 'needs root, unshare and mount') };

// Docker gives a container 64 MiB.
for (const [agents, size] of sampled(
  [
    [2, '8m'],
    [16, '64m'],
  ] as const,
  1,
)) {
  test(`${agents} agents work with ${size} of /dev/shm`, options, () => {
    const { status, output } = inSmallMemory(size, `'${process.execPath}' '${script}' ${agents}`);
    assert.equal(status, 0, output);
    assert.match(output, new RegExp(`${agents} agents`));
  });
}
