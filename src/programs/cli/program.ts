// The weftline command with all its commands: names, flags, help.
import { readFileSync } from 'node:fs';
import { Command } from 'commander';
import { addCommands } from './add-commands.ts';

const commands = {
  run: async () => (await import('./run-command.ts')).addRunCommand,
  moe: async () => (await import('./moe-command.ts')).addMoeCommand,
  doctor: async () => (await import('./doctor-command.ts')).addDoctorCommand,
  bench: async () => (await import('./bench-command.ts')).addBenchCommand,
  compile: async () => (await import('./compile-command.ts')).addCompileCommand,
  sim: async () => (await import('./sim-command.ts')).addSimCommand,
  '2proc': async () => (await import('./two-process-command.ts')).addTwoProcessCommand,
  trace: async () => (await import('./trace-command.ts')).addTraceCommand,
  compare: async () => (await import('./compare-command.ts')).addCompareCommand,
  why: async () => (await import('./why-command.ts')).addWhyCommand,
  stats: async () => (await import('./stats-command.ts')).addStatsCommand,
  top: async () => (await import('./top-command.ts')).addTopCommand,
};

/** For the words after `weftline`: with what they need of its commands. All of them without words, as help shows them. */
export async function createProgram(words: readonly string[] = []): Promise<Command> {
  const program = new Command('weftline')
    .description('Expert-parallel communication for mixture-of-experts models')
    .version(readVersion())
    // What follows a script's name is the script's.
    .enablePositionalOptions()
    .showHelpAfterError('(weftline --help, or weftline COMMAND --help, shows what is allowed)')
    .exitOverride();
  const isVersion = words[0] === '--version' || words[0] === '-V';
  if (!isVersion) await addCommands(program, commands, words);
  return program;
}

function readVersion(): string {
  const file = new URL('../../../package.json', import.meta.url);
  return (JSON.parse(readFileSync(file, 'utf8')) as { readonly version: string }).version;
}
