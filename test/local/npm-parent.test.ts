// What npm started ends when the shell goes in which npm runs it: a signal to npx reaches nothing else.
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import test from 'node:test';
import { fileURLToPath } from 'node:url';

const main = fileURLToPath(new URL('../../../dist/programs/cli/main.js', import.meta.url));

test('a job ends with the shell that npm started it in', { timeout: 600_000 }, async (t) => {
  const folder = mkdtempSync(join(tmpdir(), 'weftline-npm-'));
  t.after(() => rmSync(folder, { recursive: true }));
  const script = join(folder, 'waits.mjs');
  writeFileSync(script, "console.log('runs'); setInterval(() => {}, 1000);\n");
  const env = { ...process.env, npm_lifecycle_event: 'npx', NODE_TEST_CONTEXT: undefined };
  // A shell that does not become the command.
  const line = `"${process.execPath}" "${main}" run -n 2 "${script}"; true`;
  const shell = spawn('sh', ['-c', line], { env, stdio: ['ignore', 'pipe', 'ignore'] });
  shell.stdout.setEncoding('utf8');
  let said = '';
  const closed = once(shell.stdout, 'close');
  await new Promise<void>((resolve) => {
    shell.stdout.on('data', (text: string) => {
      said += text;
      if (said.split('runs').length > 2) resolve();
    });
  });
  shell.kill('SIGTERM');
  // All who could write there have ended.
  await closed;
  assert.match(said, /runs/);
});

test('a job that was detached from the shell outlives it', { timeout: 600_000 }, async (t) => {
  const folder = mkdtempSync(join(tmpdir(), 'weftline-npm-'));
  t.after(() => rmSync(folder, { recursive: true }));
  const script = join(folder, 'waits.mjs');
  writeFileSync(script, "console.log('runs'); setTimeout(() => console.log('ends'), 3000);\n");
  const env = { ...process.env, npm_lifecycle_event: 'start', NODE_TEST_CONTEXT: undefined };
  const line = `setsid "${process.execPath}" "${main}" run -n 1 "${script}" & wait`;
  const shell = spawn('sh', ['-c', line], { env, stdio: ['ignore', 'pipe', 'ignore'] });
  shell.stdout.setEncoding('utf8');
  let said = '';
  const closed = once(shell.stdout, 'close');
  await new Promise<void>((resolve) => {
    shell.stdout.on('data', (text: string) => {
      said += text;
      if (said.includes('runs')) resolve();
    });
  });
  shell.kill('SIGTERM');
  await closed;
  assert.match(said, /ends/);
});
