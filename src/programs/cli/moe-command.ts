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
import { moeDispatchers, requireNoSharedExpert, type MoeLoad, spread } from '../moe/measure-forward.ts';
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
import { integerArgument, option } from './argument-values.ts';
import { addReportOptions, Output, type OutputFlags, requireWritableFolder } from './output.ts';
import { addSettingOptions, checkHosts } from './setting-options.ts';
import { checkUsageOf } from './exit-codes.ts';
import { withRanks } from './with-ranks.ts';
import { formatBytes } from '../../core/byte-size.ts';
import { bars, plainBars, table, type View, counted, fixed } from '../report/view.ts';

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

// What people read of it: time and traffic of each phase, the load of ranks and experts, layer by layer, a verdict.

/** More ranks than this are shown by their spread alone. */
const MAX_RANK_ROWS = 16;
const MAX_RANK_COLUMNS = 8;

export function moeView(report: MoeReport): View {
  const { block, load, ranks, redundantExperts, memory, repeat } = report;
  const before = redundantExperts?.without;
  const shared = block.sharedIntermediate === undefined ? '' : `, a shared expert (width ${block.sharedIntermediate})`;
  // The rank whose process has grown most stands for all.
  const [most] = memory.toSorted((one, other) => other.peakBytes - one.peakBytes);
  return {
    title: `MoE block on ${counted(ranks, 'rank')}`,
    heading: [
      block.model === undefined ? block.path : `${block.path}, layer ${block.model.layer} (${block.model.type})`,
      `${block.tokens} tokens of ${block.hidden}, top ${block.topk} of ${block.experts} experts (width ${block.intermediate})${shared}; ${counted(ranks, 'rank')}`,
      `device: ${report.device.kind} (${report.device.reason})`,
      `experts: ${report.product}`,
      `dispatcher ${report.dispatcher}, ${report.dtype} rows, window ${formatBytes(report.windowBytes)} per rank`,
      ...(most === undefined
        ? []
        : [
            `memory: experts ${formatBytes(most.expertBytes)} per rank; largest growth of a process ${formatBytes(most.peakBytes)}`,
          ]),
      `Times: slowest rank, median of ${repeat}. Rows, bytes, GB/s: all ranks; off-rank: from other ranks.`,
    ],
    parts: [
      redundantLines(report),
      phaseParts(report),
      loadTable(report),
      load.ranks.length <= MAX_RANK_ROWS
        ? table(load.ranks, [
            { head: 'rank', of: ({ rank }) => rank },
            { head: 'tokens', of: ({ tokens }) => tokens },
            { head: 'rows received', of: ({ received }) => received },
            { head: 'off-rank', of: ({ receivedFromOthers }) => receivedFromOthers },
            { head: 'rows computed', of: ({ expertRows }) => expertRows },
            { head: 'computed before', of: ({ rank }) => before?.load.ranks[rank]?.expertRows },
          ])
        : [],
      report.out !== undefined && `Output written to ${report.out}`,
      expertSection(report),
      bars(
        {
          title: 'Load of ranks',
          note: 'Received: rows that dispatch brings to a rank. Computed: rows of its experts, one per token and expert. All wait for the rank with the most.',
          unit: 'rows',
        },
        before === undefined
          ? ofRanks(load, '')
          : [...ofRanks(before.load, ', without copies'), ...ofRanks(load, ', with copies')],
      ),
    ],
    footing: [moeVerdict(report)],
  };
}

function redundantLines({ redundantExperts, block, forwardMs }: MoeReport): string[] {
  if (redundantExperts === undefined) return [];
  const { count, copiedExperts, without, check } = redundantExperts;
  const difference =
    check.error === 0 ? 'the same bit for bit' : `differs by ${check.error.toExponential(2)} of its norm`;
  return [
    `redundant experts: ${count} copies of ${copiedExperts} busy experts, ${block.experts + count} physical experts in all`,
    `before, without them: ${without.forwardMs.toFixed(1)} ms; after: ${forwardMs.toFixed(1)} ms; output ${difference}`,
  ];
}

function phaseParts({ phases, forwardMs, redundantExperts }: MoeReport): View['parts'][number] {
  const before = redundantExperts?.without.phases ?? [];
  const after = before.length === 0 ? 'time' : 'with copies of busy experts';
  const all: Partial<Omit<(typeof phases)[number], 'name'>> & { name: string; ms: number } = {
    name: 'all in one go',
    ms: forwardMs,
  };
  return [
    ...table(
      [...phases, all],
      [
        { head: 'phase', of: ({ name }) => name },
        { head: 'ms', of: ({ ms }) => ms, show: fixed(2) },
        { head: 'rows', of: ({ rows }) => rows },
        { head: 'moved', of: ({ bytes }) => bytes, show: formatBytes },
        { head: 'GB/s', of: ({ gigabytesPerSecond }) => gigabytesPerSecond, show: fixed(2) },
        { head: 'off-rank', of: ({ wireBytes }) => wireBytes, show: formatBytes },
        { head: 'GB/s', of: ({ wireGigabytesPerSecond }) => wireGigabytesPerSecond, show: fixed(2) },
      ],
    ),
    bars(
      {
        title: 'Time of each phase',
        note: `The slowest rank, median of the passes. All phases in one go take ${forwardMs.toFixed(2)} ms.`,
        unit: 'ms',
      },
      [
        ...before.map(({ name, ms }) => ({ name, series: 'without copies', value: ms })),
        ...phases.map(({ name, ms }) => ({ name, series: after, value: ms })),
      ],
    ),
  ];
}

function loadTable({ load, redundantExperts }: MoeReport): View['parts'][number] {
  const before = redundantExperts?.without.load;
  const rows =
    before === undefined
      ? rowsOf(load, 'expert', '')
      : [...rowsOf(before, 'expert', ' before'), ...rowsOf(load, 'physical expert', ' after')];
  return table(
    rows.map(([name, place, values]) => ({ name, place, ...spread(values) })),
    [
      { head: 'rows', of: ({ name }) => name },
      { head: 'mean', of: ({ mean }) => mean, show: fixed(1) },
      { head: 'least', of: ({ least, place }) => `${least.value} (${place} ${least.index})` },
      { head: 'most', of: ({ most, place }) => `${most.value} (${place} ${most.index})` },
      { head: 'most / mean', of: ({ most, mean }) => (mean === 0 ? undefined : most.value / mean), show: fixed(2) },
    ],
  );
}

function expertSection({ load, redundantExperts }: MoeReport): View['parts'][number] {
  const before = redundantExperts?.without.load;
  const { mean, most } = spread(load.experts);
  const expert = before === undefined ? 'expert' : 'physical expert';
  const now = { name: before === undefined ? 'rows' : 'with copies', values: load.experts };
  return {
    title: 'Load of experts',
    note: `Rows that each ${expert} computes. The busiest, ${most.index}, has ${mean === 0 ? 0 : (most.value / mean).toFixed(2)} times the mean.`,
    chart: {
      kind: 'numbered',
      number: { label: expert },
      value: { label: 'rows' },
      series: before === undefined ? [now] : [{ name: 'without copies', values: before.experts }, now],
      rules: [{ value: mean, label: 'mean' }],
    },
    table: {
      head: ['expert', 'rows', 'of the mean'],
      rows: load.experts.map((rows, at) => [String(at), rows, mean === 0 ? 0 : rows / mean]),
    },
  };
}

function ofRanks({ ranks }: MoeLoad, suffix: string): { name: string; series: string; value: number }[] {
  return ranks.flatMap(({ rank, received, expertRows }) => [
    { name: `rank ${rank}`, series: `received${suffix}`, value: received },
    { name: `rank ${rank}`, series: `computed${suffix}`, value: expertRows },
  ]);
}

function moeVerdict({ check, forwardMs, block }: MoeReport): string {
  const speed = `${forwardMs.toFixed(1)} ms, ${Math.round((block.tokens / forwardMs) * 1000)} tokens/s`;
  if (check === undefined) return `NOT CHECKED: there is no output_f32; ${speed}`;
  const error = `error ${check.error.toExponential(2)} against output_f32, tolerance ${check.tolerance}`;
  return check.passed ? `PASSED: ${error}; ${speed}` : `FAILED: ${error}`;
}

/** The view of --all-layers: at least one report, all of the same model on the same ranks. */
function layersView(reports: readonly MoeReport[]): View {
  const { block, ranks, device, dispatcher, dtype, repeat } = reports[0]!;
  const all = reports.flatMap(({ memory }) => memory);
  const most = (of: (rank: (typeof all)[number]) => number): string => formatBytes(Math.max(...all.map(of)));
  const layers = reports.map(({ block: of, load, ...report }, index) => {
    const { mean, most: busiest } = spread(load.ranks.map(({ expertRows }) => expertRows));
    const name = `layer ${of.model?.layer ?? index}`;
    return { ...report, load, name, layer: of.model?.layer, ratio: mean === 0 ? 0 : busiest.value / mean };
  });
  const shown = ranks > MAX_RANK_COLUMNS ? [] : Array.from({ length: ranks }, (_, rank) => rank);
  return {
    title: `MoE blocks of a model on ${counted(ranks, 'rank')}`,
    heading: [
      `${block.path} (${block.model?.type ?? 'unknown'}): ${reports.length} layers with experts`,
      `${block.tokens} tokens of ${block.hidden}, top ${block.topk} of ${block.experts} experts; ${counted(ranks, 'rank')}`,
      `device: ${device.kind} (${device.reason})`,
      `dispatcher ${dispatcher}, ${dtype} rows; rows that the experts of a rank compute; ms: slowest rank, median of ${repeat}`,
    ],
    parts: [
      table(layers, [
        { head: 'layer', of: ({ layer }) => layer },
        { head: 'ms', of: ({ forwardMs }) => forwardMs, show: fixed(2) },
        ...shown.map((rank) => ({
          head: `rank ${rank}`,
          of: ({ load }: (typeof layers)[number]) => load.ranks[rank]?.expertRows,
        })),
        { head: 'most / mean', of: ({ ratio }) => (ratio === 0 ? undefined : ratio), show: fixed(2) },
        {
          head: 'busiest expert',
          of: ({ load }) => {
            const { value, index } = spread(load.experts).most;
            return `${value} (${index})`;
          },
        },
        {
          head: 'error',
          of: ({ check }) => check && `${check.error.toExponential(2)}${check.passed ? '' : ' FAILED'}`,
        },
      ]),
      `memory: experts of one layer at most ${most((rank) => rank.expertBytes)} per rank; largest growth of a process ${most((rank) => rank.peakBytes)}`,
      bars(
        {
          title: 'Time of each layer',
          note: 'All phases in one go: the slowest rank, median of the passes.',
          unit: 'ms',
        },
        plainBars(
          'time',
          layers.map(({ name, forwardMs }) => [name, forwardMs]),
        ),
      ),
      bars(
        {
          title: 'Load of ranks in each layer',
          note: 'The rank whose experts compute most rows, over the mean of the ranks: all wait for it.',
          unit: 'most / mean',
        },
        plainBars(
          'load',
          layers.map(({ name, ratio }) => [name, ratio]),
        ),
      ),
    ],
    footing: [layersVerdict(reports)],
  };
}

function layersVerdict(reports: readonly MoeReport[]): string {
  const checked = reports.filter(({ check }) => check !== undefined);
  const failed = checked.filter(({ check }) => check?.passed === false);
  if (checked.length === 0) return 'NOT CHECKED: there is no output_f32';
  if (failed.length > 0) return `FAILED: layers ${failed.map(({ block }) => block.model?.layer).join(', ')}`;
  return `PASSED: ${checked.length} of ${reports.length} layers against output_f32, tolerance ${checked[0]?.check?.tolerance}`;
}

function rowsOf({ experts, ranks }: MoeLoad, expert: string, suffix: string) {
  return [
    [`per ${expert}${suffix}`, 'expert', experts],
    [`computed per rank${suffix}`, 'rank', ranks.map(({ expertRows }) => expertRows)],
    [`received per rank${suffix}`, 'rank', ranks.map(({ received }) => received)],
  ] as const;
}
