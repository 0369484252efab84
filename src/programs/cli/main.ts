#!/usr/bin/env node
// The weftline command as a process: how it ends when a command fails.
import { readFileSync } from 'node:fs';
import { resolve } from 'node:path';
import { printTo } from '../../core/print.ts';
import { exitCodes, printError } from './exit-codes.ts';
import { createProgram } from './program.ts';

const LOOK_AT_PARENT_EVERY_MS = 250;

guardStandardStreams();
endWithNpm();
// What this process starts may work in another folder.
const trace = process.env['WEFTLINE_TRACE'] ?? '';
if (trace !== '') process.env['WEFTLINE_TRACE'] = resolve(trace);
let nodes = 1;
try {
  const program = await createProgram(process.argv.slice(2));
  program.hook('preAction', (_, command) => {
    nodes = command.opts<{ nnodes?: number }>().nnodes ?? 1;
  });
  await program.parseAsync();
} catch (error) {
  process.exitCode = printError(error);
}
// What makes traces is loaded where one is wanted only: short commands load as little as they can.
if ((process.env['WEFTLINE_TRACE'] ?? '') !== '') (await import('./trace-command.ts')).finishTrace(nodes);

/**
 * To be called once, before anything is written. Output into a closed pipe (`weftline doctor | head -1`) is discarded, as
 * the reader has what it wanted: the command goes on, and its exit code is that of its work. Any other failure of stdout,
 * such as a full disk, is printed once, and the command ends with a failure even if its work succeeds.
 */
function guardStandardStreams(): void {
  let isReported = false;
  process.stdout.on('error', (error: NodeJS.ErrnoException) => {
    if (error.code === 'EPIPE' || error.code === 'ERR_STREAM_DESTROYED' || isReported) return;
    isReported = true;
    printTo(process.stderr, `weftline: WL_FILE: Cannot write to stdout: ${error.message}\n`);
    process.once('exit', (code) => {
      if (code === exitCodes.success.code) process.exitCode = exitCodes.failure.code;
    });
  });
  // If stderr cannot be written to, the failure cannot be reported.
  process.stderr.on('error', () => {});
}

/**
 * If npm has started this process: ends it as SIGTERM does, once the shell between them has gone. A signal that is sent to npx or
 * npm ends that shell with them, and what runs in the shell hears nothing. A process that was detached from its parent (setsid,
 * or `detached` of spawn) is to outlive it.
 */
function endWithNpm(): void {
  if (process.env['npm_lifecycle_event'] === undefined || isDetached()) return;
  const parent = process.ppid;
  const timer = setInterval(() => {
    if (process.ppid === parent) return;
    clearInterval(timer);
    process.kill(process.pid, 'SIGTERM');
  }, LOOK_AT_PARENT_EVERY_MS);
  timer.unref();
}

/** True of the first process of a process group; npm and its shell leave what they start in theirs. */
function isDetached(): boolean {
  try {
    // The name of the program, in brackets, may contain anything; state, parent and process group follow.
    const [, , , group] = readFileSync('/proc/self/stat', 'utf8').replace(/^.*\)/s, '').split(' ');
    return Number(group) === process.pid;
  } catch {
    // This is not Linux.
    return false;
  }
}
