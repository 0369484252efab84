// The weftline command with all its commands: names, flags, help.
import { readFileSync } from 'node:fs';
import { Command } from 'commander';
import { addBenchCommand } from './bench-command.ts';
import { addCompileCommand } from './compile-command.ts';
import { addDoctorCommand } from './doctor-command.ts';
import { addMoeCommand } from './moe-command.ts';
import { addRunCommand } from './run-command.ts';
import { addSimCommand } from './sim-command.ts';
import { addTwoProcessCommand } from './two-process-command.ts';

export function createProgram(): Command {
  const program = new Command('weftline')
    .description('Expert-parallel communication for mixture-of-experts models')
    .version(readVersion())
    // What follows a script's name is the script's.
    .enablePositionalOptions()
    .showHelpAfterError('(weftline --help, or weftline COMMAND --help, shows what is allowed)')
    .exitOverride();
  addRunCommand(program);
  addMoeCommand(program);
  addDoctorCommand(program);
  addBenchCommand(program);
  addCompileCommand(program);
  addSimCommand(program);
  addTwoProcessCommand(program);
  return program;
}

function readVersion(): string {
  const file = new URL('../../../package.json', import.meta.url);
  return (JSON.parse(readFileSync(file, 'utf8')) as { readonly version: string }).version;
}
