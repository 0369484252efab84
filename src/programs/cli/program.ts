// The weftline command with all its commands: names, flags, help.
import { readFileSync } from 'node:fs';
import { Command } from 'commander';
import { printTo } from '../../core/print.ts';

/** Names of commands, each with what adds it to its parent. A command brings its part of the library; all together take half a second. */
type CommandTable = Readonly<
  Record<string, () => Promise<(parent: Command, words: readonly string[]) => void | Promise<void>>>
>;

const commands: CommandTable = {
  run: async () => (await import('./run-command.ts')).addRunCommand,
  moe: async () => (await import('./moe-command.ts')).addMoeCommand,
  doctor: async () => (await import('./doctor-command.ts')).addDoctorCommand,
  bench: () => Promise.resolve(addBenchCommand),
  compile: async () => (await import('./compile-command.ts')).addCompileCommand,
  sim: async () => (await import('./sim-command.ts')).addSimCommand,
  '2proc': async () => (await import('./two-process-command.ts')).addTwoProcessCommand,
  trace: async () => (await import('./trace-command.ts')).addTraceCommand,
  compare: async () => (await import('./compare-command.ts')).addCompareCommand,
  why: async () => (await import('./job-commands.ts')).addWhyCommand,
  stats: async () => (await import('./job-commands.ts')).addStatsCommand,
  top: async () => (await import('./top-command.ts')).addTopCommand,
  completion: async () => (await import('./completion-command.ts')).addCompletionCommand,
};

/**
 * What this machine reaches, one subcommand per part of the library. A new benchmark takes three files:
 *   1. ../bench/<name>/<name>-bench.ts measures, and returns a result document with a `schema`;
 *   2. ./bench-<name>.ts has `add<Name>Bench`: its flags, what it prints, and `Output` for --json and --quiet;
 *   3. this file has its line here.
 */
const benches: CommandTable = {
  ep: async () => (await import('./bench-ep.ts')).addEpBench,
  collectives: async () => (await import('./bench-collectives.ts')).addCollectivesBench,
  sparse: async () => (await import('./bench-sparse.ts')).addSparseBench,
  transport: async () => (await import('./bench-transport.ts')).addTransportBench,
  p2p: async () => (await import('./bench-p2p.ts')).addP2pBench,
  kv: async () => (await import('./bench-kv.ts')).addKvBench,
  unpack: async () => (await import('./bench-unpack.ts')).addUnpackBench,
};

/** Makes the command with what the words after `weftline` need of it, or, without words, with all commands, as help shows them. */
export async function createProgram(words: readonly string[] = []): Promise<Command> {
  const program = new Command('weftline')
    .description('Expert-parallel communication for mixture-of-experts models')
    .version(describeVersion())
    // What follows a script's name is the script's.
    .enablePositionalOptions()
    .configureOutput({
      writeOut: (text) => printTo(process.stdout, text),
      writeErr: (text) => printTo(process.stderr, text),
    })
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

/**
 * Adds to `parent` the command that the first of `words` names, and hands it the other words; all commands of the table, in
 * its order, where that word names none, for help and errors speak of them all.
 */
async function addCommands(parent: Command, table: CommandTable, words: readonly string[]): Promise<void> {
  const [name = '', ...rest] = words;
  const names = Object.hasOwn(table, name) ? [name] : Object.keys(table);
  for (const each of names) {
    const add = await table[each]?.();
    await add?.(parent, each === name ? rest : []);
  }
}

async function addBenchCommand(program: Command, words: readonly string[]): Promise<void> {
  const bench = program.command('bench').description('measure this machine against its own limits');
  await addCommands(bench, benches, words);
}
