// Programs that are given as text or with preloaded modules: the library's threads start without the program's flags.
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { writeFileSync } from 'node:fs';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import test from 'node:test';
import { fileURLToPath } from 'node:url';

const root = fileURLToPath(new URL('../../..', import.meta.url));
/** Starts a thread of each kind that needs no other software: copies and doorbell, engine, command queues. */
const program = `
  import { CpuDevice } from 'weftline';
  import { Agent } from 'weftline/agent';
  import { DeviceHost } from 'weftline/device-api';
  for (const backend of ['local', 'multipath']) {
    const agent = await Agent.create('a', { backends: [backend] });
    await agent.close();
  }
  const device = await CpuDevice.create({ addressSpaceMiB: 64 });
  const host = await DeviceHost.create({ name: 'host', device });
  await host[Symbol.asyncDispose]();
  console.log('done');`;

function run(...flags: readonly string[]): { readonly stdout: string; readonly stderr: string } {
  const env = { ...process.env, NODE_TEST_CONTEXT: undefined };
  return spawnSync(process.execPath, flags, { cwd: root, env, encoding: 'utf8' });
}

test('agents and device hosts work in a program that is given as text', () => {
  const { stdout, stderr } = run('--input-type=module', '--eval', program);
  assert.equal(stdout.trim(), 'done', stderr);
});

test("a module that the program preloads is not loaded into the library's threads", async () => {
  const folder = await mkdtemp(join(tmpdir(), 'weftline-flags-'));
  try {
    const preload = join(folder, 'preload.mjs');
    writeFileSync(preload, "console.log('preloaded');");
    const { stdout, stderr } = run('--import', preload, '--input-type=module', '--eval', program);
    assert.deepEqual(stdout.trim().split('\n'), ['preloaded', 'done'], stderr);
  } finally {
    await rm(folder, { recursive: true });
  }
});
