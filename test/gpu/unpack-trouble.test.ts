// Launchers in trouble end it: no scenario hangs, and none leaves other bytes than it should.
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import test from 'node:test';
import { fileURLToPath } from 'node:url';
import { cacheFolder, noGpu } from './support/gpu.js';

const script = fileURLToPath(new URL('processes/unpack-scenarios.js', import.meta.url));
/** Each takes a few seconds. */
const MAX_MS = 60_000;

const scenarios = {
  'all-busy': 'two kernels that stay and want all of the GPU, and others that want it too, all get it',
  'late-blocks': 'thread blocks that begin late move their share of what others took before',
  'calls-that-wait': 'calls that wait for the whole GPU come back while a kernel stays',
  'come-and-go': 'launchers of all kinds come and go',
  'flag-of-a-kernel': 'a flag that a later kernel raises is seen, or missed in time',
  'close-while-busy': 'a launcher is closed with work under way, and with flags that do not come',
  'device-first': 'a launcher whose device or stream went first says so',
  'memory-given-back': 'memory that is given back with its launch under way stays until that has ended',
};

for (const [name, title] of Object.entries(scenarios)) {
  test(title, { skip: noGpu }, async () => {
    const child = spawn(process.execPath, [script, cacheFolder, name], { stdio: 'inherit' });
    const timer = setTimeout(() => child.kill('SIGKILL'), MAX_MS);
    const [code, signal] = (await once(child, 'exit')) as [number | null, string | null];
    clearTimeout(timer);
    assert.deepEqual({ code, signal }, { code: 0, signal: null }, `scenario ${name}`);
  });
}
