#!/usr/bin/env node
// The weftline command as a process: how it ends when a command fails.
import { resolve } from 'node:path';
import { endWithNpm } from './npm-parent.ts';
import { printError } from './print-error.ts';
import { createProgram } from './program.ts';
import { guardStandardStreams } from './standard-streams.ts';

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
// Settings are read where a trace is wanted only: short commands load as little as they can.
if ((process.env['WEFTLINE_TRACE'] ?? '') !== '') await (await import('./finish-trace.ts')).finishTrace(nodes);
