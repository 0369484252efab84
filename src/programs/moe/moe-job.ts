// What every rank of the main job does: its part of a MoE block, measured, checked and written.
import { fromBf16 } from '../../core/dtype.ts';
import { WeftlineError } from '../../core/errors.ts';
import type { DeviceChoice } from '../../device/device-choice.ts';
import type { CombinePrecision } from '../../ep/across-hosts/network-size.ts';
import { ExpertLoads } from '../../ep/placement/expert-loads.ts';
import { Placement } from '../../ep/placement/placement.ts';
import { rebalanceExpertsAsync } from '../../ep/placement/rebalance.ts';
import type { Settings } from '../../settings/settings.ts';
import type { World } from '../../world/world.ts';
import { type BlockShare, readBlockShare, readExperts, type ShareOptions } from './block-share.ts';
import type { BlockSource } from './block-source.ts';
import type { MoeBlock } from './moe-block.ts';
import { createCpuMoeEngine } from './cpu-moe-engine.ts';
import { measureForward, type MeasureOptions, type moeDispatchers, type MoeRowDtype } from './measure-forward.ts';
import type { MoeDevice, MoeEngine } from './moe-engine.ts';
import { type SafetensorsPlan, SafetensorsWriter } from './safetensors-file.ts';

export interface MoeJobOptions {
  /** How the device was chosen, for the report. */
  readonly device: Pick<DeviceChoice, 'kind' | 'reason'>;
  readonly dispatcher: (typeof moeDispatchers)[number];
  readonly dtype: MoeRowDtype;
  readonly combinePrecision: CombinePrecision;
  /** Timed passes. */
  readonly repeat: number;
  /** Copies of busy experts besides the first of each; 0 for none. Experts and copies divide evenly among the ranks. */
  readonly redundantExperts: number;
  /** The file for the tensor `output`, bf16 [T, H]; a place that all ranks can write to. */
  readonly out?: string;
}

/** `load` and times are those with copies, if there are any; its experts are then physical ones. */
export type MoeReport = NonNullable<Awaited<ReturnType<typeof runMoeJob>>>;

/** Largest error that passes, by the form in which rows travel. */
const tolerances: Readonly<Record<MoeRowDtype, number>> = { bf16: 1e-2, fp8: 5e-2 };

/** What all blocks of a job share. */
export interface MoeJobTools {
  readonly world: World;
  readonly device: MoeDevice;
  readonly engine: MoeEngine;
  /** Bytes of the resident set before anything was read. */
  readonly baseBytes: number;
}

/** Fails with WL_COMPILE, WL_UNSUPPORTED or WL_CUDA on a GPU whose kernels cannot be had. */
export async function openMoeJobTools(world: World, device: MoeDevice): Promise<MoeJobTools & Disposable> {
  const engine = await openMoeEngine(device, world.settings);
  const release = (): void => engine[Symbol.dispose]();
  return { world, device, engine, baseBytes: process.memoryUsage.rss(), [Symbol.dispose]: release };
}

/**
 * Collective. Returns the report on rank 0, undefined elsewhere; a failed check is in the report, not thrown. Fails with
 * WL_FILE, WL_FILE_FORMAT, WL_INVALID_ARGUMENT (ranks that do not divide the experts, fp8 with dispatcher all2all), and
 * with what the dispatcher's calls fail with.
 */
export async function runMoeJob(tools: MoeJobTools, source: BlockSource, options: MoeJobOptions) {
  const { world, device, engine } = tools;
  const { dispatcher, dtype, repeat, redundantExperts: count, out } = options;
  const tolerance = tolerances[dtype];
  const { block } = source;
  using share = await readBlockShare(device, { engine, source, rank: world.rank, ranks: world.size });
  const measured: MeasureOptions = { ...options, world, device, engine, block, share };
  const plain = await measureForward(measured);
  const copied = count === 0 ? undefined : await measureRedundant({ ...measured, source, count });
  const { report, output } = copied ?? plain;
  if (out !== undefined) await writeOutput(world, { path: out, block, share, output });
  const check = share.reference && (await checkOutput(world, output, { reference: share.reference, tolerance }));
  const expected = copied && Float32Array.from(plain.output, fromBf16);
  const same = expected && (await checkOutput(world, output, { reference: expected, tolerance }));
  const memory = await gatherMemory(tools, { block, count });
  if (world.rank !== 0) return undefined;
  return {
    block,
    dispatcher,
    dtype,
    ranks: world.size,
    device: { kind: options.device.kind, reason: options.device.reason },
    /** What multiplied rows by the experts' weights on rank 0. */
    product: engine.product,
    repeat,
    /** Memory by rank. */
    memory,
    ...report,
    ...(copied &&
      same && {
        /** `without`: the same block without copies; `check` compares the output with that. */
        redundantExperts: { count, copiedExperts: copied.copiedExperts, without: plain.report, check: same },
      }),
    /** Absent if the file has no reference. */
    ...(check && { check }),
    ...(out !== undefined && { out }),
  };
}

/**
 * Bytes of each rank's process: weights of its experts as they are computed with, and by how much the resident set has grown
 * at most since before anything was read.
 */
function gatherMemory(
  { world, baseBytes }: MoeJobTools,
  { block, count }: { readonly block: MoeBlock; readonly count: number },
) {
  const { hidden, intermediate, experts, sharedIntermediate = 0 } = block;
  // The experts without copies lie beside those with copies.
  const own = (experts + (count === 0 ? 0 : experts + count)) / world.size;
  // Three matrices of bf16 each.
  const expertBytes = 3 * 2 * hidden * (own * intermediate + sharedIntermediate);
  const peakBytes = Math.max(0, process.resourceUsage().maxRSS * 1024 - baseBytes);
  return world.allGather('moe/memory', { expertBytes, peakBytes });
}

/** `copiedExperts`: experts that have more than one copy. */
async function measureRedundant(options: MeasureOptions & { readonly source: BlockSource; readonly count: number }) {
  const { world, device, block, count } = options;
  const placement = await planRedundant(world, { ...options, count });
  const { physical, replicaCounts } = placement.plan;
  using share = await replicateShare(device, { ...options, placement });
  const measured = await measureForward({ ...options, share, block: { ...block, experts: physical } });
  return { ...measured, copiedExperts: replicaCounts.filter((copies) => copies > 1).length };
}

/** Throws WL_CHECK if the output was compared and is too far from the reference, or from that without copies of experts. */
export function requirePassed({ check, redundantExperts, block, dtype }: MoeReport): void {
  const compared = [
    [check, `output_f32 of ${block.path}`],
    [redundantExperts?.check, 'the output without redundant experts'],
  ] as const;
  for (const [one, what] of compared) {
    if (one === undefined || one.passed) continue;
    throw new WeftlineError(
      'WL_CHECK',
      `The output differs from ${what} by ${one.error.toExponential(2)} of its norm, expected at most ${one.tolerance} with ${dtype} rows`,
      { details: { ...one } },
    );
  }
}

/** `error`: ||output - reference|| / ||reference|| */
async function checkOutput(
  world: World,
  output: Uint16Array,
  { reference, tolerance }: { readonly reference: Float32Array; readonly tolerance: number },
) {
  let difference = 0;
  let size = 0;
  for (const [index, pattern] of output.entries()) {
    const wanted = reference[index]!;
    difference += (fromBf16(pattern) - wanted) ** 2;
    size += wanted ** 2;
  }
  // The sums travel as text, because JSON has no NaN and no infinity.
  const sums = await world.allGather('moe/check', [String(difference), String(size)]);
  const total = (at: 0 | 1): number => sums.reduce((sum, rank) => sum + Number(rank[at]), 0);
  const error = total(0) === 0 ? 0 : Math.sqrt(total(0) / total(1));
  return { error, tolerance, passed: error <= tolerance };
}

interface OutputFacts {
  readonly path: string;
  readonly block: MoeBlock;
  readonly share: BlockShare;
  /** bf16 [T, H] of this rank's tokens. */
  readonly output: Uint16Array;
}

/** Every rank writes its tokens into one file, which gets its name when all have. */
async function writeOutput(world: World, { path, block, share, output }: OutputFacts): Promise<void> {
  const plan: SafetensorsPlan = {
    path,
    tensors: { output: { dtype: 'BF16', shape: [block.tokens, block.hidden] } },
    unique: world.jobId,
  };
  const creator = world.rank === 0 ? await SafetensorsWriter.create(plan) : undefined;
  await using writer = creator;
  await world.barrier('moe/output made');
  await using attached = writer === undefined ? await SafetensorsWriter.attach(plan) : undefined;
  await (writer ?? attached)?.write('output', output, share.tokens.first);
  await world.barrier('moe/output written');
  await writer?.commit();
}

/** Fails with WL_COMPILE, WL_UNSUPPORTED or WL_CUDA on a GPU whose kernels cannot be had. */
export async function openMoeEngine(device: MoeDevice, settings: Settings): Promise<MoeEngine> {
  if (device.kind === 'cpu') return createCpuMoeEngine(device);
  // Loaded here, so that CPU ranks never load what GPUs need.
  const { createCudaMoeEngine } = await import('./cuda-moe-engine.ts');
  return createCudaMoeEngine(device, settings);
}

// A rank's part of a block whose busy experts have copies: which experts it has then, and where its tokens go.

/** Collective. Where copies should be for the choices of all ranks' tokens; `count`: copies besides the first of each expert. */
async function planRedundant(
  world: World,
  { block, share, count }: { readonly block: MoeBlock; readonly share: BlockShare; readonly count: number },
): Promise<Placement> {
  const loads = new ExpertLoads({ layers: 1, experts: block.experts, window: 1 });
  loads.addChoices(0, await share.topkIdx.toHost());
  const weights = await loads.gather(world);
  const plan = await rebalanceExpertsAsync(weights, { replicas: block.experts + count, ranks: world.size });
  return new Placement(plan, { rank: world.rank, hosts: world.topology.hosts });
}

/** `share` with physical experts: the choices, and the experts of this rank. It borrows all else, and is disposed first. */
async function replicateShare(
  device: MoeDevice,
  options: Pick<ShareOptions, 'source' | 'engine'> & {
    readonly share: BlockShare;
    readonly placement: Placement;
  },
): Promise<BlockShare> {
  const { share, placement } = options;
  const { topkIdx: logical } = share;
  const topkIdx = await device.tensor('i64', logical.shape, placement.route(await logical.toHost()));
  const experts = await readExperts(device, options, [...placement.localExperts()]);
  const route = (): void => {
    share.route?.();
    placement.route(logical.view(), { out: topkIdx.view() });
  };
  return {
    ...share,
    topkIdx,
    experts,
    // The choices of GPUs are made once, on the host.
    route: device.kind === 'cpu' ? route : undefined,
    [Symbol.dispose]() {
      topkIdx.close();
      experts[Symbol.dispose]();
    },
  };
}
