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
  completion: async () => (await import('./completion-command.ts')).addCompletionCommand,
};

/** For the words after `weftline`: with what they need of its commands. All of them without words, as help shows them. */
export async function createProgram(words: readonly string[] = []): Promise<Command> {
  const program = new Command('weftline')
    .description('Expert-parallel communication for mixture-of-experts models')
    .version(describeVersion())
    // What follows a script's name is the script's.
    .enablePositionalOptions()
    .showHelpAfterError('(weftline --help, or weftline COMMAND --help, shows what is allowed)')
    .exitOverride();
  const isVersion = words[0] === '--version' || words[0] === '-V';
  // Completion speaks of all commands.
  if (!isVersion) await addCommands(program, commands, words[0] === 'completion' ? [] : words);
  return program;
}

/** "0.1.0 (build 2108d3b7e1f2, linux-x64, Node 20.19.0)": the version, the commit it was built from, and what runs it. */
function describeVersion(): string {
  const { version } = readJson('../../../package.json') as { readonly version: string };
  const { commit } = readJson('../../build.json') as { readonly commit?: string };
  const build = commit === undefined ? 'build of unknown commit' : `build ${commit}`;
  return `${version} (${build}, ${process.platform}-${process.arch}, Node ${process.versions.node})`;
}

function readJson(path: string): unknown {
  return JSON.parse(readFileSync(new URL(path, import.meta.url), 'utf8'));
}
