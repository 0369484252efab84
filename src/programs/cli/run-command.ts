// weftline run: starts a script once per rank.
import { fileURLToPath } from 'node:url';
import { type Command, InvalidArgumentError } from 'commander';
import { MAX_WORLD_SIZE } from '../../world/environment.ts';
import { MAX_RESTARTS } from '../../world/job-plan.ts';
import { packageFile } from '../../core/package-file.ts';
import { settingsTable } from '../../settings/settings.ts';
import { launch } from '../../world/launcher.ts';
import { integerArgument } from './argument-values.ts';
import { addSettingOptions, checkHosts } from './setting-options.ts';

interface RunOptions {
  readonly ranks: number;
  readonly aggregators: number;
  readonly nnodes: number;
  readonly nodeRank: number;
  readonly elastic: boolean;
  readonly maxRestarts: number;
  readonly minRanks?: number;
  readonly master?: { readonly host: string; readonly port: number };
}

export function addRunCommand(program: Command): void {
  const command = program
    .command('run')
    .summary('start a script once per rank')
    .description(
      'Starts SCRIPT once per rank. Inside, join() of weftline/world finds the other ranks. When one rank fails the ' +
        'others are stopped and the exit code is its own; nothing is left behind.',
    )
    .argument('<script>', 'a JavaScript file, or any program')
    .argument('[args...]', "the script's own arguments and options")
    .requiredOption(
      '-n, --ranks <count>',
      `ranks on this node; at most ${MAX_WORLD_SIZE} in the job`,
      integerArgument(1, MAX_WORLD_SIZE),
    )
    .option(
      '--aggregators <count>',
      'further ranks on this node, the last ones, which run no script but add up for SparseAllReduce',
      integerArgument(0, MAX_WORLD_SIZE),
      0,
    )
    .option('--nnodes <count>', 'nodes of the job, each with as many ranks', integerArgument(1, MAX_WORLD_SIZE), 1)
    .option('--node-rank <number>', 'number of this node, from 0', integerArgument(0, MAX_WORLD_SIZE - 1), 0)
    .option(
      '--master <host:port>',
      'where node 0 listens, as the others reach it; needed for several nodes',
      parseAddress,
    )
    .option('--elastic', 'start a rank that ends badly again while the others go on; one node')
    .option('--max-restarts <count>', 'with --elastic: of each rank', integerArgument(1, MAX_RESTARTS), 3)
    .option(
      '--min-ranks <count>',
      'go on without ranks and nodes that are lost while so many ranks of the job are left; by default all must be',
      integerArgument(1, MAX_WORLD_SIZE),
    )
    .passThroughOptions()
    .addHelpText(
      'after',
      `
Examples:
  weftline run -n 4 train.js --steps 100
  weftline run -n 4 --elastic --max-restarts 10 serve.js
  weftline run -n 8 --min-ranks 6 train.js
  WEFTLINE_TOKEN=$(cat token) weftline run -n 8 --nnodes 2 --node-rank 0 --master node0:29500 train.js`,
    );
  addSettingOptions(command, ['hosts', 'timeoutMs', 'metrics', 'log', 'trace', 'graceMs', 'stopMs']);
  command.action(async (script: string, args: readonly string[], options: RunOptions) => {
    checkFlags(command, options);
    const { ranks, aggregators } = options;
    checkHosts(command, ranks + aggregators);
    const { exitCode } = await launch({
      command: [script, ...args],
      ranks,
      ...(aggregators === 0 ? {} : { helpers: aggregatorsOf(aggregators), env: { [ENV]: worldRanks(options) } }),
      nodeCount: options.nnodes,
      nodeRank: options.nodeRank,
      maxRestarts: options.elastic ? options.maxRestarts : 0,
      ...(options.minRanks === undefined ? {} : { minRanks: options.minRanks }),
      ...(options.master === undefined ? {} : { master: options.master }),
    });
    process.exitCode = exitCode;
  });
}

const ENV = settingsTable.aggregators.env;

function aggregatorsOf(ranks: number): { readonly ranks: number; readonly command: readonly string[] } {
  return { ranks, command: [fileURLToPath(packageFile('../aggregator/main.js', import.meta.url))] };
}

/** The last ones of each node. */
function worldRanks({ ranks, aggregators, nnodes }: RunOptions): string {
  const ofNode = (node: number): number[] =>
    Array.from({ length: aggregators }, (_, index) => node * (ranks + aggregators) + ranks + index);
  return Array.from({ length: nnodes }, (_, node) => ofNode(node)).join();
}

/** What one flag says of another: a wrong command line, which starts nothing. */
function checkFlags(command: Command, options: RunOptions): void {
  const { ranks, aggregators, nnodes, nodeRank, master, elastic, minRanks } = options;
  if (nodeRank >= nnodes) {
    command.error(`error: --node-rank ${nodeRank} is not below --nnodes, ${nnodes}: nodes are numbered from 0`);
  }
  if (!elastic && command.getOptionValueSource('maxRestarts') === 'cli') {
    command.error('error: --max-restarts needs --elastic: without it no rank is started again');
  }
  if (minRanks !== undefined && minRanks > ranks * nnodes) {
    command.error(`error: --min-ranks ${minRanks} is more than the ${ranks * nnodes} ranks of the job`);
  }
  if (minRanks !== undefined && aggregators > 0) {
    command.error('error: --min-ranks does not go with --aggregators: no rank can do without its aggregators');
  }
  if (nnodes > 1 && elastic) command.error('error: --elastic works on one node, and --nnodes says more');
  if (nnodes > 1 && master === undefined) {
    command.error(
      `error: --nnodes ${nnodes} needs --master HOST:PORT, an address of node 0 that the others reach, such as node0:29500`,
    );
  }
}

function parseAddress(text: string): { readonly host: string; readonly port: number } {
  const match = /^(?:\[([^\]]+)\]|([^:\s]+)):([0-9]{1,5})$/.exec(text);
  const port = Number(match?.[3]);
  const host = match?.[1] ?? match?.[2];
  if (host !== undefined && port >= 1 && port <= 65_535) return { host, port };
  throw new InvalidArgumentError('Expected host:port with a port from 1 to 65535, such as node0:29500 or [::1]:29500.');
}
