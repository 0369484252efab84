// weftline bench: what this machine reaches, one subcommand per part of the library. A new benchmark takes three files:
//   1. ../bench/<name>/<name>-bench.ts measures, and returns a result document with a `schema`;
//   2. ./bench-<name>.ts has `add<Name>Bench`: its flags, what it prints, and `Output` for --json and --quiet;
//   3. this file has its line in `benches`.
import type { Command } from 'commander';
import { addCommands } from './add-commands.ts';

const benches = {
  ep: async () => (await import('./bench-ep.ts')).addEpBench,
  collectives: async () => (await import('./bench-collectives.ts')).addCollectivesBench,
  sparse: async () => (await import('./bench-sparse.ts')).addSparseBench,
  transport: async () => (await import('./bench-transport.ts')).addTransportBench,
  p2p: async () => (await import('./bench-p2p.ts')).addP2pBench,
  unpack: async () => (await import('./bench-unpack.ts')).addUnpackBench,
};

/** `words` follow `bench`. */
export async function addBenchCommand(program: Command, words: readonly string[]): Promise<void> {
  const bench = program.command('bench').description('measure this machine against its own limits');
  await addCommands(bench, benches, words);
}
