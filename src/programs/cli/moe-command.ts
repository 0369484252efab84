// weftline moe: a real MoE block from a file or a model's folder, across ranks on this machine.
import type { Command } from 'commander';
import { invalidArgument } from '../../core/errors.ts';
import { chooseDevice, openChosenDevice } from '../../device/device-choice.ts';
import { resolveCacheFolder } from '../../device/cuda/jit/cubin-cache.ts';
import { readSettings } from '../../settings/settings.ts';
import { combinePrecisions } from '../../ep/across-hosts/network-size.ts';
import { isRank } from '../../world/environment.ts';
import { exampleBlock } from '../moe/example-block.ts';
import { quote } from '../../core/quote.ts';
import { moeDispatchers, requireNoSharedExpert } from '../moe/measure-forward.ts';
import { CheckpointSource } from '../moe/checkpoint/checkpoint-source.ts';
import { ModelFolder } from '../moe/checkpoint/model-folder.ts';
import { findModelLayers } from '../moe/checkpoint/architectures.ts';
import { FileBlockSource } from '../moe/block-source.ts';
import { maxTopk, type MoeBlock, type MoeBlockOptions } from '../moe/moe-block.ts';
import {
  type MoeJobOptions,
  type MoeJobTools,
  type MoeReport,
  openMoeJobTools,
  requirePassed,
  runMoeJob,
} from '../moe/moe-job.ts';
import { expertShare, requireEvenExperts } from '../moe/block-share.ts';
import { layersView, moeView } from '../report/moe-view.ts';
import { integerArgument, option } from './argument-values.ts';
import { addReportOptions, Output, type OutputFlags, requireWritableFolder } from './output.ts';
import { addSettingOptions, checkHosts } from './setting-options.ts';
import { checkUsageOf } from './exit-codes.ts';
import { withRanks } from './with-ranks.ts';

interface MoeOptions extends Omit<MoeJobOptions, 'device' | 'repeat'>, MoeBlockOptions, OutputFlags {
  readonly ranks: number;
  readonly model?: string;
  readonly layer?: number;
  readonly allLayers?: boolean;
  readonly input?: string;
  readonly iterations: number;
  /** Another name of `iterations`. */
  readonly repeat?: number;
}

/** A model's folder, which of its layers, and the file of tokens. */
interface ModelPlace {
  readonly model: string;
  /** All that have experts if absent. */
  readonly layer?: number;
  readonly input: string;
}

const timedPasses = integerArgument(1, 1000);

export function addMoeCommand(program: Command): void {
  const command = program
    .command('moe')
    .summary('run a mixture-of-experts block of a file or a model')
    .description(
      'Splits the tokens and experts of a MoE block over ranks, brings tokens to their experts and back, checks the ' +
        'result against output_f32 if the file has it, and prints what each phase took. Exits non-zero when it differs. ' +
        'The block is a file, or a layer of a model as Hugging Face stores it: Mixtral, Qwen2-MoE, Qwen3-MoE, OLMoE, ' +
        'DeepSeek-V2 and -V3. Each rank reads its experts only.',
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
    .option('--model <folder>', "take the block from a model's folder: config.json and safetensors files")
    .option('--layer <number>', 'of the model, from 0', integerArgument(0, 999_999))
    .option('--all-layers', 'every layer of the model that has experts, one after another')
    .option(
      '--input <file>',
      'of the tokens, with --model: x [T, H] and, to compare with, output_f32; x.N is that of layer N',
    )
    .addOption(
      option('--dispatcher <name>', 'what carries the tokens: EpBuffer or EPAll2AllLayer', moeDispatchers, 'buffer'),
    )
    .addOption(option('--dtype <dtype>', 'how rows travel to the experts', ['bf16', 'fp8'], 'bf16'))
    .addOption(
      option('--combine-precision <dtype>', "how a host's sums travel to other hosts", combinePrecisions, 'bf16'),
    )
    .option(
      '--redundant-experts <count>',
      'copies of busy experts, besides the first of each: also runs the block without them and compares load and output; experts and copies together must be a multiple of the ranks',
      integerArgument(0, 65_536),
      0,
    )
    .option('--out <file>', 'write the output, tensor "output" bf16 [T, H]')
    .option('--iterations <count>', 'timed passes; also --repeat', timedPasses, 5)
    .addOption(option('--repeat <count>', '', timedPasses).hideHelp())
    .option('--topk <count>', 'experts per token, for a file without topk_idx', integerArgument(1, maxTopk))
    .option('--normalize', 'scale the chosen weights to a sum of 1, for a file without topk_idx')
    .option('--no-normalize', 'leave them as the softmax gives them');
  command.addHelpText(
    'after',
    `
Examples:
  weftline moe
  weftline moe block.safetensors --ranks 8
  weftline moe --model Qwen3-30B-A3B --layer 12 --input tokens.safetensors
  weftline moe --model Qwen3-30B-A3B --all-layers --input tokens.safetensors --json load.json`,
  );
  addReportOptions(command);
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
    const place = modelPlace(command, file, options);
    const path = place ?? file ?? (await exampleBlock(resolveCacheFolder(readSettings().cacheFolder)));
    if (!isRank()) checkHosts(command, options.ranks);
    await checkUsageOf(command, checkBeforeLaunch(path, options));
    await withRanks(options.ranks, async (world) => {
      const choice = await chooseDevice(world.settings.device, world);
      await using device = await openChosenDevice(choice, world.settings);
      using tools = await openMoeJobTools(world, device);
      const repeat = options.repeat ?? options.iterations;
      const job: MoeJobOptions = { ...options, repeat, device: choice };
      if (typeof path === 'string') {
        await using source = await FileBlockSource.open(path, options);
        const report = await runMoeJob(tools, source, job);
        if (report === undefined) return;
        output.report(moeView(report), report);
        requirePassed(report);
      } else await runModel(tools, path, { job, output });
    });
  });
}

/** What --model and its companions say; undefined without it. */
function modelPlace(command: Command, file: string | undefined, options: MoeOptions): ModelPlace | undefined {
  const { model, layer, allLayers, input, out } = options;
  if (model === undefined) {
    for (const [name, value] of Object.entries({ '--layer': layer, '--all-layers': allLayers, '--input': input })) {
      if (value !== undefined) command.error(`error: ${name} needs --model FOLDER`);
    }
    return undefined;
  }
  if (file !== undefined)
    command.error(`error: with --model no file of a block is taken, got ${quote(file)}; tokens: --input`);
  if (input === undefined) {
    return command.error(
      'error: --model needs --input FILE, a safetensors file with the tokens of the block, x [T, H]',
    );
  }
  if ((layer === undefined) === (allLayers === undefined)) {
    command.error('error: --model needs either --layer N or --all-layers');
  }
  if (allLayers === true && out !== undefined)
    command.error('error: --out needs --layer N: it holds the output of one block');
  return { model, input, ...(layer === undefined ? {} : { layer }) };
}

/** Collective: the layer that is asked for, or all in turn. */
async function runModel(
  tools: MoeJobTools,
  { model, layer, input }: ModelPlace,
  { job, output }: { readonly job: MoeJobOptions; readonly output: Output },
): Promise<void> {
  await using folder = await ModelFolder.open(model);
  const layers = layer === undefined ? findModelLayers(folder).numbers : [layer];
  const reports: MoeReport[] = [];
  for (const number of layers) {
    await using source = await CheckpointSource.open(folder, { layer: number, input });
    const report = await runMoeJob(tools, source, job);
    if (report === undefined) continue;
    reports.push(report);
    if (layer === undefined) output.line(`layer ${number}: ${report.forwardMs.toFixed(1)} ms`);
  }
  const [first] = reports;
  if (first === undefined) return;
  if (layer === undefined) output.report(layersView(reports), { model, layers: reports });
  else output.report(moeView(first), first);
  for (const report of reports) requirePassed(report);
}

/** What can be known without ranks is said once, here, instead of by every rank. */
async function checkBeforeLaunch(path: string | ModelPlace, options: MoeOptions): Promise<void> {
  if (options.dispatcher === 'all2all' && options.dtype === 'fp8') {
    throw invalidArgument('--dtype', 'fp8', 'bf16 with --dispatcher all2all, which carries bf16 rows only');
  }
  if (typeof path === 'string') {
    await using source = await FileBlockSource.open(path, options);
    checkBlock(source.block, options);
  } else {
    const { model, layer, input } = path;
    await using folder = await ModelFolder.open(model);
    for (const number of layer === undefined ? findModelLayers(folder).numbers : [layer]) {
      await using source = await CheckpointSource.open(folder, { ...options, layer: number, input });
      checkBlock(source.block, options);
    }
  }
  if (options.out !== undefined) requireWritableFolder(options.out);
}

function checkBlock(block: MoeBlock, { ranks, redundantExperts, dispatcher }: MoeOptions): void {
  expertShare(block.experts, 0, ranks);
  requireEvenExperts(block.experts, redundantExperts, ranks);
  if (dispatcher === 'all2all') requireNoSharedExpert(dispatcher, block);
}
