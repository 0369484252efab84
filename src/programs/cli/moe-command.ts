// weftline moe: a real MoE block from a file, across ranks on this machine.
import { constants } from 'node:fs';
import { access, writeFile } from 'node:fs/promises';
import { dirname } from 'node:path';
import { type Command, Option } from 'commander';
import { invalidArgument, WeftlineError } from '../../core/errors.ts';
import { chooseDevice } from '../../device/device-choice.ts';
import { openChosenDevice } from '../../device/open-device.ts';
import { describeMoeBlock, maxTopk } from '../moe/moe-block.ts';
import { type MoeJobOptions, moeLayers, requirePassed, runMoeJob } from '../moe/moe-job.ts';
import { SafetensorsFile } from '../moe/safetensors-file.ts';
import { expertShare } from '../moe/token-split.ts';
import { moeReport } from '../report/moe-report.ts';
import { integerArgument } from './integer-argument.ts';
import { addSettingOptions } from './setting-options.ts';
import { withRanks } from './with-ranks.ts';

interface MoeOptions extends Omit<MoeJobOptions, 'path' | 'device'> {
  readonly ranks: number;
  readonly json?: string;
}

export function addMoeCommand(program: Command): void {
  const command = program
    .command('moe')
    .summary('run a mixture-of-experts block from a safetensors file')
    .description(
      'Splits the tokens and experts of a MoE block over ranks, brings tokens to their experts and back, checks the ' +
        'result against output_f32 if the file has it, and prints what each phase took. Exits non-zero when it differs.',
    )
    .argument('<file>', 'x, experts.gate_up_proj, experts.down_proj, and topk_idx with topk_weights or gate.weight')
    .option(
      '-n, --ranks <count>',
      'ranks on this machine; must divide the number of experts',
      integerArgument(1, 1024),
      4,
    )
    .addOption(new Option('--layer <layer>', 'what carries the tokens').choices(moeLayers).default('buffer'))
    .addOption(new Option('--dtype <dtype>', 'how rows travel to the experts').choices(['bf16', 'fp8']).default('bf16'))
    .option('--out <file>', 'write the output, tensor "output" bf16 [T, H]')
    .option('--json <file>', 'write the report as JSON')
    .option('--repeat <count>', 'timed passes', integerArgument(1, 1000), 5)
    .option('--topk <count>', 'experts per token, for a file without topk_idx', integerArgument(1, maxTopk))
    .option('--normalize', 'scale the chosen weights to a sum of 1, for a file without topk_idx')
    .option('--no-normalize', 'leave them as the softmax gives them');
  addSettingOptions(command, ['device', 'expertProduct', 'cublasPath', 'nvrtcPath', 'timeoutMs']);
  command.action(async (path: string, options: MoeOptions) => {
    await checkBeforeLaunch(path, options);
    await withRanks(options.ranks, async (world) => {
      const choice = await chooseDevice(world.settings.device, world);
      await using device = await openChosenDevice(choice, world.settings);
      const report = await runMoeJob(world, device, { ...options, path, device: choice });
      if (report === undefined) return;
      process.stdout.write(moeReport(report));
      if (options.json !== undefined) await writeJson(options.json, report);
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
  for (const output of [options.out, options.json]) {
    if (output !== undefined) await requireWritable(dirname(output));
  }
}

async function requireWritable(folder: string): Promise<void> {
  try {
    await access(folder, constants.W_OK);
  } catch (cause) {
    throw new WeftlineError('WL_FILE', `Cannot write into ${folder}: ${messageOf(cause)}`, {
      details: { path: folder },
      cause,
    });
  }
}

async function writeJson(path: string, report: unknown): Promise<void> {
  try {
    await writeFile(path, `${JSON.stringify(report, undefined, 2)}\n`);
  } catch (cause) {
    throw new WeftlineError('WL_FILE', `Cannot write ${path}: ${messageOf(cause)}`, { details: { path }, cause });
  }
}

function messageOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}
