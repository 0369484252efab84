// weftline moe: a real MoE block from a file, across ranks on this machine.
import { type Command, Option } from 'commander';
import { invalidArgument } from '../../core/errors.ts';
import { chooseDevice } from '../../device/device-choice.ts';
import { resolveCacheFolder } from '../../device/cuda/jit/cubin-cache.ts';
import { openChosenDevice } from '../../device/open-device.ts';
import { readSettings } from '../../settings/settings.ts';
import { combinePrecisions } from '../../ep/combine-precision.ts';
import { isRank } from '../../world/environment.ts';
import { exampleBlock } from '../moe/example-block.ts';
import { describeMoeBlock, maxTopk } from '../moe/moe-block.ts';
import { moeLayers } from '../moe/measure-forward.ts';
import { type MoeJobOptions, requirePassed, runMoeJob } from '../moe/moe-job.ts';
import { SafetensorsFile } from '../moe/safetensors-file.ts';
import { expertShare, requireEvenExperts } from '../moe/token-split.ts';
import { moePage } from '../report/html/pages/moe-page.ts';
import { moeReport } from '../report/moe-report.ts';
import { integerArgument } from './argument-values.ts';
import { addOutputOptions, addReportOption, Output, type OutputFlags, requireWritableFolder } from './output.ts';
import { addSettingOptions, checkHosts } from './setting-options.ts';
import { checkUsageOf } from './usage.ts';
import { withRanks } from './with-ranks.ts';

interface MoeOptions extends Omit<MoeJobOptions, 'path' | 'device' | 'repeat'>, OutputFlags {
  readonly ranks: number;
  readonly iterations: number;
  /** Another name of `iterations`. */
  readonly repeat?: number;
}

const timedPasses = integerArgument(1, 1000);

export function addMoeCommand(program: Command): void {
  const command = program
    .command('moe')
    .summary('run a mixture-of-experts block from a safetensors file')
    .description(
      'Splits the tokens and experts of a MoE block over ranks, brings tokens to their experts and back, checks the ' +
        'result against output_f32 if the file has it, and prints what each phase took. Exits non-zero when it differs.',
    )
    .argument(
      '[file]',
      'x, experts.gate_up_proj, experts.down_proj, and topk_idx with topk_weights or gate.weight; without a file, a small random block that is kept in the cache folder',
    )
    .option(
      '-n, --ranks <count>',
      'ranks on this machine; must divide the number of experts',
      integerArgument(1, 1024),
      4,
    )
    .addOption(new Option('--layer <layer>', 'what carries the tokens').choices(moeLayers).default('buffer'))
    .addOption(new Option('--dtype <dtype>', 'how rows travel to the experts').choices(['bf16', 'fp8']).default('bf16'))
    .addOption(
      new Option('--combine-precision <dtype>', "how a host's sums travel to other hosts")
        .choices(combinePrecisions)
        .default('bf16'),
    )
    .option(
      '--redundant-experts <count>',
      'copies of busy experts, besides the first of each: also runs the block without them and compares load and output; experts and copies together must be a multiple of the ranks',
      integerArgument(0, 65_536),
      0,
    )
    .option('--out <file>', 'write the output, tensor "output" bf16 [T, H]')
    .option('--iterations <count>', 'timed passes; also --repeat', timedPasses, 5)
    .addOption(new Option('--repeat <count>').argParser(timedPasses).hideHelp())
    .option('--topk <count>', 'experts per token, for a file without topk_idx', integerArgument(1, maxTopk))
    .option('--normalize', 'scale the chosen weights to a sum of 1, for a file without topk_idx')
    .option('--no-normalize', 'leave them as the softmax gives them');
  addOutputOptions(command);
  addReportOption(command);
  addSettingOptions(command, [
    'device',
    'hosts',
    'expertProduct',
    'cublasPath',
    'nvrtcPath',
    'aotFolder',
    'useAot',
    'timeoutMs',
    'trace',
  ]);
  command.action(async (file: string | undefined, options: MoeOptions) => {
    const output = new Output(options);
    const path = file ?? (await exampleBlock(resolveCacheFolder(readSettings().cacheFolder)));
    if (!isRank()) checkHosts(command, options.ranks);
    await checkUsageOf(command, checkBeforeLaunch(path, options));
    await withRanks(options.ranks, async (world) => {
      const choice = await chooseDevice(world.settings.device, world);
      await using device = await openChosenDevice(choice, world.settings);
      const repeat = options.repeat ?? options.iterations;
      const report = await runMoeJob(world, device, { ...options, repeat, path, device: choice });
      if (report === undefined) return;
      output.report(moeReport(report), report, () => moePage(report));
      requirePassed(report);
    });
  });
}

/** What can be known without ranks is said once, here, instead of by every rank. */
async function checkBeforeLaunch(path: string, options: MoeOptions): Promise<void> {
  if (options.layer === 'all2all' && options.dtype === 'fp8') {
    throw invalidArgument('--dtype', 'fp8', 'bf16 with --layer all2all, which carries bf16 rows only');
  }
  await using file = await SafetensorsFile.open(path);
  const block = describeMoeBlock(file, options);
  expertShare(block.experts, 0, options.ranks);
  requireEvenExperts(block.experts, options.redundantExperts, options.ranks);
  if (options.out !== undefined) requireWritableFolder(options.out);
}
