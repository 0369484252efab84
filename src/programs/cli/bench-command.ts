// weftline bench: what this machine reaches, one subcommand per part of the library. A new benchmark takes three files:
//   1. ../bench/<name>/<name>-bench.ts measures, and returns a result document with a `schema`;
//   2. ./bench-<name>.ts has `add<Name>Bench`: its flags, what it prints, and `Output` for --json and --quiet;
//   3. this file has its line in `benches`.
import type { Command } from 'commander';
import { addCollectivesBench } from './bench-collectives.ts';
import { addEpBench } from './bench-ep.ts';
import { addP2pBench } from './bench-p2p.ts';
import { addTransportBench } from './bench-transport.ts';
import { addUnpackBench } from './bench-unpack.ts';

const benches: readonly ((bench: Command) => void)[] = [
  addEpBench,
  addCollectivesBench,
  addTransportBench,
  addP2pBench,
  addUnpackBench,
];

export function addBenchCommand(program: Command): void {
  const bench = program.command('bench').description('measure this machine against its own limits');
  for (const add of benches) add(bench);
}
