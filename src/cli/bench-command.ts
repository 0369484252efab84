// weftline bench: what this machine reaches. One subcommand per part of the library.
import { writeFileSync } from 'node:fs';
import { SingleBar } from 'cli-progress';
import { type Command, InvalidArgumentError, Option } from 'commander';
import { runEpBench } from '../bench/ep-bench.ts';
import type { EpBenchReport } from '../bench/ep-results.ts';
import { requireAddressSpace } from '../bench/ep-memory.ts';
import { checkEpWorkload, defaultEpWorkload, type EpWorkload } from '../bench/ep-workload.ts';
import { CpuDevice } from '../device/cpu/cpu-device.ts';
import { epBenchReport } from '../report/ep-bench-report.ts';
import { readSettings } from '../settings/settings.ts';
import type { World } from '../world/index.ts';
import { addTransportBench } from './bench-transport.ts';
import { integerArgument } from './integer-argument.ts';
import { requireWritableFolder } from './output-file.ts';
import { withRanks } from './with-ranks.ts';

export function addBenchCommand(program: Command): void {
  const bench = program.command('bench').description('measure this machine against its own limits');
  addEpBench(bench);
  addTransportBench(bench);
}

interface EpBenchFlags extends EpWorkload {
  readonly iterations: number;
  readonly warmup: number;
  readonly layer: boolean;
  readonly json?: string;
}

const MOST = 2 ** 31;
const positive = integerArgument(1, MOST);

function addEpBench(bench: Command): void {
  const { ranks, tokens, hidden, topk, experts, seed, skew } = defaultEpWorkload;
  bench
    .command('ep')
    .description('expert-parallel dispatch and combine against copying the same rows')
    .option('--ranks <n>', 'processes on this machine', integerArgument(1, 1024), ranks)
    .option('--tokens <n>', 'tokens of each rank', positive, tokens)
    .option('--hidden <n>', 'elements of a token', positive, hidden)
    .option('--topk <n>', 'experts of a token', positive, topk)
    .option('--experts <n>', 'experts of all ranks', positive, experts)
    .addOption(new Option('--dtype <dtype>', 'of dispatched rows').choices(['bf16', 'fp8']).default('bf16'))
    .option('--iterations <n>', 'timed rounds of all cases', positive, 20)
    .option('--warmup <n>', 'rounds before them', integerArgument(0, MOST), 3)
    .option('--seed <n>', 'of tokens and routing', integerArgument(0, MOST), seed)
    .option('--skew <s>', 'popularity of experts: 0 even, 1 as words in a text', decimalNumber, skew)
    .option('--no-layer', 'leave out EPAll2AllLayer, which takes the most memory')
    .option('--json <file>', 'write the result document')
    .action(async ({ iterations, warmup, layer, json, ...workload }: EpBenchFlags) => {
      // Before any process starts.
      checkEpWorkload(workload);
      requireAddressSpace(workload, layer, readSettings().addressSpaceMiB * 1_048_576);
      if (json !== undefined) requireWritableFolder(json);
      await withRanks(workload.ranks, async (world) => {
        const report = await benchRank(world, { iterations, warmup, layer, workload });
        if (report === undefined) return;
        process.stdout.write(epBenchReport(report));
        if (json !== undefined) writeFileSync(json, `${JSON.stringify(report, undefined, 2)}\n`);
      });
    });
}

async function benchRank(
  world: World,
  options: { iterations: number; warmup: number; layer: boolean; workload: EpWorkload },
): Promise<EpBenchReport | undefined> {
  const workload = { ...options.workload, ranks: world.size };
  await using device = await CpuDevice.create(world.settings);
  if (world.rank !== 0 || !process.stderr.isTTY) return runEpBench(world, device, { ...options, workload });
  const bar = new SingleBar({
    format: 'bench ep [{bar}] {value} of {total} rounds, {eta_formatted} left',
    stream: process.stderr,
    clearOnComplete: true,
    hideCursor: true,
  });
  bar.start(options.warmup + options.iterations, 0);
  try {
    return await runEpBench(world, device, { ...options, workload }, (done) => bar.update(done));
  } finally {
    bar.stop();
  }
}

function decimalNumber(text: string): number {
  if (!/^\d+(\.\d+)?$/.test(text)) throw new InvalidArgumentError('Allowed is a number.');
  return Number(text);
}
